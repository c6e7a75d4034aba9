"""What a replay says: of every layout as a whole, and of every request. Seconds, tokens, requests a second."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from pydantic import Field, PrivateAttr

from sim.noun import Noun
from sim.replays.loop import Log, Stream
from sim.replays.requests import Slo

PERCENTILES = (50, 90, 95, 99)
Array = np.ndarray[Any, np.dtype[Any]]


class Spread(Noun):
    """Percentiles of a time in seconds over requests; all 0 where there is none."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: Array) -> Spread:
        """Of an array of seconds."""
        if not len(values):
            return cls(mean=0, p50=0, p90=0, p95=0, p99=0, max=0)
        p = [float(x) for x in np.percentile(values, PERCENTILES)]
        return cls(mean=float(values.mean()), p50=p[0], p90=p[1], p95=p[2], p99=p[3], max=float(values.max()))


class Moment(Noun):
    """The queue at one time."""

    time_s: float
    waiting: int
    running: int
    kv_occupancy: float


class ReplayReport(Noun):
    """What one layout made of the stream."""

    tag: str
    gpus: int
    feasible: bool = True
    reasons: tuple[str, ...] = ()
    """Why it is not feasible."""
    requests: int = 0
    """That were answered and count (the warm-up does not)."""
    refused: int = 0
    """Longer than the cache of a group."""
    unfinished: int = 0
    """Not answered when the run was stopped."""
    duration_s: float = 0.0
    """From the first arrival to the last answer."""
    ttft_s: Spread = Spread.of(np.empty(0))
    tpot_s: Spread = Spread.of(np.empty(0))
    """Per request: seconds from its first to its last token, over the tokens between."""
    itl_s: Spread = Spread.of(np.empty(0))
    """Of all gaps between tokens, each to half a percent."""
    e2e_s: Spread = Spread.of(np.empty(0))
    requests_per_s: float = 0.0
    input_tokens_per_s: float = 0.0
    output_tokens_per_s: float = 0.0
    output_tokens_per_s_per_gpu: float = 0.0
    goodput: float | None = None
    """Requests a second that keep every limit of the SLO; none without an SLO."""
    good_share: float | None = None
    """Share of the requests that keep every limit."""
    slo_met: bool | None = None
    """Whether every limit is kept at the percentile of the SLO."""
    preemptions: int = 0
    prefix_hit_rate: float = 0.0
    """Prompt tokens found in the cache over all prompt tokens."""
    in_system: float = 0.0
    """Mean number of requests in the system."""
    utilisation: float = 0.0
    """Share of the time in which an engine runs a step, mean over instances by GPUs."""
    prefill_utilisation: float | None = None
    """The same of prefill instances, where there are any."""
    kv_tokens: int = 0
    """Tokens of cache of one attention group."""
    kv_peak: float = 0.0
    """Largest share of a group's KV blocks in use."""
    transferred_bytes: float = 0.0
    steps: int = 0
    largest_batch: int = 0
    """Requests that one instance decoded at once, at most, over all its groups."""
    stopped: bool = False
    interrupted: bool = False
    """Stopped from the keyboard."""
    wall_s: float = 0.0
    """Seconds that the simulation took; the only figure that differs from run to run."""
    queue: tuple[Moment, ...] = ()
    _log: Log | None = PrivateAttr(None)
    _stream: Stream | None = PrivateAttr(None)

    def rows(self) -> Iterator[dict[str, Any]]:
        """One dictionary per request that came, in the order of their numbers; none after pickling."""
        log, stream = self._log, self._stream
        if log is None or stream is None:
            return
        for i, (arrival, first, end) in enumerate(zip(log.arrival, log.first, log.end, strict=True)):
            if arrival != arrival:
                continue
            answered = end == end
            between = stream.outputs[i] - 1
            yield {
                "layout": self.tag,
                "request": i,
                "arrival_s": arrival,
                "input_tokens": stream.prompts[i],
                "output_tokens": stream.outputs[i],
                "ttft_s": first - arrival if first == first else None,
                "tpot_s": (end - first) / between if answered and between else None,
                "e2e_s": end - arrival if answered else None,
                "cached_tokens": log.hit[i],
                "preemptions": log.preemptions[i],
            }


class ReplayResult(Noun):
    """A stream replayed on every layout of a scenario."""

    scenario: str
    version: str
    layouts: tuple[ReplayReport, ...]
    findings: tuple[str, ...] = ()
    assumptions: dict[str, str] = Field(default_factory=dict)
    resolved: dict[str, Any] = Field(default_factory=dict)


def keeps(slo: Slo, ttft: Array, tpot: Array, e2e: Array) -> Array:
    """Which requests keep every limit."""
    good = np.ones(len(ttft), dtype=bool)
    for limit, values in ((slo.ttft, ttft), (slo.tpot, tpot), (slo.e2e, e2e)):
        if limit is not None:
            good &= values <= limit
    return good


def met(slo: Slo, ttft: Array, tpot: Array, e2e: Array) -> bool:
    """Whether each limit is kept at the percentile."""
    limits = ((slo.ttft, ttft), (slo.tpot, tpot), (slo.e2e, e2e))
    return bool(len(ttft)) and all(
        limit is None or np.percentile(values, slo.percentile) <= limit for limit, values in limits
    )
