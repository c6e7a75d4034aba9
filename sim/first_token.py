"""The time to the first token of a prompt: what the engine does around it, and its prefill in one step or in chunks.

With pipeline stages several chunks are in flight: a chunk enters a stage when it has left the stage before and the
chunk before it has left this stage, whose keys and values it needs.
"""

from __future__ import annotations

from collections.abc import Sequence

from sim.machine import Machine
from sim.placement import Placement
from sim.report import FirstTokenReport
from sim.step import Granularity
from sim.timing import WAITING, Timing
from sim.workload import Workload

FRONT_END = "front end"
CORES = ("core", "index")
"""Operations that are attention itself, and not its projections."""


def in_flight(jobs: Sequence[Sequence[float]]) -> float:
    """Seconds until the last job has passed all stages, each job and each stage in order.

    Parameters
    ----------
    jobs
        Seconds of each job in each stage.
    """
    free = [0.0] * len(jobs[0])
    for job in jobs:
        ready = 0.0
        for stage, seconds in enumerate(job):
            ready = free[stage] = max(ready, free[stage]) + seconds
    return free[-1]


def first_token(
    placement: Placement,
    machine: Machine,
    workload: Workload,
    usable_memory: float,
    granularity: Granularity,
) -> FirstTokenReport:
    """Run every step of a prefill."""
    jobs: list[list[float]] = []
    each: list[float] = []
    parts: dict[str, float] = {}
    attention = 0.0
    longest = max(workload.each, key=lambda g: g.length)
    for sequences in workload.steps:
        timing = Timing(placement, machine, workload, usable_memory, granularity, sequences)
        stages = [one.critical.seconds for one in timing.best.passes]
        jobs += [stages] * timing.micro_batches
        step = timing.step()
        each.append(step.seconds)
        for _ in range(timing.micro_batches):
            for one in timing.best.passes:
                lane = one.critical
                for cause, seconds in {**lane.causes, WAITING: lane.idle}.items():
                    parts[cause] = parts.get(cause, 0.0) + seconds
                attention += sum(s for name, s in lane.operations.items() if name.endswith(CORES))
    total = in_flight(jobs)
    serving = machine.serving
    before = serving.front_end + serving.front_end_per_token * longest.length
    falling = dict(sorted(parts.items(), key=lambda item: -item[1]))
    return FirstTokenReport(
        seconds=before + total,
        steps=len(jobs),
        new_tokens=longest.new,
        cached_tokens=longest.length - longest.new,
        first_step_seconds=each[0],
        last_step_seconds=each[-1],
        overlapped_seconds=max(0.0, sum(map(sum, jobs)) - total),
        attention_seconds=attention,
        parts={name: seconds for name, seconds in falling.items() if seconds > 0} | {FRONT_END: before},
    )
