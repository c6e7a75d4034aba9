"""Seconds of the steps of a layout, tabulated so that a replay can ask for millions of them.

* Decode: one row per batch, linear in the mean context between knots. Knots are added until the middle between any two
  is within ``BOUND`` of the sweep, so the table is known to that.
* Prefill: every length of a prompt by itself, in blocks as they are needed, exactly as the sweep prices it.
* A mixed step, in one place (``mixed``): the linear part of prompts and decodes together once, then the attention of
  each. The attention of a prompt is its part that grows with the square of the length, which three lengths give.
  Pricing such a step by running it takes milliseconds, and a replay asks for a different one every time; the tests hold
  both within 5 % of each other.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any

import numpy as np

from sim.drafting import Drafting
from sim.errors import InputError
from sim.lane import Lane
from sim.machine import Machine
from sim.placement import Placement
from sim.replays.series import Row
from sim.speculation import Speculation
from sim.sweep import sweep
from sim.workload import Sequences, Workload

BOUND = 1e-3
"""Largest relative error of a tabulated decode step at the middle of two knots."""
MOST_ROUNDS = 8
BATCHES = 64
"""Batches that are tabulated together."""
LENGTHS = 4096
"""Lengths of prompts that are tabulated together."""
SQUARE = 4096
"""Tokens of the shortest of the three prompts that give the cost of attention."""

Table = np.ndarray[Any, np.dtype[Any]]


class StepPrices:
    """Steps of one instance of a layout.

    Parameters
    ----------
    placement
        Model, strategy and formats; the strategy's replicas are not counted.
    machine
        Kernels and collectives.
    longest
        Tokens of the longest context that will be asked for.
    batches
        Padded decode batches up to the largest one; beyond it, and where there are none, every batch has its own row.
    drafts
        What is drafted in every decode step. The time of the draft is taken at the shortest and the longest context,
        and as linear between them.
    """

    def __init__(
        self,
        placement: Placement,
        machine: Machine,
        longest: int,
        batches: Iterable[int] = (),
        drafts: Speculation | None = None,
    ):
        query = 1 + drafts.draft_tokens if drafts else 1
        self.placement, self.machine, self.longest = placement, machine, max(longest, 4 * query)
        self.query = query
        self.drafting = Drafting(drafts, placement, machine) if drafts else None
        self.groups = placement.cut.sequence_groups
        self.padded = sorted(batches)
        self._rows: dict[int, Row] = {}
        self._prompts: dict[int, list[float]] = {}
        self.bound = 0.0
        """Largest relative error found at the middles of the final knots."""

    # -- decode ------------------------------------------------------------------------------------------------

    def decode(self, batch: int) -> Row:
        """Seconds of a decode step of ``batch`` sequences in every group, over the mean context."""
        row = self._rows.get(batch)
        if row is None:
            self._tabulate(self._together(batch))
            row = self._rows[batch]
        return row

    def _together(self, batch: int) -> list[int]:
        """Batches that are tabulated along with one: the padded ones, or its neighbours."""
        if batch in self.padded:
            return self.padded
        first = (batch - 1) // BATCHES * BATCHES + 1
        return [*range(first, first + BATCHES)]

    def _seconds(self, batches: list[int], contexts: Table) -> Table:
        """One row per batch, one column per context."""
        grid = np.meshgrid(np.array(batches) * self.groups, contexts, indexing="ij")
        found = sweep(self.placement, self.machine, grid[0].ravel(), grid[1].ravel(), self.query)
        return found.seconds.reshape(len(batches), len(contexts))

    def _tabulate(self, batches: list[int]) -> None:
        count = max(4, int(2 * np.log2(self.longest)))
        knots = np.unique(np.geomspace(self.query, self.longest, count).astype(np.int64))
        values = self._seconds(batches, knots)
        for _ in range(MOST_ROUNDS):
            middles = (knots[:-1] + knots[1:]) // 2
            wanted = middles > knots[:-1]
            middles = middles[wanted]
            if not len(middles):
                break
            true = self._seconds(batches, middles)
            low, high = knots[:-1][wanted], knots[1:][wanted]
            share = (middles - low) / (high - low)
            line = values[:, :-1][:, wanted] * (1 - share) + values[:, 1:][:, wanted] * share
            error = np.abs(line / true - 1).max(axis=0)
            bad = error > BOUND
            if not bad.any():
                self.bound = max(self.bound, float(error.max()))
                break
            order = np.argsort(np.concatenate([knots, middles[bad]]))
            knots = np.concatenate([knots, middles[bad]])[order]
            values = np.concatenate([values, true[:, bad]], axis=1)[:, order]
        places = [float(x) for x in knots]
        for batch, row in zip(batches, values, strict=True):
            self._rows[batch] = Row(places, (row + self._drafted(batch, knots)).tolist())

    def _drafted(self, batch: int, contexts: Table) -> Table | float:
        """Seconds of all drafts of a step, over the context."""
        if self.drafting is None or self.drafting.model is None:
            return 0.0
        ends = [
            self.drafting.seconds(Workload(batch=batch * self.groups, context=int(c), query_tokens=self.query))
            for c in (contexts[0], contexts[-1])
        ]
        return (self.query - 1) * np.interp(contexts, [contexts[0], contexts[-1]], ends)

    # -- prefill -----------------------------------------------------------------------------------------------

    def prompt(self, tokens: int) -> float:
        """Seconds to prefill one prompt of so many tokens in every group, alone."""
        if "prefill" not in self.placement.strategy.phases:
            name = self.placement.strategy.label
            raise InputError(f"{name} only decodes; give it prefill workers: disaggregation: {{prefill: {{...}}}}")
        block = (tokens - 1) // LENGTHS
        known = self._prompts.get(block)
        if known is None:
            lengths = np.arange(block * LENGTHS + 1, (block + 1) * LENGTHS + 1)
            known = sweep(self.placement, self.machine, self.groups, lengths, phase="prefill").seconds.tolist()
            self._prompts[block] = known
        return known[(tokens - 1) % LENGTHS]

    @cached_property
    def pair(self) -> float:
        """Seconds of prefill attention per (query, key) pair: the second difference leaves only what is quadratic."""
        one, two, three = (self.prompt(n * SQUARE) for n in (1, 2, 3))
        return max(0.0, (three - 2 * two + one) / SQUARE**2)

    # -- both --------------------------------------------------------------------------------------------------

    def mixed(self, batch: int, context: float, chunks: list[tuple[int, int]], rows: int) -> float:
        """Seconds of a step of (cached, new) chunks in the fullest group and of ``batch`` decodes (or none) in each.

        Linear layers run all rows together, ``rows`` new tokens in the mean group, and weights are read once; attention
        of prompts and of decodes comes on top: that of a chunk is half of its own square and its rectangle with what is
        cached. The group with most new tokens sets the time of attention, all groups together that of the FFN.
        """
        rows += batch * self.query
        if not batch and len(chunks) == 1 and not chunks[0][0] and chunks[0][1] == rows:
            return self.prompt(rows)
        pairs = 0.0
        for cached, new in chunks:
            pairs += (cached + new / 2) * new
        linear = max(self.prompt(rows) - self.pair * rows * rows / 2, 0.0)
        if not batch:
            return linear + self.pair * pairs
        row = self.decode(batch)
        alone = row.at(1.0)
        return max(linear, alone) + self.pair * pairs + row.at(context) - alone

    def swap(self, tokens: int) -> float:
        """Seconds to move a cache between GPU and host; each GPU moves its own share over PCIe."""
        rate = self.machine.kernels.gpu.pcie_bandwidth
        return float(tokens * self.bytes_per_token / rate)

    @cached_property
    def bytes_per_token(self) -> float:
        """Cache of one token on the fullest rank."""
        sequences = Sequences.even(self.groups, SQUARE)
        lanes = [Lane(0, self.placement.cut, sequences, self.placement.precision)]
        held = max(
            self.placement.kv_bytes(stage, lane) for stage in range(len(self.placement.stages)) for lane in lanes
        )
        return float(held / SQUARE)
