"""A mesh: named axes laid over the ranks of one model instance.

Attention and feed-forward may cut the same ranks differently (tpa x kvp and tpf x ep), so a mesh holds several
factorings of the same ranks; every axis is a size and a stride on the rank number, and an axis of size 1 is
never there. ``WORLD`` stands for all axes of any one factoring together.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import NamedTuple

from sim.errors import ProgramError

WORLD = ("world",)


class Axis(NamedTuple):
    """``size`` coordinates, ``stride`` ranks apart, in factoring number ``factoring``."""

    name: str
    size: int
    stride: int
    factoring: int


class Mesh:
    """Axes over the ranks of one stage of one instance.

    Parameters
    ----------
    factorings
        Each an ordered mapping of axis name to size, outermost first; all must have the same product.

    Raises
    ------
    ProgramError
        If the products differ or a name is used twice.
    """

    def __init__(self, *factorings: dict[str, int]):
        self.size = math.prod(factorings[0].values())
        self.axes: dict[str, Axis] = {}
        self._whole: list[frozenset[str]] = []
        self._known: dict[tuple[str, ...], list[tuple[int, ...]]] = {}
        for number, factoring in enumerate(factorings):
            if math.prod(factoring.values()) != self.size:
                raise ProgramError(f"axes {factoring} do not multiply to {self.size} ranks")
            stride = self.size
            for name, size in factoring.items():
                if name in self.axes or name in WORLD:
                    raise ProgramError(f"axis {name!r} is defined twice")
                stride //= size
                self.axes[name] = Axis(name, size, stride, number)
            self._whole.append(frozenset(n for n, s in factoring.items() if s > 1))

    def real(self, axes: tuple[str, ...]) -> tuple[str, ...]:
        """The axes without those of size 1 in the mesh's order, or ``WORLD`` if they cover a whole factoring."""
        if axes in ((), WORLD):
            return axes if self.size > 1 else ()
        kept = tuple(a.name for a in self.axes.values() if a.size > 1 and a.name in axes)
        return WORLD if kept and frozenset(kept) in self._whole else kept

    def spread(self, axes: tuple[str, ...], like: tuple[str, ...]) -> tuple[str, ...]:
        """``WORLD`` written out in the factoring that ``like`` belongs to."""
        if axes != WORLD or not like or like == WORLD:
            return axes
        number = self.axes[like[0]].factoring
        return tuple(a.name for a in self.axes.values() if a.factoring == number and a.size > 1)

    def count(self, axes: tuple[str, ...]) -> int:
        """How many ranks a group over ``axes`` has."""
        if axes == WORLD:
            return self.size
        return math.prod(self.axes[a].size for a in axes)

    def coordinate(self, rank: int, axis: str) -> int:
        """The rank's coordinate on one axis."""
        a = self.axes[axis]
        return rank // a.stride % a.size

    def index(self, rank: int, axes: tuple[str, ...]) -> int:
        """The rank's place inside its group over ``axes``, the first axis outermost."""
        if axes == WORLD:
            return rank
        index = 0
        for name in axes:
            a = self.axes[name]
            index = index * a.size + rank // a.stride % a.size
        return index

    def group(self, rank: int, axes: tuple[str, ...]) -> tuple[int, ...]:
        """The ranks that talk to ``rank`` over ``axes``, itself included, in the order of ``index``."""
        return self._groups_of(axes)[rank]

    def groups(self, axes: tuple[str, ...]) -> list[tuple[int, ...]]:
        """All groups over ``axes``, each once."""
        return list(dict.fromkeys(self._groups_of(axes)))

    def _groups_of(self, axes: tuple[str, ...]) -> list[tuple[int, ...]]:
        """The group of each rank."""
        found = self._known.get(axes)
        if found is None:
            found = [self._all] * self.size
            if axes != WORLD:
                parts = [self.axes[a] for a in axes]
                offsets = [0]
                for a in parts:
                    offsets = [o + step for o in offsets for step in range(0, a.size * a.stride, a.stride)]
                for rank in range(self.size):
                    if all(rank // a.stride % a.size == 0 for a in parts):
                        group = tuple([rank + o for o in offsets])
                        for member in group:
                            found[member] = group
            self._known[axes] = found
        return found

    @cached_property
    def _all(self) -> tuple[int, ...]:
        return tuple(range(self.size))
