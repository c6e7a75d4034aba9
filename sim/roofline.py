"""The roofline view of a step: FLOPs, bytes, intensity and side of the ridge, by operation, by block, and in all.

The ridge point of an operation is the data-sheet FLOP/s of the format that it multiplies in, over the data-sheet
bandwidth. A sum over operations of several formats has the ridge of their mean rate: its FLOPs over the time that
computing them would take. Figures are those of the rank that ends last, without communication.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from sim.evaluate import Evaluation
from sim.formats import number_format
from sim.noun import Noun
from sim.program import ComputeOp
from sim.report import Tagged


class RooflineRow(Noun):
    """One operation in all layers, one block of all layers, or the whole step of one rank."""

    name: str
    level: Literal["operation", "block", "step"]
    flops: float
    weight_bytes: float
    kv_bytes: float
    io_bytes: float
    intensity: float
    """FLOPs per byte."""
    kv_intensity: float | None = None
    """FLOPs per byte of the cache, of operations that read it."""
    ridge: float
    """FLOPs per byte at which the GPU's peak and its bandwidth take the same time."""
    bound: Literal["compute", "memory"]
    floor_seconds: float
    """At data-sheet peak or bandwidth."""
    seconds: float
    """As simulated, fixed costs included."""


class LayoutRoofline(Tagged):
    """One layout: its operations in the order of the program, its blocks, and the step."""

    rows: tuple[RooflineRow, ...]


class RooflineReport(Noun):
    """The roofline view of a scenario."""

    scenario: str
    version: str
    layouts: tuple[LayoutRoofline, ...]


class _Sum(NamedTuple):
    """Additive figures of one operation or of several."""

    flops: float
    weight: float
    kv: float
    io: float
    compute: float
    """Seconds at data-sheet peak."""
    floor: float
    seconds: float

    def plus(self, other: _Sum) -> _Sum:
        return _Sum(*(a + b for a, b in zip(self, other, strict=True)))


def roofline(evaluation: Evaluation) -> LayoutRoofline:
    """The rows of one layout."""
    operations: dict[str, _Sum] = {}
    for name, one in _operations(evaluation):
        operations[name] = operations[name].plus(one) if name in operations else one
    blocks: dict[str, _Sum] = {}
    for name, one in operations.items():
        block = name.partition(".")[0]
        blocks[block] = blocks[block].plus(one) if block in blocks else one
    bandwidth = evaluation.machine.kernels.gpu.bandwidth
    whole = _total(operations.values())
    rows = [
        *(_row(name, "operation", one, bandwidth) for name, one in operations.items()),
        *(_row(name, "block", one, bandwidth) for name, one in blocks.items()),
        _row("step", "step", whole, bandwidth),
    ]
    return LayoutRoofline(tag=evaluation.strategy.label, rows=tuple(rows))


def _operations(evaluation: Evaluation) -> Iterator[tuple[str, _Sum]]:
    """Every compute operation of every stage with work on the GPU, as often as there are layers."""
    best, kernels = evaluation.best, evaluation.machine.kernels
    for stage, one in enumerate(best.passes):
        model = evaluation.stage_model(stage, 0, best.pieces, best.order)
        rank = one.classes.representatives[one.lanes.index(one.critical)]
        lane = model.lane(rank)
        for count, pattern in model.patterns():
            for op in pattern.ops:
                here = all(model.cut.mesh.coordinate(rank, axis) == at for axis, at in op.only)
                if not isinstance(op, ComputeOp) or not here:
                    continue
                work = op.work(lane)
                if work.family == "host":
                    continue
                cost = kernels.cost(work)
                compute = work.flops / kernels.gpu.matrix_rate(number_format(work.format).rate)
                figures = (work.flops, work.weight_bytes, work.kv_bytes, work.io_bytes, compute, cost.floor)
                yield op.name, _Sum(*(count * float(x) for x in (*figures, cost.seconds)))


def _total(sums: Iterable[_Sum]) -> _Sum:
    total = _Sum(*[0.0] * len(_Sum._fields))
    for one in sums:
        total = total.plus(one)
    return total


def _row(name: str, level: Literal["operation", "block", "step"], one: _Sum, bandwidth: float) -> RooflineRow:
    moved = one.weight + one.kv + one.io
    ridge = one.flops / one.compute / bandwidth if one.compute else 0.0
    intensity = one.flops / moved if moved else 0.0
    return RooflineRow(
        name=name,
        level=level,
        flops=one.flops,
        weight_bytes=one.weight,
        kv_bytes=one.kv,
        io_bytes=one.io,
        intensity=intensity,
        kv_intensity=one.flops / one.kv if one.kv and one.flops else None,
        ridge=ridge,
        bound="compute" if one.flops and intensity > ridge else "memory",
        floor_seconds=one.floor,
        seconds=one.seconds,
    )
