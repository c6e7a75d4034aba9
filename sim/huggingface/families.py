"""What a model class fixes without a key in ``config.json``, and the layer kinds that are refused by name.

Defaults follow the classes of the ``transformers`` library, named after the architecture without its suffix
and without underscores: ``Qwen3MoeForCausalLM`` and ``qwen3_moe`` are both ``qwen3moe``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from sim.errors import Problem
from sim.explain import show


class Family(NamedTuple):
    """Facts of one model class; where a config key can say otherwise, this is the value without that key."""

    tied: bool = False
    gated: bool = True
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    o_follows: bool = True
    """``attention_bias`` puts a bias on the output projection too."""
    qk_norm: bool = False
    wide_qk_norm: bool = False
    router_bias: bool = False
    shared_gate: bool = False
    output_gate: bool = False
    """The output of full attention is gated element by element."""
    extra_norms: int = 0
    kv_heads: str = ""
    """Without a key for KV heads: ``all`` query heads or ``one``; empty: the key must be there."""
    window_every: int = 0
    """Every n-th layer attends to everything, the others to a window; 0: all layers alike."""
    sinks: bool = False
    expert_bias: bool = False
    qwen_window: bool = False
    """``sliding_window`` counts only with ``use_sliding_window`` true."""
    chunked: bool = False
    ffn_factor: int = 0
    """Without a key for the FFN width: this times the hidden size."""
    vocab: int = 0
    """Vocabulary without a key for it; 0: the key must be there."""
    known: bool = True


_BIASED = Family(gated=False, tied=True, qkv_bias=True, o_bias=True, mlp_bias=True, ffn_factor=4, kv_heads="all")
_FAMILIES = {
    "arcee": Family(gated=False),
    "chatglm": Family(kv_heads="all", o_follows=False),
    "cohere": Family(tied=True),
    "decilm": Family(),
    "deepseekv2": Family(),
    "deepseekv3": Family(router_bias=True),
    "deepseekv32": Family(router_bias=True),
    "ernie45": Family(tied=True),
    "ernie45moe": Family(tied=True, router_bias=True),
    "exaone4": Family(qk_norm=True, window_every=4),
    "falcon": Family(tied=True, gated=False, ffn_factor=4, kv_heads="one"),
    "gemma": Family(tied=True),
    "gemma2": Family(tied=True, extra_norms=2, window_every=2),
    "gemma3": Family(tied=True, extra_norms=2, window_every=6, qk_norm=True),
    "gemma4": Family(tied=True, extra_norms=2, window_every=6, qk_norm=True),
    "glm4": Family(extra_norms=2, o_follows=False),
    "glm4moe": Family(router_bias=True, o_follows=False),
    "glmmoedsa": Family(router_bias=True),
    "gpt2": _BIASED._replace(vocab=50257),
    "gptbigcode": _BIASED._replace(kv_heads="one", vocab=50257),
    "gptneox": _BIASED._replace(tied=False),
    "gptoss": Family(qkv_bias=True, o_bias=True, router_bias=True, expert_bias=True, sinks=True, window_every=2),
    "granite": Family(),
    "kimik2": Family(router_bias=True),
    "llama": Family(kv_heads="all"),
    "kimilinear": Family(router_bias=True),
    "llama4": Family(chunked=True),
    "mimov2": Family(router_bias=True),
    "minimaxm2": Family(router_bias=True, qk_norm=True, wide_qk_norm=True),
    "minimaxm3": Family(router_bias=True, qk_norm=True),
    "ministral": Family(),
    "mistral": Family(),
    "mixtral": Family(),
    "nemotron": Family(gated=False),
    "nemotronh": Family(gated=False, router_bias=True),
    "nemotronnas": Family(),
    "olmo2": Family(qk_norm=True, wide_qk_norm=True, kv_heads="all"),
    "olmoe": Family(qk_norm=True, wide_qk_norm=True, kv_heads="all"),
    "opt": _BIASED,
    "phi3": Family(kv_heads="all"),
    "phimoe": Family(),
    "qwen2": Family(qkv_bias=True, o_follows=False, qwen_window=True),
    "qwen2moe": Family(qkv_bias=True, o_follows=False, qwen_window=True, shared_gate=True),
    "qwen3": Family(qk_norm=True, qwen_window=True),
    "qwen3next": Family(qk_norm=True, shared_gate=True, output_gate=True),
    "qwen35": Family(qk_norm=True, shared_gate=True, output_gate=True),
    "seedoss": Family(qkv_bias=True, o_follows=False),
    "smollm3": Family(tied=True),
    "starcoder2": _BIASED._replace(kv_heads="", ffn_factor=0),
    "step3p": Family(qk_norm=True, router_bias=True),
}
_SUFFIXES = re.compile(r"(forcausallm|forconditionalgeneration|lmheadmodel|forcausallmvl)$")


def family(architectures: Any, model_type: str, keys: Any) -> Family:
    """Find the class by its architecture, else by its model type; the longest known beginning wins.

    The architecture comes first because edited copies often carry a wrong ``model_type``.
    """
    names = [a for a in architectures if isinstance(a, str)] if isinstance(architectures, list) else []
    names.append(model_type)
    if not model_type and "multi_query_group_num" in keys:
        names.append("chatglm")
    for name in names:
        plain = _SUFFIXES.sub("", re.sub(r"[^a-z0-9]", "", name.lower()))
        for length in range(len(plain), 2, -1):
            if plain[:length] in _FAMILIES:
                return _FAMILIES[plain[:length]]
    return Family(known=False)


_REFUSED = (
    ("compressed attention (DeepSeek-V4)", ("compress_ratios",)),
    ("a KV cache that several layers share", ("num_kv_shared_layers",)),
    ("cross attention to an image", ("cross_attention_layers",)),
    ("an encoder with cross attention", ("is_encoder_decoder",)),
)
_RECURRENT_TYPES = ("mamba", "rwkv", "recurrent", "falconmamba", "jamba", "bamba", "zamba")
MODELLED_LAYER_TYPES = ("full_attention", "sliding_attention", "chunked_attention", "linear_attention")


def refusals(config: dict[str, Any], prefix: str = "") -> Iterator[Problem]:
    """Name every kind of layer in the config that is not modelled, with the key that told so."""
    for kind, names in _REFUSED:
        told = next((name for name in names if config.get(name)), None)
        if told:
            yield _refused(kind, prefix + told)
    sparse = config.get("sparse_attention_config")
    if sparse and not (isinstance(sparse, dict) and sparse.get("use_sparse_attention") is False):
        yield _refused("block-sparse attention", prefix + "sparse_attention_config")
    for name in ("attn_type_list", "decoder_attention_types"):
        kinds = config.get(name)
        if isinstance(kinds, list) and 0 in kinds:
            yield _refused("linear (lightning) attention", prefix + name)
    for name in ("_block_types", "block_types"):
        if isinstance(config.get(name), list) and "recurrent" in config[name]:
            yield _refused("recurrent layers (RG-LRU)", prefix + name)
    types = config.get("layer_types")
    if isinstance(types, list):
        others = sorted({t for t in types if isinstance(t, str) and t not in MODELLED_LAYER_TYPES})
        if others:
            yield _refused(f"layers of type {', '.join(map(show, others))}", prefix + "layer_types")
    model_type = config.get("model_type")
    if isinstance(model_type, str) and model_type.lower().replace("_", "").startswith(_RECURRENT_TYPES):
        yield _refused(f"the recurrent state of {show(model_type)}", prefix + "model_type")


def _refused(kind: str, key: str) -> Problem:
    return Problem(f"not modelled: {kind}; models with MHA, MQA, GQA, MLA or linear attention are", key=key)
