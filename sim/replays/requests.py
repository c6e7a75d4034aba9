"""The ``requests`` of a scenario: who asks what and when; drawn from distributions with a seed, or read from a file."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import Field, model_validator

from sim.noun import Noun
from sim.replays.lengths import Array, Length
from sim.replays.loop import Router, Stream
from sim.replays.traces import FORMATS, Trace, read_trace
from sim.units import Count, Seconds
from sim.workload import Workload

MOST = 20_000_000


class Slo(Noun):
    """What a request must keep to count as good, and which share of the requests must."""

    ttft: Annotated[Seconds, Field(gt=0)] | None = None
    """Seconds to the first token, at most."""
    tpot: Annotated[Seconds, Field(gt=0)] | None = None
    """Seconds per token after the first one, at most."""
    e2e: Annotated[Seconds, Field(gt=0)] | None = None
    """Seconds to the last token, at most."""
    percentile: Annotated[float, Field(gt=0, lt=100)] = 95.0
    """Percent of requests that must keep each limit."""


class Requests(Noun):
    """A stream of requests.

    Either ``concurrency`` (a closed loop: the next request comes when one is answered), or ``rate`` with ``arrivals``,
    or a ``trace`` file, whose arrivals ``speed`` may compress.
    """

    count: Annotated[Count, Field(le=MOST)] | None = None
    """Requests in all; left out: 1,000, or all of a trace."""
    concurrency: Count | None = None
    rate: Annotated[float, Field(gt=0)] | None = None
    """Requests a second."""
    arrivals: Literal["poisson", "gamma", "constant", "burst", "ramp"] = "poisson"
    burstiness: Annotated[float, Field(gt=0)] = 1.0
    """Shape of ``gamma``: 1 is Poisson, less comes in bursts, more is smoother (as in vLLM's benchmark)."""
    burst: Count = 16
    """Requests that come together in ``burst``."""
    rate_end: Annotated[float, Field(gt=0)] | None = None
    """Rate at the end of a ``ramp``."""
    input: Length | None = None
    output: Length | None = None
    shared_prefix: Annotated[int, Field(ge=0)] = 0
    """Leading tokens of the prompt that all requests of one of ``prefixes`` have in common."""
    prefixes: Count = 1
    turns: Annotated[Count, Field(le=1000)] = 1
    """Requests of a conversation; each prompt holds all that was said before."""
    think: Seconds = 0.0
    """Seconds between an answer and the next turn."""
    trace: str | None = None
    format: str | None = None
    """Of the trace; left out, what the file looks like."""
    speed: Annotated[float, Field(gt=0)] = 1.0
    """How many times faster than recorded a trace arrives."""
    router: Router = "least_loaded"
    """How requests are dealt to replicas."""
    seed: Annotated[int, Field(ge=0)] = 0
    warmup: Annotated[int, Field(ge=0)] = 0
    """First requests that do not count in the results."""

    @model_validator(mode="after")
    def _consistent(self) -> Requests:
        if self.format is not None and self.format not in FORMATS:
            raise ValueError(f"{self.format!r} is not a format of a trace; choose one of {', '.join(FORMATS)}")
        if self.concurrency and self.rate:
            raise ValueError("says both concurrency (a closed loop) and rate (an open one); keep one of them")
        if self.trace is None and not (self.concurrency or self.rate):
            raise ValueError("needs concurrency, rate or trace; write for example rate: 10")
        if self.trace is None and (self.input is None or self.output is None):
            raise ValueError("needs the lengths input and output in tokens, or a trace")
        if self.arrivals == "ramp" and self.rate_end is None:
            raise ValueError("a ramp needs rate_end, the rate at its end")
        if self.turns > 1 and self.trace is not None:
            raise ValueError("turns are drawn; a trace has its own")
        if self.turns > 1 and self.concurrency:
            raise ValueError("turns follow each other by themselves; say the rate of conversations, not concurrency")
        return self


class Work(NamedTuple):
    """A stream and what is known of it."""

    stream: Stream
    longest: int
    """Tokens of the longest request, answer included."""
    mean_input: float
    mean_output: float


GRAIN = 512
"""Tokens of a prefix entry of drawn requests, as in Mooncake's traces."""


def typical(requests: Requests) -> Workload:
    """A decode step in the middle of these requests, for a scenario that says no workload of its own."""
    random = np.random.default_rng(requests.seed)
    mean = [
        float(length.draw(random, 1000).mean()) if length else 1024.0 for length in (requests.input, requests.output)
    ]
    return Workload(batch=requests.concurrency or 64, context=max(1, round(mean[0] + mean[1] / 2)))


def build(requests: Requests) -> Work:
    """Draw or read the requests.

    Raises
    ------
    InputError
        If a trace cannot be read, with the file and line of every bad row.
    """
    random = np.random.default_rng(requests.seed)
    trace = read_trace(Path(requests.trace), requests.format) if requests.trace else None
    count = requests.count or (len(trace.prompts) if trace else 1000)
    if trace:
        count = min(count, len(trace.prompts)) if requests.input is None else count
    prompts, outputs = _lengths(requests, trace, random, count)
    hashes: Callable[[int], tuple[Hashable, ...]] | None = None
    grain = 0
    follows: dict[int, tuple[int, float]] = {}
    if trace and trace.hashes:
        ids, grain = trace.hashes, trace.grain
        hashes = lambda i: ids[i % len(ids)]  # noqa: E731
    elif requests.turns > 1 or requests.shared_prefix:
        grain = GRAIN
        prompts, follows, hashes = _conversations(requests, random, prompts, outputs)
    arrivals = _arrivals(requests, trace, random, count)
    if follows:
        later = {index for index, _ in follows.values()}
        arrivals = np.where(np.isin(np.arange(count), list(later)), np.nan, arrivals)
    lists = (arrivals.tolist(), prompts.tolist(), outputs.tolist())
    stream = Stream(*lists, hashes, follows, requests.concurrency or 0, grain)
    return Work(stream, int((prompts + outputs).max()), float(prompts.mean()), float(outputs.mean()))


def _lengths(requests: Requests, trace: Trace | None, random: np.random.Generator, count: int) -> tuple[Array, Array]:
    found = []
    for length, known in ((requests.input, trace and trace.prompts), (requests.output, trace and trace.outputs)):
        if length is not None:
            found.append(length.draw(random, count))
        else:
            found.append(np.resize(np.array(known, dtype=np.int64), count))
    return found[0], found[1]


def _arrivals(requests: Requests, trace: Trace | None, random: np.random.Generator, count: int) -> Array:
    """Seconds of each arrival, increasing; of a closed loop they come out of the run."""
    if requests.concurrency:
        return np.full(count, np.nan)
    if trace and trace.arrivals and not requests.rate:
        return np.array(trace.arrivals[:count], dtype=float) / requests.speed
    rate = requests.rate or 1.0
    number = np.arange(count)
    if requests.arrivals == "constant":
        return number / rate
    if requests.arrivals == "burst":
        return (number // requests.burst) * (requests.burst / rate)
    if requests.arrivals == "ramp":
        ends = (rate, requests.rate_end or rate)
        rates = ends[0] + (ends[1] - ends[0]) * number / max(count - 1, 1)
        return np.cumsum(random.exponential(1.0, count) / rates)
    shape = requests.burstiness if requests.arrivals == "gamma" else 1.0
    return np.cumsum(random.gamma(shape, 1.0 / (rate * shape), count))


def _conversations(
    requests: Requests, random: np.random.Generator, prompts: Array, outputs: Array
) -> tuple[Array, dict[int, tuple[int, float]], Any]:
    """Prompts that begin with what was said before, the turns that follow each other, and their prefix entries."""
    count, turns = len(prompts), requests.turns
    group = random.integers(0, requests.prefixes, count)
    follows: dict[int, tuple[int, float]] = {}
    new = np.maximum(prompts, 1)
    whole = new.copy()
    sessions = -(-count // turns)
    session = np.arange(count) % sessions
    for i in range(count):
        before = i - sessions
        if before >= 0:
            whole[i] = whole[before] + outputs[before] + new[i]
            follows[before] = (i, requests.think)
    group = group[session]
    common = requests.shared_prefix // GRAIN
    lengths, of, groups = whole.tolist(), session.tolist(), group.tolist()

    def hashes(i: int) -> tuple[Hashable, ...]:
        entries = lengths[i] // GRAIN
        shared = tuple((-1 - groups[i], n) for n in range(min(common, entries)))
        return shared + tuple((of[i], n) for n in range(len(shared), entries))

    return whole, follows, hashes
