"""Classes of equal ranks: one representative runs for all of them.

Two ranks are equal when every figure that any operation asks for is the same on both, the same operations run on
both, and their groups, over every set of axes that the program communicates on, sit alike on the fabric and meet the
same classes. The last condition is refined until nothing changes (colour refinement), so folding is exact; a
layout whose ranks all differ is simply not folded.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

import numpy as np

from sim.cut import Cut, Dim
from sim.lane import Lane
from sim.model import Attention
from sim.ops_compute import Experts
from sim.program import Chunk, CommunicationOp, Program, Value

Shape = Callable[[tuple[int, ...]], Hashable]


class Classes(NamedTuple):
    """``of[rank]`` is the class of a rank; ``members[class]`` its ranks, the first one stands for all."""

    of: tuple[int, ...]
    members: tuple[tuple[int, ...], ...]

    @property
    def representatives(self) -> tuple[int, ...]:
        """One rank per class."""
        return tuple(m[0] for m in self.members)


def unfolded(size: int) -> Classes:
    """Every rank its own class."""
    return Classes(tuple(range(size)), tuple((r,) for r in range(size)))


class Questions(NamedTuple):
    """What the operations of a program ask of a rank, apart from its number."""

    rows: tuple[Value, ...]
    dims: tuple[Dim, ...]
    attentions: tuple[Attention, ...]
    chunks: tuple[Chunk, ...]
    only: tuple[tuple[str, int], ...]
    groups: tuple[tuple[str, ...], ...]


def questions(program: Program, cut: Cut) -> Questions:
    """Collect them from every value and operation."""
    rows: dict[tuple[object, ...], Value] = {}
    dims: dict[tuple[object, ...], Dim] = {}
    attentions = tuple({layer.attention: None for layer in program.layers if layer.attention})
    for attention in attentions:
        heads = cut.dim("kv_heads", attention.cached_heads, attention)
        if heads.axes:
            dims[heads[1:]] = heads
    only: dict[tuple[str, int], None] = {}
    groups: dict[tuple[str, ...], None] = {}
    for segment in program.segments:
        for op in segment.ops:
            for value in op.outputs:
                rows.setdefault((value.tokens, value.chunk, value.per_sequence), value)
                for dim in value.dims:
                    if dim.axes and dim[1:] not in dims:
                        dims[dim[1:]] = dim
            only.update(dict.fromkeys(op.only))
            if isinstance(op, Experts):
                sizes = (cut.dim("experts", op.ffn.experts), cut.dim("expert_ffn", op.ffn.width))
                dims.update((d[1:], d) for d in sizes if d.axes)
            if isinstance(op, CommunicationOp):
                groups.setdefault(op.axes)
    chunks = tuple(dict.fromkeys(value.chunk for value in rows.values()))
    return Questions(tuple(rows.values()), tuple(dims.values()), attentions, chunks, tuple(only), tuple(groups))


def _signature(answer: object) -> Hashable:
    """A figure as something to compare; arrays (one entry per point of a sweep) are equal if all points are."""
    if isinstance(answer, int):
        return answer
    if isinstance(answer, np.ndarray):
        return answer.tobytes()
    if isinstance(answer, tuple):
        return tuple(map(_signature, answer))
    assert isinstance(answer, Hashable)
    return answer


def classify(
    asked: Questions,
    cut: Cut,
    lane: Callable[[int], Lane],
    shape: Shape,
    more: Sequence[Sequence[Hashable]] = (),
) -> Classes:
    """Classes of the ranks of one stage.

    Parameters
    ----------
    asked
        What the program asks.
    lane
        The figures of a rank.
    shape
        How a group of ranks sits on the fabric; equal shapes cost the same.
    more
        Further figures, one entry per rank each.
    """
    mesh, size = cut.mesh, cut.mesh.size
    columns: list[list[Hashable]] = [list(c) for c in more if len(set(c)) > 1]

    def column(axes: tuple[str, ...], answer: Callable[[Lane], object]) -> None:
        """Ask one rank per coordinate on ``axes``, on which alone the answer depends."""
        table: dict[int, Hashable] = {}
        index = [mesh.index(rank, axes) for rank in range(size)]
        for rank in range(size):
            if index[rank] not in table:
                table[index[rank]] = _signature(answer(lane(rank)))
        if len(set(table.values())) > 1:
            columns.append([table[i] for i in index])

    def falls(axes: tuple[str, ...], answer: Callable[[Lane], object]) -> None:
        """As ``column`` for an answer that never rises with the coordinate: equal ends mean that all are equal."""
        if axes and _signature(answer(lane(0))) != _signature(answer(lane(size - 1))):
            column(axes, answer)

    split = cut.sequence_axes
    even = lane(0).even
    by_group = falls if even else column
    for value in asked.rows:
        if axes := tuple(dict.fromkeys(split + value.tokens)):
            by_group(axes, lambda k, v=value: k.rows(v))  # type: ignore[misc]
    if cut.kv_axes or (split and not even):
        windows = tuple(dict.fromkeys(a.window for a in asked.attentions))
        chunked = tuple(a for a in asked.attentions if a.chunked)
        column(
            split + cut.kv_axes,
            lambda k: (
                tuple(_cache(k, w, c) for w in windows for c in asked.chunks),
                tuple(k.read_tokens(a, c) for a in chunked for c in asked.chunks),
            ),
        )
    for dim in asked.dims:
        if _uneven(dim, mesh.count(dim.axes)):
            column(dim.axes, lambda k, d=dim: k.size(d))  # type: ignore[misc]
    for axis, at in asked.only:
        columns.append([mesh.coordinate(rank, axis) == at for rank in range(size)])
    for axes in asked.groups:
        shapes = {group: shape(group) for group in mesh.groups(axes)}
        if len(set(shapes.values())) > 1:
            columns.append([shapes[mesh.group(rank, axes)] for rank in range(size)])
    if not columns:
        return Classes((0,) * size, (tuple(range(size)),))
    return _refine(list(zip(*columns, strict=True)), [[mesh.group(r, g) for r in range(size)] for g in asked.groups])


def _cache(lane: Lane, window: int | None, chunk: Chunk) -> object:
    """What a rank reads from its cache and writes to it."""
    return lane.kv_tokens(window, chunk), lane.appended(chunk), lane.sequences(chunk).groups


def _uneven(dim: Dim, ranks: int) -> bool:
    """Whether ranks can hold different numbers of a dimension's indices."""
    if dim.serves:
        return bool(dim.size * dim.serves % ranks or (dim.size % ranks and ranks % dim.size))
    return bool(dim.size % ranks)


def _refine(signatures: list[Hashable], groups: list[list[tuple[int, ...]]]) -> Classes:
    """Split classes until the members of a class meet the same classes in every group."""
    while True:
        number: dict[Hashable, int] = {}
        of = [number.setdefault(s, len(number)) for s in signatures]
        met = [(of[r], *(tuple(sorted({of[m] for m in group[r]})) for group in groups)) for r in range(len(signatures))]
        if len(set(met)) == len(number):
            break
        signatures = list(met)
    members: list[list[int]] = [[] for _ in number]
    for rank, which in enumerate(of):
        members[which].append(rank)
    return Classes(tuple(of), tuple(map(tuple, members)))
