"""How a strategy cuts a model: which role of dimension is split over which axes of the mesh.

This is the whole description of a strategy's data; placement, memory, duplication, timing and execution read it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple

from sim.mesh import Mesh
from sim.model import Attention, Mixer, TensorShape
from sim.ownership import Ownership

Only = tuple[tuple[str, int], ...]
EVERYWHERE: Only = ()
ExpertPlacement = Literal["linear", "round_robin"]
_FOLLOWS = {"kv_heads": "attention_heads", "state_keys": "state_heads"}
"""Heads that serve others are where those are."""
_ELSE = {
    "uk_heads": "q_heads",
    "uv_heads": "o_heads",
    "state_heads": "attention_heads",
    "state_keys": "attention_heads",
}
"""A role that a strategy does not name is split as this one."""


class Dim(NamedTuple):
    """One feature dimension: its role, global size, and the axes it is split over (outermost first).

    ``serves`` marks KV heads: that many query heads each; a rank has those that its query heads need. The key heads of
    linear attention serve its value heads in the same way.
    """

    role: str
    size: int
    axes: tuple[str, ...] = ()
    serves: int = 0


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
    whole_index: bool = False
    """The keys of a sparse index are whole on every rank that shares a sequence's tokens, not shared like them."""
    expert_placement: ExpertPlacement = "linear"

    def axes(self, role: str) -> tuple[str, ...]:
        """The axes that split a role, without those of size 1."""
        found = self._axes.get(role)
        if found is None:
            named = self.roles.get(_FOLLOWS.get(role, role))
            if named is None and role in _ELSE:
                named = self.roles.get(_ELSE[role])
            found = self._axes[role] = self.trim(named or ())
        return found

    @cached_property
    def _axes(self) -> dict[str, tuple[str, ...]]:
        return {}

    @cached_property
    def sequence_axes(self) -> tuple[str, ...]:
        """The axes that split the sequences, without those of size 1."""
        return self.trim(self.sequences)

    @cached_property
    def kv_axes(self) -> tuple[str, ...]:
        """The axes that split the tokens of the cache, without those of size 1."""
        return self.trim(self.kv_tokens)

    @cached_property
    def sequence_groups(self) -> int:
        """How many groups of ranks have sequences of their own."""
        return self.mesh.count(self.sequence_axes)

    @cached_property
    def kv_ranks(self) -> int:
        """How many ranks share the tokens of a sequence."""
        return self.mesh.count(self.kv_axes)

    def trim(self, axes: tuple[str, ...]) -> tuple[str, ...]:
        """Axes without those of size 1."""
        return tuple(a for a in axes if self.mesh.axes[a].size > 1)

    def dim(self, role: str, size: int, mixer: Mixer | None = None) -> Dim:
        """The dimension as this cut splits it; heads that serve others need the attention they belong to."""
        if role == "experts":
            size += self.redundant_experts
        if role in _FOLLOWS and mixer is not None:
            return Dim(role, size, self.axes(role), mixer.served_heads // size)
        return Dim(role, size, self.axes(role))

    def slot_table(self, experts: int) -> tuple[int, ...]:
        """The expert in each slot: ``linear`` in order, ``round_robin`` expert e on rank e mod EP (vLLM's names).

        Redundant slots hold the first experts once more.
        """
        slots = experts + self.redundant_experts
        ranks = self.mesh.count(self.axes("experts"))
        if self.expert_placement == "linear" or ranks == 1:
            return tuple(slot % experts for slot in range(slots))
        return tuple(e % experts for rank in range(ranks) for e in range(rank, slots, ranks))

    def slot_owner(self, experts: int) -> tuple[int, ...]:
        """The first rank that holds each slot."""
        dim = self.dim("experts", experts)
        owner = [-1] * dim.size
        for rank in reversed(range(self.mesh.size)):
            start, count = self.range(dim, rank)
            owner[start : start + count] = [rank] * count
        return tuple(owner)

    def range(self, dim: Dim, rank: int) -> tuple[int, int]:
        """Start and length of the global indices of ``dim`` that ``rank`` holds."""
        if not dim.axes:
            return 0, dim.size
        index, of = self.mesh.index(rank, dim.axes), self.mesh.count(dim.axes)
        if not dim.serves:
            return block(dim.size, index, of)
        start, count = block(dim.size * dim.serves, index, of)
        first = start // dim.serves
        return first, (start + count - 1) // dim.serves + 1 - first if count else 0

    def kv_heads(self, attention: Attention, rank: int) -> tuple[int, int]:
        """Start and length of the KV heads that serve the query heads of ``rank``."""
        return self.range(self.dim("kv_heads", attention.cached_heads, attention), rank)

    def local(self, tensor: TensorShape, mixer: Mixer | None, rank: int) -> int:
        """Elements of ``tensor`` that ``rank`` holds."""
        if any(self.mesh.coordinate(rank, axis) != at for axis, at in self.holds(tensor)):
            return 0
        elements = 1
        for role, size in tensor.dims:
            elements *= self.range(self.dim(role, size, mixer), rank)[1]
        return elements
