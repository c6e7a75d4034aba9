"""Runs a layout's own program on simulated ranks: the same operations that are timed, with real arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from sim.cut import Cut
from sim.handover import handover
from sim.lower import lower
from sim.ops_communication import Send
from sim.ops_compute import Sample
from sim.placement import Placement
from sim.program import Alias, CommunicationOp, ComputeOp, Program, Segment, Value
from sim.proof.batch import Batch, Rows
from sim.proof.communicate import communicate
from sim.proof.compute import compute
from sim.proof.weights import Array, Weights
from sim.proof.world import Piece, ProofError, Rank, World
from sim.strategy import Strategy
from sim.workload import Phase, Precision

Watch = Callable[[Rank, int, Rows, Array], None]


class Execution:
    """One replica of a layout: ranks of every stage with their weights and caches.

    Parameters
    ----------
    placement
        The small model under the strategy.
    cut
        The strategy's cut, with short token blocks.
    weights
        The whole model's weights, of which each rank gets its slices.
    phase, pieces, precision
        As the layout is timed.
    """

    def __init__(
        self, placement: Placement, cut: Cut, weights: Weights, phase: Phase, pieces: int, precision: Precision
    ):
        self.placement, self.cut, self.weights, self.precision = placement, cut, weights, precision
        self.strategy: Strategy = placement.strategy
        self.phase = phase
        self.program: Program = lower(placement.model, self.strategy, phase, pieces)
        self.stages = [[Rank(s, r, cut) for r in range(cut.mesh.size)] for s in range(self.strategy.pp)]
        self.layers: list[list[int]] = []
        first = 0
        for runs in placement.stages:
            count = sum(n for n, _ in runs)
            self.layers.append(list(range(first, first + count)))
            first += count
        for stage, ranks in enumerate(self.stages):
            for number in (-1, *self.layers[stage]):
                for name in self.names(stage, number):
                    for rank in ranks:
                        if held := weights.cut(cut, number, name, rank.number):
                            rank.weights[number, name] = held

    def names(self, stage: int, number: int) -> Sequence[str]:
        """Weights of a layer (-1: outside the layers) that a stage holds."""
        if number >= 0:
            return [name for n, name in weights_of(self.weights) if n == number]
        return list(dict.fromkeys(h.tensor.name for h in self.placement.held(stage) if h.tensor.part == "embeddings"))

    def step(self, batch: Batch, ids: Rows, watch: Watch) -> dict[tuple[int, int], tuple[Rows, Array]]:
        """One step of one micro-batch through all stages; returns (stage, rank) -> rows and logits.

        ``watch`` is called with every rank's hidden states after every layer.
        """
        self.worlds: list[World] = []
        for stage, ranks in enumerate(self.stages):
            world = World(self.cut, self.weights, ranks, batch, self.precision, ids=ids)
            self.worlds.append(world)
            for rank in ranks:
                rank.values.clear()
            if stage == 0:
                self._segment(world, self.program.begin)
                carried = self.program.begin.exit
            else:
                carried = self._receive(world, self.worlds[stage - 1], carried)
            for number in self.layers[stage]:
                world.layer = number
                segment = self.program.layers[self.weights.layers[number]]
                carried = self._inside(world, segment, carried)
                for rank in ranks:
                    if rank.has(carried[0].only):
                        y, residual = (rank.get(v) for v in carried)
                        watch(rank, number, y.rows, y.array + residual.array)
            world.layer = -1
        self._inside(world, self.program.end, carried)
        logits = next(op.inputs[0] for op in self.program.end.ops if isinstance(op, Sample))
        return {
            (self.strategy.pp - 1, rank.number): (piece.rows, piece.array)
            for rank in self.stages[-1]
            if (piece := rank.values.get((logits.name, logits.chunk)))
        }

    def _inside(self, world: World, segment: Segment, carried: tuple[Value, ...]) -> tuple[Value, ...]:
        """Run a segment on what the one before hands on."""
        for rank in world.ranks:
            given = [rank.values[v.name, v.chunk] for v in carried if (v.name, v.chunk) in rank.values]
            rank.values = {(v.name, v.chunk): piece for v, piece in zip(segment.entry, given, strict=False)}
        self._segment(world, segment)
        return segment.exit

    def _receive(self, world: World, before: World, carried: tuple[Value, ...]) -> tuple[Value, ...]:
        """Hand the carried values to the next stage."""
        segment = handover(self.cut, self.program.end.entry)
        send = segment.ops[0]
        assert isinstance(send, Send)
        for source, target in zip(before.ranks, world.ranks, strict=True):
            if not source.has(send.only):
                continue
            sent = 0
            for value, made in zip(carried, send.outputs, strict=True):
                piece = source.get(value)
                start, count = self.cut.range(made.dims[0], source.number)
                array = piece.array[:, start : start + count].copy()
                sent += array.size
                world.put(send, target, made, Piece(array, piece.rows, ((start, count),)))
            target.sent[send.name] = target.sent.get(send.name, 0) + sent * world.precision.activation_bytes
        self._segment(world, Segment(segment.ops[1:], (), ()))
        return segment.exit

    def _segment(self, world: World, segment: Segment) -> None:
        for op in segment.ops:
            if isinstance(op, Alias):
                for rank in world.ranks:
                    _alias(op, rank, world)
            elif isinstance(op, CommunicationOp):
                communicate(op, world)
            elif isinstance(op, ComputeOp):
                for rank in world.ranks:
                    if rank.has(op.only):
                        compute(op, rank, world)


def weights_of(weights: Weights) -> list[tuple[int, str]]:
    """Every (layer, name)."""
    return list(weights.arrays)


def _alias(op: Alias, rank: Rank, world: World) -> None:
    """Pieces of a batch, slices of what is held, and what a step starts from; no data moves."""
    if not op.inputs:
        (value,) = op.outputs
        if not rank.has(value.only):
            return
        rows = world.batch.rows(value, rank.number)
        ranges = tuple(world.cut.range(dim, rank.number) for dim in value.dims)
        if value.dims[0].role == "id":
            array = world.ids[rows][:, None].astype(np.float64)
        else:
            array = np.zeros((len(rows), *(count for _, count in ranges)))
        world.put(op, rank, value, Piece(array, rows, ranges))
        return
    if not rank.has(op.inputs[0].only):
        return
    parts = [rank.get(v) for v in op.inputs]
    rows = np.concatenate([p.rows for p in parts])
    array = np.concatenate([p.array for p in parts])
    place = {int(r): i for i, r in enumerate(rows)}
    for value in op.outputs:
        wanted = world.batch.rows(value, rank.number)
        if missing := [int(r) for r in wanted if int(r) not in place]:
            raise ProofError(f"rank {rank.number}, {op.name}: row {missing[0]} is not held")
        world.put(op, rank, value, Piece(array[[place[int(r)] for r in wanted]], wanted, parts[0].ranges))
