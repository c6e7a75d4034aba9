"""Requests through a fleet of engines, event by event.

The loop is its own heap and not SimPy: a million requests need some ten million events, of which a generator-based
process costs two to three times as much as a plain heap, and a series of decode steps must be cut short in place, which
is a version number here and an interrupt with its exception there. Events at one time: arrivals and transfers first,
then engines, in the order in which they were scheduled; so a run is the same every time.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable, Sequence
from heapq import heappop, heappush
from math import inf, nan
from typing import Literal, NamedTuple, Protocol

from sim.replays.engine import Engine
from sim.replays.lane import Lane
from sim.replays.request import Request

Router = Literal["round_robin", "least_loaded", "prefix_aware"]
ARRIVAL, LANDING, WAKE = 0, 1, 2
MOST_SAMPLES = 400


class Stream(NamedTuple):
    """Requests in the order of their numbers.

    ``arrivals`` are seconds, increasing; NaN for a request that comes when another one is answered. ``follows`` says
    which one, and after how many seconds; those that follow nobody in particular are a closed loop's.
    """

    arrivals: Sequence[float]
    prompts: Sequence[int]
    outputs: Sequence[int]
    hashes: Callable[[int], tuple[Hashable, ...]] | None = None
    follows: dict[int, tuple[int, float]] = {}  # noqa: RUF012  never changed
    """Number of the next turn and seconds until it comes, by number of a request."""
    concurrency: int = 0
    """Requests of a closed loop that are in the system at once; 0: an open one."""
    grain: int = 0
    """Tokens of a prefix entry."""


class Transfer(Protocol):
    """Seconds for the cache of so many tokens to another instance."""

    layers: int
    """Parts in which it is sent while the prompt is still computed; 1: all at the end."""

    def seconds(self, tokens: int) -> float:
        """Of one transfer that has its links for itself."""
        ...


class Sample(NamedTuple):
    """The fleet at one time."""

    time: float
    waiting: int
    running: int
    kv: float
    """Share of all KV blocks in use."""


class Log:
    """What happened, as one entry per request in every array; seconds, NaN where it did not happen."""

    def __init__(self, count: int):
        self.arrival = array("d", [nan]) * count
        self.first = array("d", [nan]) * count
        self.end = array("d", [nan]) * count
        self.hit = array("q", [0]) * count
        self.preemptions = array("q", [0]) * count
        self.refused: list[int] = []
        self.samples: list[Sample] = []
        self.stopped = self.interrupted = False
        self.now = 0.0
        self.in_system = 0.0
        """Integral of the number of requests in the system over time."""


class Patience(NamedTuple):
    """How many requests may miss one of two limits (seconds) before a run is given up."""

    ttft: float
    tpot: float
    most: float


class Loop:
    """A run of a stream through engines.

    Parameters
    ----------
    engines
        Those that decode, all alike.
    prefill
        Those that prefill only; empty where the same engines do both.
    router
        How requests are dealt to instances.
    transfer
        Cost of sending a cache from a prefill engine to a decoding one.
    overhead
        Seconds between a request of so many tokens and the scheduler: HTTP and tokenizer.
    check
        Whether every event recounts all blocks.
    """

    def __init__(
        self,
        engines: Sequence[Engine],
        prefill: Sequence[Engine] = (),
        router: Router = "least_loaded",
        transfer: Transfer | None = None,
        overhead: Callable[[int], float] | None = None,
        check: bool = False,
    ):
        self.engines, self.prefill = list(engines), list(prefill)
        self.front = self.prefill or self.engines
        self.router, self.transfer, self.overhead, self.check = router, transfer, overhead, check
        self.heap: list[tuple[float, int, int, object, int]] = []
        self.number = 0
        self.turn = 0
        self.ports: dict[int, float] = {}
        self.patience: Patience | None = None
        """When the run is given up."""
        self.late = self.slow = 0
        self.journal: list[tuple[str, int, float]] | None = None
        """Events with the number of the request and the time, where a test wants them."""

    def _push(self, time: float, kind: int, what: object, version: int = 0) -> None:
        self.number += 1
        heappush(self.heap, (time, kind, self.number, what, version))

    # -- the run -----------------------------------------------------------------------------------------------

    def run(self, stream: Stream, until: float = inf, progress: Callable[[int], None] | None = None) -> Log:
        """Play a stream until all requests are answered, or until a time, or until interrupted."""
        self.stream = stream
        self.log = log = Log(len(stream.prompts))
        self.answered = self.present = 0
        self.next_sample, self.every = 0.0, 1e-3
        starts = [i for i, t in enumerate(stream.arrivals) if t == t]
        self.closed = iter(range(stream.concurrency, len(stream.prompts))) if stream.concurrency else iter(())
        if stream.concurrency:
            starts = list(range(min(stream.concurrency, len(stream.prompts))))
        arrivals = stream.arrivals
        position, total = 0, len(starts)
        heap = self.heap
        try:
            while True:
                upcoming = arrivals[starts[position]] if position < total else inf
                if stream.concurrency and position < total:
                    upcoming = 0.0
                if heap and (heap[0][0] < upcoming or (heap[0][0] == upcoming and heap[0][1] != WAKE)):
                    time, kind, _, what, version = heappop(heap)
                    if time > until:
                        log.stopped = True
                        break
                    self._clock(time)
                    if kind == WAKE:
                        engine = what
                        if engine.version == version:  # type: ignore[attr-defined]
                            self._wake(engine, time)  # type: ignore[arg-type]
                    elif kind == ARRIVAL:
                        self._arrive(what, time)  # type: ignore[arg-type]
                    else:
                        self._land(*what, time)  # type: ignore[misc]
                elif position < total:
                    if upcoming > until:
                        log.stopped = True
                        break
                    self._clock(upcoming)
                    self._come(starts[position], upcoming)
                    position += 1
                else:
                    break
                if self.patience and max(self.late, self.slow) > self.patience.most:
                    log.stopped = True
                    break
                if progress is not None and not self.number & 4095:
                    progress(self.answered)
        except KeyboardInterrupt:
            log.stopped = log.interrupted = True
        return log

    def _clock(self, time: float) -> None:
        log = self.log
        log.in_system += self.present * (time - log.now)
        log.now = time
        if time >= self.next_sample:
            self._sample(time)

    def _sample(self, time: float) -> None:
        samples = self.log.samples
        lanes = [lane for engine in (*self.prefill, *self.engines) for lane in engine.lanes]
        waiting = sum(len(lane.waiting) + len(lane.inbound) for lane in lanes)
        running = sum(lane.count + len(lane.filling) for lane in lanes)
        kv = sum(lane.pool.used for lane in lanes) / sum(lane.pool.total for lane in lanes)
        samples.append(Sample(time, waiting, running, kv))
        if len(samples) > MOST_SAMPLES:
            del samples[1::2]
            self.every *= 2
        self.next_sample = time + self.every

    def _note(self, what: str, request: Request, time: float) -> None:
        if self.journal is not None:
            self.journal.append((what, request.index, time))

    # -- events ------------------------------------------------------------------------------------------------

    def _come(self, index: int, time: float) -> None:
        """A client sends request number ``index``."""
        stream = self.stream
        hashes = stream.hashes(index) if stream.hashes else ()
        request = Request(index, time, stream.prompts[index], stream.outputs[index], hashes)
        self.log.arrival[index] = time
        self.present += 1
        self._note("arrival", request, time)
        delay = self.overhead(request.prompt) if self.overhead else 0.0
        if delay:
            self._push(time + delay, ARRIVAL, request)
        else:
            self._arrive(request, time)

    def _arrive(self, request: Request, time: float) -> None:
        """A request reaches the scheduler of an instance."""
        engine = self._route(request)
        lane = engine.lane()
        last = self.engines[0].lanes[0]
        if not lane.fits_at_all(request) or not last.fits_at_all(request):
            self.log.refused.append(request.index)
            self._note("refused", request, time)
            self._leave(request, time)
            return
        engine.arrive(lane, request)
        lane.waiting.append(request)
        if not engine.busy:
            engine.version += 1
            self._push(time, WAKE, engine, engine.version)
        elif len(lane.waiting) == 1:
            self._cut(engine, time)

    def _cut(self, engine: Engine, time: float) -> None:
        if engine.interrupt(time):
            self._push(engine.end, WAKE, engine, engine.version)

    def _route(self, request: Request) -> Engine:
        front = self.front
        if len(front) == 1:
            return front[0]
        if self.router == "round_robin":
            self.turn += 1
            return front[(self.turn - 1) % len(front)]
        if self.router == "prefix_aware" and request.hashes:
            return max(front, key=lambda e: (max(lane.pool.match(request.hashes) for lane in e.lanes), -e.load))
        return _least(front)

    def _wake(self, engine: Engine, time: float) -> None:
        """A step of an engine ends, or an idle one has work; then the next step begins."""
        if engine.busy:
            first, ended = engine.complete(time)
            log = self.log
            for request in first:
                log.first[request.index] = time
                log.hit[request.index] = request.hit
                if self.patience and time - log.arrival[request.index] > self.patience.ttft:
                    self.late += 1
                self._note("first", request, time)
                if request.source is not None:
                    self._send(request, time)
            for request in ended:
                log.end[request.index] = time
                log.preemptions[request.index] = request.preemptions
                if self.patience and time - log.first[request.index] > self.patience.tpot * (request.output - 1):
                    self.slow += 1
                self._note("end", request, time)
                self._leave(request, time)
                self.answered += 1
            if ended and self.prefill:
                for lane in engine.lanes:
                    self._make_room(engine, lane, time)
            if self.check:
                for lane in engine.lanes:
                    lane.check()
            heap = self.heap
            if heap and heap[0][0] <= time and heap[0][1] != WAKE:  # what comes now may still join the next step
                engine.version += 1
                self._push(time, WAKE, engine, engine.version)
                return
        if engine.begin(time):
            self._push(engine.end, WAKE, engine, engine.version)

    def _leave(self, request: Request, time: float) -> None:
        """A request is answered: its next turn, or the next one of a closed loop, comes."""
        self.present -= 1
        follow = self.stream.follows.get(request.index)
        if follow:
            index, delay = follow
            self._later(index, time + delay)
        elif self.stream.concurrency:
            index = next(self.closed, -1)
            if index >= 0:
                self._come(index, time)

    def _later(self, index: int, time: float) -> None:
        self._push(time, LANDING, (index,))

    # -- caches that move --------------------------------------------------------------------------------------

    def _send(self, request: Request, time: float) -> None:
        """A prompt is computed: its cache goes to the instance with the fewest requests, as soon as there is room."""
        engine = _least(self.engines)
        lane = engine.lane()
        engine.arrive(lane, request)
        lane.inbound.append(request)
        if len(lane.inbound) == 1:
            engine.catch_up(time)
            self._make_room(engine, lane, time)
            if engine.refit():
                self._push(engine.end, WAKE, engine, engine.version)

    def _make_room(self, engine: Engine, lane: Lane, time: float) -> None:
        inbound, transfer = lane.inbound, self.transfer
        while inbound and lane.expect(inbound[0]):
            request = inbound.popleft()
            source, _ = request.source
            seconds = transfer.seconds(request.cached) if transfer else 0.0
            layers = transfer.layers if transfer else 1
            ports = self.ports
            begun = max(time if layers == 1 else source.start, ports.get(id(source), 0.0), ports.get(id(engine), 0.0))
            done = max(begun + seconds, time + seconds / layers)
            ports[id(source)] = ports[id(engine)] = done
            self._push(done, LANDING, (engine, lane, request))

    def _land(self, *what: object) -> None:
        """A cache has come (engine, lane, request, time), or a next turn does (number, time)."""
        if len(what) == 2:
            self._come(*what)  # type: ignore[arg-type]
            return
        engine, lane, request, time = what
        source, left = request.source  # type: ignore[attr-defined]
        request.source = None  # type: ignore[attr-defined]
        left.sent(request)
        if not source.busy and left.waiting:
            source.version += 1
            self._push(time, WAKE, source, source.version)  # type: ignore[arg-type]
        lane.land(request)  # type: ignore[attr-defined]
        if not engine.busy:  # type: ignore[attr-defined]
            engine.version += 1  # type: ignore[attr-defined]
            self._push(time, WAKE, engine, engine.version)  # type: ignore[arg-type, attr-defined]
        else:
            self._cut(engine, time)  # type: ignore[arg-type]


def _least(engines: list[Engine]) -> Engine:
    """The instance with the fewest requests, the first of several."""
    best = engines[0]
    for engine in engines:
        if engine.load < best.load:
            best = engine
    return best
