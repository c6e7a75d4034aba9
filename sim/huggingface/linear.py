"""Linear attention and the order of hybrid layers, read from a Hugging Face config."""

from __future__ import annotations

from typing import Any, Literal

from sim.explain import show
from sim.huggingface.keys import Keys
from sim.linear import LinearAttention

Block = Literal["attention", "linear", "moe", "mlp"]
_LETTERS: dict[str, Block] = {"M": "linear", "*": "attention", "E": "moe", "-": "mlp"}
_WORDS: dict[str, Block] = {"mamba": "linear", "attention": "attention", "moe": "moe", "mlp": "mlp"}


def mixer_pattern(keys: Keys, layers: int) -> list[Block] | None:
    """The one block of every layer of a model whose layers have one block each (Nemotron-H); None for other models."""
    word = keys.values.get("hybrid_override_pattern")
    name, known = "hybrid_override_pattern", _LETTERS
    if word is None:
        name, known = "layers_block_type", _WORDS
        word = keys.values.get(name)
    if word is None:
        return None
    if not isinstance(word, (str, list)) or len(word) != layers or any(e not in known for e in map(str, word)):
        size = f"{len(word)} entries" if isinstance(word, (str, list)) else show(word)
        keys.problem(name, f"must have {layers} entries, one per layer, made of {', '.join(known)}; has {size}")
        return []
    return [known[str(entry)] for entry in word]


def linear_layers(keys: Keys, layers: int) -> list[bool]:
    """Tell for every layer if it has linear attention beside a feed-forward block (Qwen3-Next, Kimi-Linear)."""
    if isinstance(settings := keys.values.get("linear_attn_config"), dict):
        inner = Keys(settings, keys.problems, f"{keys.prefix}linear_attn_config.")
        full, linear = (inner.values.get(name) for name in ("full_attn_layers", "kda_layers"))
        full, linear = (found if isinstance(found, list) else [] for found in (full, linear))
        if sorted([*full, *linear], key=str) != sorted(range(1, layers + 1), key=str):
            inner.problem("full_attn_layers", f"and kda_layers must name each layer from 1 to {layers} once")
            return []
        return [i + 1 not in full for i in range(layers)]
    if not keys.has("linear_num_value_heads"):
        return [False] * layers
    if keys.has("layer_types"):
        words = {"full_attention": False, "linear_attention": True}
        return keys.per_layer("layer_types", layers, words) or []
    every = keys.number("the layers with full attention", "full_attention_interval")
    return [bool(every) and (i + 1) % every != 0 for i in range(layers)]


def linear_attention(keys: Keys) -> LinearAttention | None:
    """The block of all layers with linear attention; None if anything is wrong (and noted)."""
    if keys.has("linear_num_value_heads"):
        fields = _gated_delta_net(keys)
    elif isinstance(settings := keys.values.get("linear_attn_config"), dict):
        fields = _kimi_delta(Keys(settings, keys.problems, f"{keys.prefix}linear_attn_config."))
    else:
        fields = _mamba_2(keys)
    values, groups = fields["value_heads"], fields["key_heads"]
    if values and groups and values % groups:
        keys.problem("n_groups", f"{values} value heads are not a multiple of {groups} key heads")
    if keys.problems:
        return None
    name = keys.text("mamba_ssm_cache_dtype", "mamba_ssm_dtype") or "float32"
    sizes = {"float32": 4, "bfloat16": 2, "float16": 2}
    if name not in sizes:
        keys.problem("mamba_ssm_cache_dtype", f"must be one of {', '.join(sizes)}, is {show(name)}")
        return None
    return LinearAttention(**fields, state_bytes=sizes[name])


def _gated_delta_net(keys: Keys) -> dict[str, Any]:
    purpose = "the state of linear attention"
    return {
        "key_heads": keys.number(purpose, "linear_num_key_heads"),
        "value_heads": keys.number(purpose, "linear_num_value_heads"),
        "key_dim": keys.number(purpose, "linear_key_head_dim"),
        "value_dim": keys.number(purpose, "linear_value_head_dim"),
        "convolution": keys.number(purpose, "linear_conv_kernel_dim", most=64),
    }


def _mamba_2(keys: Keys) -> dict[str, Any]:
    """Groups are key heads, the state size is their dimension; the skip and the step's bias are scalars per head."""
    purpose = "the state of a Mamba-2 layer"
    return {
        "rule": "sum",
        "key_heads": keys.number(purpose, "n_groups", "mamba_n_groups"),
        "value_heads": keys.number(purpose, "mamba_num_heads", "mamba_n_heads"),
        "key_dim": keys.number(purpose, "ssm_state_size", "mamba_d_state"),
        "value_dim": keys.number(purpose, "mamba_head_dim", "mamba_d_head"),
        "convolution": keys.number(purpose, "conv_kernel", "mamba_d_conv", most=64),
        "convolution_bias": keys.flag("use_conv_bias", "mamba_conv_bias", default=True),
        "gates": 1,
        "scalars": 3,
        "wide_norm": True,
    }


def _kimi_delta(keys: Keys) -> dict[str, Any]:
    """A decay for each key channel, from a projection through one head dimension; the output gate has full rank."""
    purpose = "the state of Kimi Delta Attention"
    heads, size = keys.number(purpose, "num_heads"), keys.number(purpose, "head_dim")
    if not keys.flag("use_full_rank_gate", default=False):
        keys.problem("use_full_rank_gate", "is not true: an output gate of low rank is not modelled")
    return {
        "key_heads": heads,
        "value_heads": heads,
        "key_dim": size,
        "value_dim": size,
        "convolution": keys.number(purpose, "short_conv_kernel_size", most=64),
        "gates": 1,
        "scalars": 1,
        "channel_decay": size or None,
    }
