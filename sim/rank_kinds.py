"""Ranks that hold the same: their memory at any batch and context."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from sim.lane import Lane
from sim.memory import ActivationProfile
from sim.workload import Sequences

if TYPE_CHECKING:
    from sim.evaluate import Evaluation


class RankKind:
    """The memory of one class of ranks."""

    def __init__(self, evaluation: Evaluation, stage: int, ranks: tuple[int, ...], busy: float):
        self.evaluation, self.stage, self.ranks = evaluation, stage, ranks
        self.busy = busy
        """Seconds of computing in one pass of a micro-batch."""
        self.weights = evaluation.placement.weights(stage, ranks[0])
        self.weight_bytes = sum(self.weights.values())

    @cached_property
    def _profile(self) -> ActivationProfile:
        e = self.evaluation
        return ActivationProfile(e.program, e.lane(self.ranks[0], e.replica))

    def activations(self, lane: Lane) -> int:
        """Peak activation bytes; every micro-batch in flight has its own."""
        return int(self._profile.bytes(lane))

    def total(self, sequences: Sequences) -> int:
        """All memory of one of these ranks."""
        e = self.evaluation
        lane = e.lane(self.ranks[0], sequences)
        used = self.weight_bytes + e.placement.kv_bytes(self.stage, lane) + self.activations(lane)
        used += e.draft_bytes(self.stage, self.ranks[0], sequences)
        return int(used + e.buffers.bytes(lane) + e.reserve)


def ranges(numbers: list[int]) -> str:
    """Numbers as people write them: ``0-3,8``."""
    parts: list[str] = []
    start = previous = None
    for number in [*sorted(numbers), None]:
        if start is not None and previous is not None and number == previous + 1:
            previous = number
            continue
        if start is not None:
            parts.append(str(start) if start == previous else f"{start}-{previous}")
        start = previous = number
    return ",".join(parts)
