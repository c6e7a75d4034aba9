"""Layers that differ one by one: ``block_configs`` of models from an architecture search (Nemotron-Super)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sim.explain import show
from sim.huggingface.attention import attention_traits, check_groups, head_dim, query_heads
from sim.huggingface.families import Family
from sim.huggingface.keys import Keys
from sim.huggingface.moe import is_gated
from sim.model import Attention, DenseFfn, Ffn, GroupedQueryAttention

_LARGEST_FACTOR = 1000.0


def searched_layers(
    keys: Keys, family: Family, hidden: int, layers: int
) -> tuple[list[Attention | None], list[Ffn | None]]:
    """Attention and feed-forward block of every layer, ``None`` where it is left out (``no_op``).

    Both lists are empty if anything is wrong (and noted).
    """
    blocks = keys.values["block_configs"]
    if not isinstance(blocks, list) or len(blocks) != layers:
        size = f"a list of {len(blocks)}" if isinstance(blocks, list) else show(blocks)
        keys.problem("block_configs", f"must be a list of {layers} entries, one per layer, is {size}")
        return [], []
    heads = query_heads(keys)
    size_of_head = head_dim(keys, hidden, heads)
    attention_of = _attention_reader(keys, family, heads, size_of_head)
    ffn_of = _ffn_reader(keys, family, hidden)
    attention = [attention_of(_part(keys, block, i, "attention")) for i, block in enumerate(blocks)]
    ffn = [ffn_of(_part(keys, block, i, "ffn")) for i, block in enumerate(blocks)]
    for i, pair in enumerate(zip(attention, ffn, strict=True)):
        if pair == (None, None) and not keys.problems:
            keys.problem(f"block_configs[{i}]", "leaves out both attention and feed-forward")
    return ([], []) if keys.problems else (attention, ffn)


def _part(keys: Keys, block: Any, index: int, name: str) -> Keys | None:
    """The keys of one block of one layer; ``None`` if it is left out or wrong (and noted)."""
    where = f"block_configs[{index}].{name}"
    values = block.get(name) if isinstance(block, dict) else None
    if not isinstance(values, dict):
        keys.problem(where, f"must be an object, is {show(values)}")
        return None
    part = Keys(values, keys.problems, f"{keys.prefix}{where}.")
    for feature in ("replace_with_linear", "sparsify", "num_sink_tokens", "unshifted_sink"):
        if values.get(feature):
            part.problem(feature, f"is {show(values[feature])}, which is not modelled")
    return None if part.flag("no_op", default=False) else part


def _attention_reader(keys: Keys, family: Family, heads: int, size: int) -> Callable[[Keys | None], Attention | None]:
    traits = attention_traits(keys, family)

    def read(part: Keys | None) -> Attention | None:
        if part is None:
            return None
        group = part.number("the KV heads of this layer", "n_heads_in_group")
        check_groups(part, "n_heads_in_group", heads, group)
        window = part.optional("window_length")
        if keys.problems:
            return None
        return GroupedQueryAttention(
            query_heads=heads,
            kv_heads=heads // group,
            head_dim=size,
            v_head_dim=size,
            window=window,
            **traits._asdict(),
        )

    return read


def _ffn_reader(keys: Keys, family: Family, hidden: int) -> Callable[[Keys | None], Ffn | None]:
    gated = is_gated(keys, family)
    bias = keys.flag("mlp_bias", default=family.mlp_bias)

    def read(part: Keys | None) -> Ffn | None:
        if part is None:
            return None
        width = part.optional("intermediate_size")
        if width is None:
            width = _searched_width(part, hidden)
        return None if keys.problems else DenseFfn(width=width, gated=gated, bias=bias)

    return read


def _searched_width(part: Keys, hidden: int) -> int:
    """Width from ``ffn_mult``: two thirds of it times the hidden size, up to the next multiple of 256."""
    name, factor = part.find("ffn_mult")
    if not name:
        part.missing("the feed-forward width of this layer", "ffn_mult", "intermediate_size")
        return 0
    is_number = isinstance(factor, (int, float)) and not isinstance(factor, bool)
    if not is_number or not 0 < factor <= _LARGEST_FACTOR:
        part.problem(name, f"must be a number above 0 and at most {_LARGEST_FACTOR:g}, is {show(factor)}")
        return 0
    return max(256, -(-int(2 * factor * hidden / 3) // 256) * 256)
