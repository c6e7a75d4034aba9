"""Which GPU each rank runs on: which axis of a layout's mesh lies inside a box decides what its collectives cost.

``rank_order`` of a layout is a list of axis names, outermost first, or a list of GPU numbers, one per rank of the whole
layout, or ``best``: all orders of the axes are tried and the fastest is taken.
"""

from __future__ import annotations

from itertools import permutations

from sim.errors import Problem
from sim.mesh import Mesh

Order = tuple[str, ...] | tuple[int, ...]


def axes(mesh: Mesh) -> tuple[str, ...]:
    """The axes that an order names: those of the first factoring that are longer than 1, outermost first."""
    return tuple(a.name for a in mesh.axes.values() if a.factoring == 0 and a.size > 1)


def orders(mesh: Mesh) -> list[tuple[str, ...]]:
    """Every order of the axes, the mesh's own first."""
    return list(permutations(axes(mesh))) or [()]


def problems(mesh: Mesh, order: Order, gpus: int) -> list[Problem]:
    """Why an order does not fit a mesh of a layout on ``gpus`` GPUs."""
    if all(isinstance(entry, int) for entry in order):
        if len(order) != gpus:
            return [Problem(f"lists {len(order)} GPUs; the layout has {gpus} ranks", "rank_order")]
        if len(set(order)) != len(order) or min(int(g) for g in order) < 0:
            return [Problem("lists a GPU twice, or a negative number", "rank_order")]
        return []
    if sorted(map(str, order)) != sorted(axes(mesh)):
        names = ", ".join(axes(mesh)) or "none: it has one rank"
        return [
            Problem(f"must name each axis of the layout once, outermost first ({names}), or list GPUs", "rank_order")
        ]
    return []


def placed(mesh: Mesh, order: Order | None, first: int) -> tuple[int, ...]:
    """The GPU of each rank of a stage whose ranks would fill the GPUs from ``first`` on.

    Parameters
    ----------
    order
        Axis names or GPU numbers; None: ranks in the mesh's own order.
    """
    if order is None:
        return tuple(range(first, first + mesh.size))
    if order and isinstance(order[0], int):
        return tuple(int(g) for g in order[first : first + mesh.size])
    names = tuple(map(str, order))
    return tuple(first + mesh.index(rank, names) for rank in range(mesh.size))
