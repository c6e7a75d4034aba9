"""Which rank holds how much of what: weights and KV cache, and how often each byte is held.

Pure arithmetic over the model's tensors and the strategy's cut; no time, no engine. The duplication factor is
bytes held over all ranks ÷ bytes of one unique copy (spec section 0).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

from sim.cut import Cut
from sim.lane import Lane
from sim.lower import cut_of
from sim.model import Layer, Mixer, Model, TensorShape
from sim.strategy import Strategy
from sim.workload import Number, Precision, Sequences

PARTS = ("attention", "dense_ffn", "routed_experts", "shared_experts", "embeddings")


class Held(NamedTuple):
    """A weight that a stage holds ``layers`` times (once per layer of a kind)."""

    tensor: TensorShape
    mixer: Mixer | None
    layers: int


class Placement:
    """The weights and the cache of one model under one strategy.

    Parameters
    ----------
    model, strategy, precision
        What is placed, how it is cut, and in which formats.
    """

    def __init__(self, model: Model, strategy: Strategy, precision: Precision):
        self.model, self.strategy, self.precision = model, strategy, precision
        self.cut: Cut = cut_of(strategy, model)
        self.stages: list[list[tuple[int, Layer]]] = strategy.stages(model)

    def held(self, stage: int) -> Iterator[Held]:
        """Every weight of a stage; a tied embedding is held by the first and by the last stage."""
        for count, layer in _by_kind(self.stages[stage]):
            for tensor in self.model.tensors(layer):
                yield Held(tensor, layer.mixer, count)
        last = stage == len(self.stages) - 1
        for tensor in self.model.tensors():
            tied_head = tensor.name == "embedding" and self.model.tied_embeddings and last
            if (stage == 0 and tensor.name == "embedding") or (last and tensor.name != "embedding") or tied_head:
                yield Held(tensor, None, 1)

    @cached_property
    def _held(self) -> list[list[Held]]:
        return [list(self.held(stage)) for stage in range(len(self.stages))]

    def weights(self, stage: int, rank: int) -> dict[str, int]:
        """Bytes of weights on a rank, by memory part."""
        found = dict.fromkeys(PARTS, 0)
        for tensor, mixer, count in self._held[stage]:
            elements = self.cut.local(tensor, mixer, rank)
            if elements:
                size = self.precision.of(tensor.part, tensor.quantised).bytes(elements)
                found[tensor.part] += count * size
        return found

    def elements(self, stage: int, rank: int) -> dict[str, int]:
        """Elements of each weight on a rank, summed over the stage's layers."""
        found: dict[str, int] = {}
        for tensor, mixer, count in self._held[stage]:
            found[tensor.name] = found.get(tensor.name, 0) + count * self.cut.local(tensor, mixer, rank)
        return found

    @cached_property
    def unique_weight_bytes(self) -> int:
        """Bytes of one copy of the whole model."""
        total = 0
        for count, layer in _by_kind(list(self.model.runs)):
            for tensor in self.model.tensors(layer):
                total += count * self.precision.of(tensor.part, tensor.quantised).bytes(tensor.elements)
        for tensor in self.model.tensors():
            total += self.precision.of(tensor.part, tensor.quantised).bytes(tensor.elements)
        return total

    def kv_bytes_per_token(self, stage: int, lane: Lane) -> int:
        """Bytes that one cached token takes on this rank, all layers of the stage together."""
        return sum(
            count * lane.kv_bytes_per_token(layer.attention)
            for count, layer in _by_kind(self.stages[stage])
            if layer.attention
        )

    def kv_bytes(self, stage: int, lane: Lane) -> Number:
        """Bytes of KV cache on this rank at the lane's lengths; a windowed layer keeps only its window."""
        total: Number = 0
        for count, layer in _by_kind(self.stages[stage]):
            if layer.attention:
                a = layer.attention
                total = total + count * lane.kv_tokens(a.window) * lane.latent_bytes_per_token(a)
                if a.index_bytes:
                    total = total + count * lane.index_tokens() * a.index_bytes
            if layer.linear:
                total = total + count * lane.states(layer.linear)
        return total

    def unique_kv_bytes(self, sequences: Sequences) -> int:
        """Bytes of one copy of these sequences' caches, all layers; a window keeps what some query still sees."""
        total = 0
        for count, layer in _by_kind(list(self.model.runs)):
            if a := layer.attention:
                per_token = self.precision.kv.bytes(a.cached_heads * a.cache_elements) + a.index_bytes
                tokens = sum(
                    g.count * min(g.length, a.window + (0 if g.prompt else g.new - 1) if a.window else g.length)
                    for g in sequences.groups
                )
                total += count * per_token * tokens
            if layer.linear:
                total += count * sequences.count * layer.linear.state(layer.linear.value_heads, layer.linear.key_heads)
        return total


def _by_kind(runs: list[tuple[int, Layer]]) -> list[tuple[int, Layer]]:
    counts: dict[Layer, int] = {}
    for count, layer in runs:
        counts[layer] = counts.get(layer, 0) + count
    return [(count, layer) for layer, count in counts.items()]
