"""The discrete-event engine: lanes run their instructions, collectives are rendezvous. The only user of SimPy.

A lane is one rank (or one class of equal ranks) with an in-order compute stream and an in-order communication
stream. Overlap, stragglers and waiting come out of the order of events; nothing here is a formula. Events are the
cost: one per joined run of compute, two per collective, whatever the number of its members.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple, Protocol

import simpy

from sim.schedule import Issue, Rendezvous, Run, Track

Spans = list[tuple[int, int, str, int, float, float]]
Paces = Sequence[tuple[float, float]]
"""When a lane's computing changes its speed, and to which fraction of the one it begins with."""


class LaneState(NamedTuple):
    """When a lane's streams are free and its carried values exist, in seconds."""

    compute: float
    communication: float
    carried: tuple[float, ...]


class Exposed(NamedTuple):
    """How long a lane waited for one collective, and how much of that passed before everybody had come."""

    waited: float
    idle: float


class Outcome(NamedTuple):
    """What a run of instructions leads to."""

    states: tuple[LaneState, ...]
    exposed: tuple[dict[tuple[int, int], Exposed], ...]
    """Per lane, by (block, slot) of the collective that was waited for."""
    events: int
    slowed: tuple[float, ...] = ()
    """Per lane the seconds that changes of its speed have added to its computing."""


class Clock(NamedTuple):
    """The engine's time, for those who do not know SimPy."""

    now: Callable[[], float]
    later: Callable[[float, Callable[[], None]], None]
    """Calls a function after a delay in seconds."""


class Transport(Protocol):
    """Carries messages over links that they share."""

    def begin(self, view: Rendezvous, done: Callable[[], None]) -> None:
        """Carry one collective; call ``done`` when it has arrived."""


class _Meeting:
    """One collective under way."""

    __slots__ = ("done", "finished", "missing", "started", "view")

    def __init__(self, env: simpy.Environment, members: int):
        self.done = env.event()
        self.missing = members
        self.view: Rendezvous | None = None
        self.started = 0.0
        self.finished = 0.0


class _Hub:
    """Where the members of a collective meet."""

    def __init__(self, env: simpy.Environment, transport: Callable[[Clock], Transport] | None):
        self.env = env
        self.meetings: dict[tuple[int, tuple[int, tuple[int, ...]]], _Meeting] = {}
        self.events = 0
        self.transport = transport(Clock(lambda: env.now, self._later)) if transport else None

    def arrive(self, block: int, view: Rendezvous, before: _Meeting | None) -> _Meeting:
        """A lane issues a collective that may start once its previous one is done."""
        key = (block, view.key)
        meeting = self.meetings.get(key)
        if meeting is None:
            meeting = self.meetings[key] = _Meeting(self.env, view.members)
        if meeting.view is None or view.seconds > meeting.view.seconds:
            meeting.view = view
        if before is None or before.done.processed:
            self._come(meeting)
        else:
            callbacks = before.done.callbacks
            assert callbacks is not None
            callbacks.append(lambda _: self._come(meeting))
        return meeting

    def _come(self, meeting: _Meeting) -> None:
        meeting.missing -= 1
        if not meeting.missing:
            meeting.started = self.env.now
            assert meeting.view
            if self.transport:
                self.transport.begin(meeting.view, lambda: self._finish(meeting))
            else:
                self.events += 1
                self._later(meeting.view.seconds, lambda: self._finish(meeting))

    def _later(self, delay: float, call: Callable[[], None]) -> None:
        self.events += 1
        timeout = self.env.timeout(delay)
        assert timeout.callbacks is not None
        timeout.callbacks.append(lambda _: call())

    def _finish(self, meeting: _Meeting) -> None:
        meeting.finished = self.env.now
        self.close(meeting)

    def close(self, meeting: _Meeting) -> None:
        """Let everybody go who waits for a meeting."""
        meeting.done.succeed()


def _stretched(now: float, seconds: float, paces: Paces) -> float:
    """How long work of ``seconds`` takes from ``now`` on; what the host does in it counts as the GPU's."""
    speed, at = 1.0, now
    for time, pace in paces:
        if time > at:
            if (time - at) * speed >= seconds:
                break
            seconds -= (time - at) * speed
            at = time
        speed = pace
    return at - now + seconds / speed


class _Lane:
    """One lane's process and what it leaves behind."""

    def __init__(
        self, hub: _Hub, number: int, blocks: Sequence[Track], start: LaneState, spans: Spans | None, paces: Paces
    ):
        self.hub, self.number, self.blocks, self.start, self.spans = hub, number, blocks, start, spans
        self.paces, self.slowed = paces, 0.0
        self.exposed: dict[tuple[int, int], Exposed] = {}
        self.finished = 0.0
        self.last: _Meeting | None = None
        self.carried: list[_Meeting | None] = []
        self.process = hub.env.process(self._run())

    def _ready_at(self, time: float) -> _Meeting | None:
        """A collective of an earlier run that is done at ``time``."""
        env = self.hub.env
        if time <= env.now:
            return None
        meeting = _Meeting(env, 0)
        meeting.started, meeting.finished = env.now, time
        timeout = env.timeout(time - env.now)
        assert timeout.callbacks is not None
        timeout.callbacks.append(lambda _: self.hub.close(meeting))
        self.hub.events += 2
        return meeting

    def _run(self) -> Generator[simpy.Event, None, None]:
        hub, env, spans = self.hub, self.hub.env, self.spans
        self.last = self._ready_at(self.start.communication)
        self.carried = [
            self.last if time == self.start.communication else self._ready_at(time) for time in self.start.carried
        ]
        if self.start.compute > 0:
            hub.events += 1
            yield env.timeout(self.start.compute)
        for number, block in enumerate(self.blocks):
            issued: dict[int, _Meeting | None] = {}
            for instruction in block.instructions:
                if isinstance(instruction, Run):
                    hub.events += 1
                    begin, seconds = env.now, instruction.seconds
                    if self.paces:
                        seconds = _stretched(begin, seconds, self.paces)
                        self.slowed += seconds - instruction.seconds
                    yield env.timeout(seconds)
                    if spans is not None:
                        for op in instruction.ops:
                            spans.append((self.number, number, "compute", op, begin, env.now))
                elif isinstance(instruction, Issue):
                    slot = instruction.slot
                    self.last = issued[slot] = hub.arrive(number, block.meetings[slot], self.last)
                else:
                    slot = instruction.slot
                    meeting = issued[slot] if slot >= 0 else self.carried[-1 - slot]
                    if meeting is not None and not meeting.done.processed:
                        begin = env.now
                        yield meeting.done
                        waited = env.now - begin
                        idle = min(waited, max(0.0, meeting.started - begin))
                        self.exposed[number, slot] = Exposed(waited, idle)
            self.carried = [None if e is None else (issued[e] if e >= 0 else self.carried[-1 - e]) for e in block.exits]
        self.finished = env.now

    def state(self) -> LaneState:
        """When everything of this lane is done; its own instructions may end before its last collective."""
        last = self.last.finished if self.last else 0.0
        carried = tuple(max(m.finished, 0.0) if m else self.finished for m in self.carried)
        return LaneState(self.finished, last, carried)


def run(
    lanes: Sequence[Sequence[Track]],
    starts: Sequence[LaneState],
    spans: Spans | None = None,
    transport: Callable[[Clock], Transport] | None = None,
    paces: Sequence[Paces] = (),
) -> Outcome:
    """Run every lane's blocks, one after the other, from the given states.

    Parameters
    ----------
    lanes
        Per lane the tracks to run in order. All lanes have the same number.
    starts
        Per lane when its streams are free.
    spans
        If given, (lane, block, stream, operation, begin, end) of every run of compute is appended.
    transport
        If given, makes what carries the messages; without it each collective takes the time it takes alone. What it
        carries for others ends with the lanes.
    paces
        Per lane when its computing changes its speed; left out: never.
    """
    env = simpy.Environment()
    hub = _Hub(env, transport)
    running = [
        _Lane(hub, i, blocks, start, spans, paces[i] if paces else ())
        for i, (blocks, start) in enumerate(zip(lanes, starts, strict=True))
    ]
    if transport is None:
        env.run()
    else:
        for lane in running:
            env.run(lane.process)
        for lane in running:
            if lane.last and not lane.last.done.processed:
                env.run(lane.last.done)
    slowed = tuple(r.slowed for r in running)
    return Outcome(tuple(r.state() for r in running), tuple(r.exposed for r in running), hub.events, slowed)


def pipeline_period(seconds: Sequence[Sequence[float]]) -> float:
    """Seconds between two steps of micro-batches that circulate through pipeline stages, in the steady state.

    Each stage serves the micro-batches in turn; one enters the first stage again once the last stage has finished it.
    Equal micro-batches take max(sum of the stages, micro-batches x slowest stage).

    Parameters
    ----------
    seconds
        Per micro-batch, per stage.
    """
    if len(seconds) == 1:
        return sum(seconds[0])
    env = simpy.Environment()
    stages = len(seconds[0])
    rounds = 2 * (stages + len(seconds)) + 2
    keys = [(stage, r, micro) for stage in range(stages) for r in range(rounds + 1) for micro in range(len(seconds))]
    arrived = {key: env.event() for key in keys}
    finished: list[float] = []

    def serve(stage: int) -> Generator[simpy.Event, None, None]:
        for r in range(rounds):
            for micro, durations in enumerate(seconds):
                yield arrived[stage, r, micro]
                yield env.timeout(durations[stage])
                last = stage == stages - 1
                arrived[(0, r + 1, micro) if last else (stage + 1, r, micro)].succeed()
            if stage == stages - 1:
                finished.append(env.now)

    for micro in range(len(seconds)):
        arrived[0, 0, micro].succeed()
    for stage in range(stages):
        env.process(serve(stage))
    env.run()
    half = len(finished) // 2  # a mean over several rounds, since the order may repeat with a longer period
    return (finished[-1] - finished[half]) / (len(finished) - 1 - half)
