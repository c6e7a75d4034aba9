"""What one lane did in a pass over a stage, second by second: by operation, and by what bounds it."""

from __future__ import annotations

from dataclasses import dataclass, field

from sim.engine import Exposed
from sim.schedule import Pattern, Track

SLOWED = "a GPU that was slowed"


@dataclass(slots=True)
class LaneTotals:
    """What one lane did in one pass over a stage, in seconds."""

    seconds: float = 0.0
    busy: float = 0.0
    compute_floor: float = 0.0
    communication_floor: float = 0.0
    operations: dict[str, float] = field(default_factory=dict)
    """Compute time and exposed communication by operation; together with ``idle`` they add up to ``seconds``."""
    idle: float = 0.0
    """Waiting until slower ranks had come."""
    causes: dict[str, float] = field(default_factory=dict)
    """The same time by what bounds it: KV reads, weight reads, compute, kernel overhead (what does not shrink with the
    work), or a collective."""
    sent: dict[str, float] = field(default_factory=dict)
    """Bytes sent by operation."""

    @property
    def floor(self) -> float:
        """Neither stream can be faster than its own floor."""
        return max(self.compute_floor, self.communication_floor)


def add_compute(lane: LaneTotals, part: Track, count: int) -> None:
    """Add a segment's computing, its floors and its bytes, ``count`` times."""
    for price in part.prices:
        if price.cost is not None and price.work is not None:
            cost, work = price.cost, price.work
            lane.busy += count * cost.seconds
            lane.compute_floor += count * cost.floor
            lane.operations[price.name] = lane.operations.get(price.name, 0.0) + count * cost.seconds
            causes = lane.causes
            fixed = "host" if work.family == "host" else "kernel overhead"
            causes[fixed] = causes.get(fixed, 0.0) + count * cost.fixed
            if cost.compute > cost.memory:
                causes["compute"] = causes.get("compute", 0.0) + count * cost.compute
            elif cost.memory > 0:
                moved = work.weight_bytes + work.kv_bytes + work.io_bytes
                for cause, size in (
                    ("weight reads", work.weight_bytes),
                    ("KV reads", work.kv_bytes),
                    ("activation traffic", work.io_bytes),
                ):
                    if size:
                        causes[cause] = causes.get(cause, 0.0) + count * cost.memory * size / moved
        elif price.meeting is not None:
            lane.communication_floor += count * price.meeting.floor
            lane.sent[price.name] = lane.sent.get(price.name, 0.0) + count * price.meeting.message.sent


def add_slowed(lane: LaneTotals, seconds: float) -> None:
    """Add what changes of its speed have cost a lane."""
    if seconds:
        lane.busy += seconds
        for part in (lane.operations, lane.causes):
            part[SLOWED] = part.get(SLOWED, 0.0) + seconds


def add_exposed(
    lane: LaneTotals, pattern: Pattern, exposed: dict[tuple[int, int], Exposed], entry: Pattern | None, n: float
) -> None:
    """Add what a lane waited for, by operation; a carried value belongs to the segment before."""
    for (_, slot), wait in exposed.items():
        if slot >= 0:
            name = pattern.ops[slot].name
        else:
            made = entry.exits[-1 - slot] if entry else None
            name = entry.ops[made].name if entry and made is not None and made >= 0 else "communication"
        own = (wait.waited - wait.idle) * n
        lane.operations[name] = lane.operations.get(name, 0.0) + own
        cause = name.rpartition(".")[2].replace("_", "-")
        lane.causes[cause] = lane.causes.get(cause, 0.0) + own
        lane.idle += wait.idle * n


def tail(lane: LaneTotals, seconds: float) -> None:
    """A last collective that nothing waits for."""
    lane.operations["communication"] = lane.operations.get("communication", 0.0) + seconds
    lane.causes["communication"] = lane.causes.get("communication", 0.0) + seconds
