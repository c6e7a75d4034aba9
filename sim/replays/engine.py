"""One instance of an engine: attention groups that step together, one decision of the scheduler per step.

Between two events that the scheduler could react to, the batch is constant: then the decode steps up to the next end of
a request, or up to where blocks run out, are one series whose time is a closed form. An arrival in between cuts the
series at the boundary after it. Taking every step by itself (``stepwise``) gives the same times.

Attention groups wait for each other in every step, and each runs as many rows as the fullest one: vLLM and SGLang pad
the batches of attention-DP ranks to the largest one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from sim.replays.gaps import Gaps
from sim.replays.lane import Chunk, Lane
from sim.replays.request import Request
from sim.replays.scheduler import Scheduler
from sim.replays.series import Row


class Prices(Protocol):
    """Seconds of the steps of an instance; ``sim.replays.step_prices`` has the one of a layout."""

    def decode(self, batch: int) -> Row:
        """Of a decode step of ``batch`` sequences in every group, over the mean context."""
        ...

    def mixed(self, batch: int, context: float, chunks: list[tuple[int, int]], rows: int) -> float:
        """Of a step of (cached, new) chunks of prompts in the fullest group, ``rows`` new tokens in the mean group, and
        ``batch`` decodes, maybe none."""
        ...

    def swap(self, tokens: int) -> float:
        """Of moving the cache of so many tokens between GPU and host."""
        ...


class Series(NamedTuple):
    """Decode steps that have been started together."""

    row: Row
    context: float
    growth: float
    steps: int


class Engine:
    """An instance.

    Parameters
    ----------
    rules
        Of its scheduler.
    lanes
        Its attention groups.
    prices
        Seconds of its steps.
    gpus
        How many it runs on.
    sends
        Whether it only prefills, and requests decode elsewhere.
    stepwise
        Whether every decode step is an event of its own.
    """

    def __init__(
        self,
        rules: Scheduler,
        lanes: list[Lane],
        prices: Prices,
        gpus: int = 1,
        sends: bool = False,
        stepwise: bool = False,
    ):
        self.rules, self.lanes, self.prices, self.gpus = rules, lanes, prices, gpus
        self.sends, self.stepwise = sends, stepwise
        self.busy = False
        self.version = 0
        self.start = self.end = 0.0
        self.series: Series | None = None
        self.decodes = False
        self.chunks: list[list[Chunk]] = []
        self.fresh: list[tuple[float, int]] = []
        """Requests that joined since the last decode step, with the time of their last token."""
        self.last_step = 0.0
        self.gaps = Gaps()
        self.turn = 0
        self.load = 0
        """Requests here that are not answered."""
        self.swapping = 0.0
        self.short = False
        """Whether the step has had to preempt; the scheduler looks again right after it."""
        self.seconds_busy = 0.0
        self.preemptions = 0
        self.largest = 0
        """Requests that decoded at once, at most."""
        self.steps = 0
        self.sizes = rules.sizes()
        self.padded = _padding(self.sizes)

    # -- routing -----------------------------------------------------------------------------------------------

    def lane(self) -> Lane:
        """The attention group that the next request goes to."""
        lanes = self.lanes
        if len(lanes) == 1:
            return lanes[0]
        router = self.rules.dp_router
        if router == "round_robin":
            self.turn += 1
            return lanes[(self.turn - 1) % len(lanes)]
        if router == "least_tokens":
            return min(lanes, key=lambda lane: lane.load)
        return min(lanes, key=lambda lane: lane.requests)

    def arrive(self, lane: Lane, request: Request) -> None:
        """A request is this instance's to answer, or to prefill."""
        self.load += 1
        lane.requests += 1
        lane.load += request.prompt + request.output

    def depart(self, lane: Lane, request: Request) -> None:
        """A request is answered, or somebody else's."""
        self.load -= 1
        lane.requests -= 1
        lane.load -= request.prompt + request.output

    # -- a step ------------------------------------------------------------------------------------------------

    def begin(self, now: float) -> bool:
        """Decide on the next step, or series of steps, at ``now``; ``False`` if there is nothing to do."""
        lanes, policy = self.lanes, self.rules.policy
        self.short = decoding = wanted = False
        for lane in lanes:
            if lane.ready:
                for request in lane.ready:
                    lane.join(request)
                self.fresh.append((now, len(lane.ready)))
                lane.ready.clear()
            decoding = decoding or lane.count > 0
            wanted = wanted or bool(lane.waiting or lane.filling)
        chunks: list[list[Chunk]] = []
        if policy == "mixed":
            if decoding:
                self._grow()
                decoding = not self.short or any(lane.count for lane in lanes)
            if wanted or self.short:  # who was preempted for want of blocks is not admitted again in the same step
                chunks = self._prefill(admit=not (self.short and decoding))
        else:
            if wanted and (policy == "prefill_first" or not decoding):
                chunks = self._prefill()
                decoding = decoding and not chunks
            if decoding:
                self._grow()
                decoding = not self.short or any(lane.count for lane in lanes)
        self.chunks, self.decodes, self.series = chunks, decoding, None
        if not chunks and not decoding:
            self.busy = False
            return False
        if chunks:
            seconds = self._step_seconds(decoding)
        else:
            self.series = series = self._series()
            seconds = series.row.total(series.context, series.growth, series.steps)
        self.start, self.end, self.busy = now, now + self.swapping + seconds, True
        self.version += 1
        return True

    def _prefill(self, admit: bool = True) -> list[list[Chunk]]:
        tokens, most = self.rules.max_tokens, self.rules.max_sequences if admit else 0
        beside = self.rules.policy == "mixed"
        found: list[list[Chunk]] = []
        for lane in self.lanes:
            if lane.waiting or lane.filling:
                budget = tokens - lane.count * self.rules.query_tokens if beside else tokens
                found.append(lane.schedule(budget, most - lane.count - len(lane.filling)))
            else:
                found.append([])
        return found if any(found) else []

    def _grow(self) -> None:
        """Take the blocks of the next decode step; preempt where there are not enough."""
        for lane in self.lanes:
            if not lane.count:
                continue
            while lane.short():
                request = lane.preempt()
                self.preemptions += 1
                self.short = True
                if request.swapped:
                    self.swapping += self.prices.swap(request.cached)
            lane.grow_to(1)

    def _batch(self) -> tuple[int, float]:
        """Rows of the fullest group, padded, and the mean context of so many that gives the tokens of the longest."""
        count, tokens = 0, 0.0
        for lane in self.lanes:
            count, tokens = max(count, lane.count), max(tokens, lane.tokens)
        batch = self.padded[count] if count < len(self.padded) else count
        return batch, tokens / batch

    def _step_seconds(self, decoding: bool) -> float:
        most, new, fullest = -1, 0, self.chunks[0]
        for chunks in self.chunks:
            here = 0
            for chunk in chunks:
                here += chunk.new
                if chunk.request.swapped:
                    self.swapping += self.prices.swap(chunk.request.cached)
            new += here
            if here > most:
                most, fullest = here, chunks
        pieces = [(c.cached, c.new) for c in fullest if c.new]
        rows = -(-new // len(self.lanes))
        if not decoding:
            return self.prices.mixed(0, 0.0, pieces, rows) if pieces else 0.0
        batch, context = self._batch()
        context += max(lane.count for lane in self.lanes) * self.rules.gain / batch
        return self.prices.mixed(batch, context, pieces, rows) if pieces else self.prices.decode(batch).at(context)

    def _series(self) -> Series:
        """The decode steps until a request ends, blocks run out, or another group has the most tokens."""
        lanes = self.lanes
        batch, context = self._batch()
        if len(lanes) == 1:  # what follows would find the same, in more time
            lane = lanes[0]
            steps = 1 if self.stepwise or self.short else lane.steps_that_fit(lane.rounds_left())
            return Series(self.prices.decode(batch), context, lane.count * self.rules.gain / batch, steps)
        steps = min(lane.rounds_left() for lane in lanes if lane.count)
        if self.stepwise or self.short:
            steps = 1
        longest = max(lanes, key=lambda lane: (lane.tokens, lane.count))
        for lane in lanes:
            if steps > 1 and lane.count:
                steps = lane.steps_that_fit(steps)
            if lane.count > longest.count:  # it will overtake the longest one
                steps = min(
                    steps, max(1, int((longest.tokens - lane.tokens) / self.rules.gain) // (lane.count - longest.count))
                )
        if steps == 1:
            growth = max(lane.tokens + lane.count * self.rules.gain for lane in lanes) / batch - context
        else:
            growth = longest.count * self.rules.gain / batch
        return Series(self.prices.decode(batch), context, growth, steps)

    def interrupt(self, now: float) -> bool:
        """Something that the scheduler may react to has come: end the series at the next boundary.

        Returns whether the end has moved.
        """
        series = self.series
        if not self.busy or series is None or series.steps == 1:
            return False
        begun = self.start + self.swapping
        return self._shorten(series.row.steps_until(series.context, series.growth, series.steps, now - begun))

    def _shorten(self, steps: int) -> bool:
        series = self.series
        if series is None or steps >= series.steps:
            return False
        self.series = series._replace(steps=steps)
        self.end = self.start + self.swapping + series.row.total(series.context, series.growth, steps)
        self.version += 1
        return True

    def catch_up(self, now: float) -> None:
        """Take the blocks of the decode steps that have begun by ``now``, so that the pools are those of this time."""
        if not self.busy or not self.decodes:
            return
        series, steps = self.series, 1
        if series is not None and series.steps > 1:
            begun = self.start + self.swapping
            steps = series.row.steps_until(series.context, series.growth, series.steps, now - begun)
        for lane in self.lanes:
            if lane.count:
                lane.grow_to(steps)

    def refit(self) -> bool:
        """Blocks were taken during a series: end it where they run out. Returns whether the end has moved."""
        if not self.busy or self.series is None:
            return False
        steps = self.series.steps
        return self._shorten(min(lane.steps_that_fit(steps) if lane.count else steps for lane in self.lanes))

    def complete(self, now: float) -> tuple[list[Request], list[Request]]:
        """End the step: requests that got their first token (or, sent on, their cache is ready), and answered ones."""
        first: list[Request] = []
        ended: list[Request] = []
        steps = self.series.steps if self.series else 1
        self.seconds_busy += now - self.start
        self.steps += steps
        if self.decodes:
            self._count_gaps(now)
            for lane in self.lanes:
                if lane.count:
                    lane.advance(steps)
                    for request in lane.ended():
                        self.depart(lane, request)
                        ended.append(request)
            self.last_step = now
        for lane, chunks in zip(self.lanes, self.chunks, strict=False):
            for chunk in chunks:
                self._progress(lane, chunk, now, first, ended)
            lane.tidy()
        self.swapping = 0.0
        self.busy, self.chunks, self.series = False, [], None
        return first, ended

    def _progress(self, lane: Lane, chunk: Chunk, now: float, first: list[Request], ended: list[Request]) -> None:
        """A chunk is done: the prompt goes on, or the request starts to decode."""
        request = chunk.request
        if request.swapped:
            request.swapped = False
        else:
            request.cached += chunk.new
            if request.cached < request.target:
                return
            lane.filling.popleft()
            lane.filled(request)
            request.generated += 1
            request.rounds = self.rules.steps(request.output - request.generated, request.index)
            if request.generated == 1:
                first.append(request)
            if not request.rounds:
                lane.free(request)
                self.depart(lane, request)
                ended.append(request)
                return
            if self.sends:
                lane.send_off(request)
                self.depart(lane, request)
                request.source = (self, lane)
                return
        lane.join(request)
        self.fresh.append((now, 1))

    def _count_gaps(self, now: float) -> None:
        """Times between tokens of the steps that end now."""
        running = 0
        for lane in self.lanes:
            running += lane.count
        self.largest = max(self.largest, running)
        series = self.series
        old = running
        if series is None or series.steps == 1:
            done = now
        else:
            begun = self.start + self.swapping
            done = begun + series.row.at(series.context + series.growth)
            low = series.row.at(series.context + 2 * series.growth)
            high = series.row.at(series.context + series.steps * series.growth)
            self.gaps.ramp(low, high, (series.steps - 1) * running)
        for since, count in self.fresh:
            self.gaps.add(done - since, count)
            old -= count
        self.fresh.clear()
        if old > 0:
            self.gaps.add(done - self.last_step, old)

    def held(self) -> Iterable[Request]:
        """Requests that wait or run here, for a run that is stopped."""
        for lane in self.lanes:
            yield from lane.waiting
            yield from lane.filling
            yield from (r for _, serial, r in lane.ends if serial == r.serial)


def _padding(sizes: list[int]) -> list[int]:
    """The batch that each number of sequences is padded to, up to the largest size."""
    found: list[int] = []
    for size in sizes:
        found += [size] * (size + 1 - len(found))
    return found
