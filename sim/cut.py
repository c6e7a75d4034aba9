"""How a strategy cuts a model: which role of dimension is split over which axes of the mesh.

This is the whole description of a strategy's data; placement, memory, duplication, timing and execution read it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from sim.mesh import Mesh
from sim.model import Attention, TensorShape
from sim.ownership import Ownership

Only = tuple[tuple[str, int], ...]
EVERYWHERE: Only = ()


class Dim(NamedTuple):
    """One feature dimension: its role, global size, and the axes it is split over (outermost first)."""

    role: str
    size: int
    axes: tuple[str, ...] = ()


def block(size: int, index: int, of: int) -> tuple[int, int]:
    """Start and length of block ``index`` when ``size`` is split over ``of`` as evenly as possible."""
    each, extra = divmod(size, of)
    return index * each + min(index, extra), each + (index < extra)


@dataclass(frozen=True)
class Cut:
    """Axes by role, the axes of sequences and of KV tokens, and who is left out.

    ``roles`` maps a role (see ``sim.model``) to axes; ``attention_heads`` is the role of the query heads inside the
    attention itself, from which the KV heads that a rank projects and caches follow. ``holds`` returns the
    coordinates to which a tensor is restricted. ``slots`` is how many expert slots exist (experts + redundant).
    """

    mesh: Mesh
    roles: Mapping[str, tuple[str, ...]]
    sequences: tuple[str, ...] = ()
    kv_tokens: tuple[str, ...] = ()
    ownership: Ownership = field(default_factory=Ownership)
    holds: Callable[[TensorShape], Only] = lambda tensor: EVERYWHERE
    redundant_experts: int = 0

    def axes(self, role: str) -> tuple[str, ...]:
        """The axes that split a role, without those of size 1."""
        if role == "kv_heads":
            role = "attention_heads"
        found = self.roles.get(role)
        if found is None and role in ("uk_heads", "uv_heads"):
            found = self.roles.get("q_heads" if role == "uk_heads" else "o_heads")
        return self.trim(found or ())

    def trim(self, axes: tuple[str, ...]) -> tuple[str, ...]:
        """Axes without those of size 1."""
        return tuple(a for a in axes if self.mesh.axes[a].size > 1)

    def dim(self, role: str, size: int) -> Dim:
        """The dimension as this cut splits it."""
        if role == "experts":
            size += self.redundant_experts
        return Dim(role, size, self.axes(role))

    def range(self, dim: Dim, rank: int) -> tuple[int, int]:
        """Start and length of the global indices of ``dim`` that ``rank`` holds."""
        if not dim.axes:
            return 0, dim.size
        return block(dim.size, self.mesh.index(rank, dim.axes), self.mesh.count(dim.axes))

    def kv_heads(self, attention: Attention, rank: int) -> tuple[int, int]:
        """Start and length of the KV heads that serve the query heads of ``rank``."""
        heads = Dim("attention_heads", attention.query_heads, self.axes("attention_heads"))
        start, count = self.range(heads, rank)
        group = attention.query_heads // attention.cached_heads
        first = start // group
        return first, (start + count - 1) // group + 1 - first if count else 0

    def local(self, tensor: TensorShape, attention: Attention | None, rank: int) -> int:
        """Elements of ``tensor`` that ``rank`` holds."""
        if any(self.mesh.coordinate(rank, axis) != at for axis, at in self.holds(tensor)):
            return 0
        elements = 1
        for role, size in tensor.dims:
            if role == "kv_heads" and attention is not None:
                elements *= self.kv_heads(attention, rank)[1]
            else:
                elements *= self.range(self.dim(role, size), rank)[1]
        return elements
