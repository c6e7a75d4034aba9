"""What an engine's allocator sets aside for a cache, beside what the model must keep (``sim.placement``).

The physics of a model say which tokens some coming query still sees. Engines hand memory out in blocks, give layers of
different kinds pages of one size, or count windows in full. These policies are data (``sim/data/allocators``), one file
per engine, each with its version and source.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from sim.errors import InputError
from sim.formats import NumberFormat, number_format
from sim.lane import Lane
from sim.model import Attention, Layer, LinearAttention
from sim.noun import Noun
from sim.placement import Placement
from sim.tensors import Positive
from sim.workload import Group

FOLDER = Path(__file__).parent / "data" / "allocators"


class Allocator(Noun):
    """The policy of one engine in one version."""

    name: str
    version: str
    source: str
    block: Positive
    """Tokens of a block; one row of a block table covers as many on every rank that shares a sequence's tokens."""
    unified_pages: bool
    """Where kinds of layers mix, every layer has pages of the size that the largest one needs."""
    window_tokens: Annotated[float, Field(ge=0, le=1)] | None
    """Tokens that a windowed layer's pool has per token of full attention; none: those it keeps."""
    frees_windows: bool
    """Blocks that no query sees any more are given back."""
    state: Literal["page", "slot"]
    """The state of linear attention takes a page like attention's, or a slot of its own size."""
    sharded_index: bool
    """Ranks that share a sequence's tokens share the keys of a sparse index too; else each one counts all of them."""
    packed: dict[str, str]
    """How a latent beside a sparse index is stored, by the format of the cache."""

    def format(self, attention: Attention, kv_cache: str) -> NumberFormat:
        """The format of the cache of one kind of attention."""
        return number_format(self.packed.get(kv_cache, kv_cache) if _indexed(attention) else kv_cache)

    def layer_bytes(self, attention: Attention, lane: Lane) -> int:
        """Bytes of one token in one layer's own page on this rank."""
        fmt = self.format(attention, lane.precision.kv_cache)
        index = attention.index_bytes * (1 if self.sharded_index else lane.cut.kv_ranks)
        return fmt.bytes(lane.kv_heads(attention) * attention.cache_elements) + index

    def token_bytes(self, placement: Placement, stage: int, lane: Lane) -> float:
        """Bytes by which the engine divides its cache to say how many tokens fit: per token that this rank shares."""
        layers = _cached(placement, stage)
        largest = max((self.layer_bytes(a, lane) for _, a in layers), default=0)
        total = 0.0
        for count, a in layers:
            own = largest if self.unified_pages and _mixed(placement, stage) else self.layer_bytes(a, lane)
            share = self.window_tokens if a.window and self.window_tokens is not None else 1.0
            if a.window and self.window_tokens is None:
                continue  # kept per sequence, whatever its length
            total += count * own * share
        return total / lane.cut.kv_ranks

    def reserved(self, placement: Placement, stage: int, lane: Lane) -> int:
        """Bytes of the blocks that this rank's sequences take."""
        return sum(g.count * self._sequence(placement, stage, lane, g) for g in lane.sequences().groups)

    def _sequence(self, placement: Placement, stage: int, lane: Lane, group: Group) -> int:
        layers, linears = _cached(placement, stage), _linear(placement, stage)
        states = {linear: lane.state(linear) for _, linear in linears}
        largest = max((self.layer_bytes(a, lane) for _, a in layers), default=0)
        block = self.block
        one_page = self.unified_pages and _mixed(placement, stage)
        if one_page and self.state == "page" and largest:
            while block * largest < max(states.values(), default=0):
                block += self.block
        total = 0
        for count, a in layers:
            row = block * lane.cut.kv_ranks
            blocks = -(-group.length // row)
            if a.window and self.frees_windows:
                new = 1 if group.prompt else group.new
                blocks = min(blocks, -(-min(a.window - 1 + new, group.length) // row) + 1)
            total += count * blocks * block * (largest if one_page else self.layer_bytes(a, lane))
        for count, linear in linears:
            padded = one_page and self.state == "page" and states[linear]
            total += count * (max(block * largest, states[linear]) if padded else states[linear])
        return total


def _indexed(attention: Attention) -> bool:
    return attention.kind == "mla" and attention.index is not None


def _layers(placement: Placement, stage: int) -> list[tuple[int, Layer]]:
    return placement.stages[stage]


def _cached(placement: Placement, stage: int) -> list[tuple[int, Attention]]:
    return [(count, layer.attention) for count, layer in _layers(placement, stage) if layer.attention]


def _linear(placement: Placement, stage: int) -> list[tuple[int, LinearAttention]]:
    return [(count, layer.linear) for count, layer in _layers(placement, stage) if layer.linear]


def _mixed(placement: Placement, stage: int) -> bool:
    """Whether layers of different kinds share the cache: full, windowed, and with a state."""
    kinds = {("cache", bool(a.window)) for _, a in _cached(placement, stage)}
    return len(kinds) + bool(_linear(placement, stage)) > 1


def allocator_names() -> list[str]:
    """Names of the engines whose policy ships with the package, sorted."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


@cache
def load_allocator(name: str) -> Allocator:
    """The policy of an engine. Raises ``InputError`` for a name without a file."""
    from ruamel.yaml import YAML

    if name not in allocator_names():
        raise InputError(f"allocator {name!r} is not known; choose one of {', '.join(allocator_names())}")
    return Allocator.model_validate(YAML(typ="safe", pure=True).load(FOLDER / f"{name}.yaml"))
