"""The sequences of a step and the rows (tokens) that each rank works on: the identities behind ``Lane``'s counts."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from sim.cut import Cut, block
from sim.program import Chunk, Value
from sim.workload import Group, Sequences

Rows = np.ndarray[Any, np.dtype[np.int64]]


class Batch:
    """Sequences (by number) with their lengths after this step.

    Parameters
    ----------
    lengths
        Tokens in each cache when it is attended.
    new
        Tokens that each sequence adds in this step.
    prompts
        Sequences whose new tokens belong to a prompt.
    generated
        How many of each cache's tokens were generated, in decode.
    micro
        (index, of): which part of each group's sequences steps.
    """

    def __init__(
        self,
        cut: Cut,
        numbers: Sequence[int],
        lengths: dict[int, int],
        new: dict[int, int],
        prompts: Collection[int],
        generated: int,
        micro: tuple[int, int] = (0, 1),
    ):
        self.cut = cut
        self.numbers = list(numbers)
        self.lengths = lengths
        self.generated = generated
        self.new, self.prompts = new, frozenset(prompts)
        self.micro = micro
        stepping = sorted(n for group in range(cut.sequence_groups) for n in self.members(group))
        pairs = [(n, p) for n in stepping for p in range(lengths[n] - new[n], lengths[n])]
        self.sequence_of = np.array([n for n, _ in pairs], np.int64)
        self.position_of = np.array([p for _, p in pairs], np.int64)
        self._known: dict[Any, Rows] = {}

    @cached_property
    def sequences(self) -> Sequences:
        """All sequences of the replica as ``Lane`` counts them."""
        return Sequences(tuple(Group(1, self.lengths[n], self.new[n], n in self.prompts) for n in self.numbers))

    def seen(self, n: int, window: int | None) -> int:
        """Tokens that a sequence keeps: all, or those that a query of this step or the next one sees."""
        length = self.lengths[n]
        return min(length, window + (0 if n in self.prompts else self.new[n] - 1)) if window else length

    @cached_property
    def wanted(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Rows whose logits are wanted: all that decode, and the last of each prompt."""
        last = np.array([self.lengths[int(n)] - 1 for n in self.sequence_of], np.int64) == self.position_of
        decodes = np.array([int(n) not in self.prompts for n in self.sequence_of], np.bool_)
        found: np.ndarray[Any, np.dtype[np.bool_]] = last | decodes
        return found

    def members(self, group: int, chunk: Chunk = ()) -> list[int]:
        """The sequences of a group of ranks, dealt out in turn, or the part of them in ``chunk``."""
        dealt = self.numbers[group :: self.cut.sequence_groups]
        for index, of in (self.micro, *chunk):
            dealt = dealt[index::of] if of else [n for n in dealt if (n in self.prompts) == bool(index)]
        return dealt

    def rows(self, value: Value, rank: int) -> Rows:
        """Row numbers that ``value`` has on ``rank``, ascending."""
        mesh, split = self.cut.mesh, self.cut.sequence_axes
        own = all(axis in value.tokens for axis in split)
        group = mesh.index(rank, split) if own else -1
        sliced = tuple(a for a in value.tokens if a not in split)
        place = mesh.index(rank, sliced) if sliced else 0
        key = (group, value.chunk, sliced, place, value.per_sequence)
        if key not in self._known:
            groups = [group] if own else range(self.cut.sequence_groups)
            chosen = {n for g in groups for n in self.members(g, value.chunk)}
            rows = np.array([r for r, n in enumerate(self.sequence_of) if int(n) in chosen], np.int64)
            if value.per_sequence:
                rows = rows[self.wanted[rows]]
            if sliced:
                start, count = block(len(rows), place, mesh.count(sliced))
                rows = rows[start : start + count]
            self._known[key] = rows
        return self._known[key]
