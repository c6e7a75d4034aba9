"""The attention block of every layer, read from a Hugging Face config."""

from __future__ import annotations

from typing import Literal, NamedTuple

from sim.explain import show
from sim.huggingface.families import Family
from sim.huggingface.keys import Keys
from sim.model import Attention, GroupedQueryAttention, LatentAttention, SparseIndex

QUERY_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
_HEAD_DIM = ("head_dim", "attention_head_dim", "kv_channels")
_KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "num_attention_groups")
_MTP = ("num_nextn_predict_layers", "num_mtp_modules", "mtp_num_hidden_layers", "num_mtp_layers")


class Geometry(NamedTuple):
    """Heads of one kind of layer; ``UNKNOWN`` (0) where the config is wrong."""

    query_heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int


class Traits(NamedTuple):
    """Learned extras of every GQA block of a model."""

    qkv_bias: bool
    o_bias: bool
    qk_norm: bool
    wide_qk_norm: bool
    output_gate: Literal["element", "head"] | None


def mtp_layers(keys: Keys) -> tuple[str, int]:
    """The key that counts multi-token-prediction layers, and how many (0: none)."""
    name, _ = keys.find(*_MTP)
    return name, (keys.optional(name, least=0, most=1000) or 0) if name else 0


def attention_layers(keys: Keys, family: Family, hidden: int, layers: int) -> list[Attention | None]:
    """One attention block per layer; an empty list if anything is wrong (and noted)."""
    if keys.has("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim"):
        latent = _latent(keys)
        indices = index_layers(keys, layers)
        if keys.problems or latent is None:
            return []
        return [latent.model_copy(update={"index": index}) for index in indices]
    traits = attention_traits(keys, family)
    full = _geometry(keys, family, hidden)
    sliding = _sliding_layers(keys, family, layers)
    window = _window(keys, family) if any(sliding) else None
    local = _local_geometry(keys, full)
    shared_kv = keys.flag("attention_k_eq_v", default=False)
    full = _global_geometry(keys, full)
    full_sinks = keys.flag("add_full_attention_sink_bias", default=family.sinks)
    local_sinks = keys.flag("add_swa_attention_sink_bias", default=family.sinks)
    if keys.problems:
        return []
    extras = traits._asdict()
    everything = GroupedQueryAttention(**full._asdict(), **extras, shared_kv=shared_kv, sinks=full_sinks)
    if not any(sliding):
        return [everything] * layers
    chunked = _is_chunked(keys, family)
    windowed = GroupedQueryAttention(**local._asdict(), **extras, window=window, chunked=chunked, sinks=local_sinks)
    return [windowed if is_sliding else everything for is_sliding in sliding]


def attention_traits(keys: Keys, family: Family) -> Traits:
    """Biases and norms of the projections."""
    everywhere = keys.flag("bias", "use_bias", default=False)
    qkv = keys.flag("attention_bias", "add_qkv_bias", "qkv_bias", default=family.qkv_bias or everywhere)
    follows = qkv if family.o_follows and keys.has("attention_bias") else family.o_bias or everywhere
    qk_norm = keys.flag("use_qk_norm", "qk_layernorm", default=family.qk_norm)
    qk_norm = qk_norm and not family.chunked  # Llama-4's norm of Q and K has no weights
    gate: Literal["element", "head"] | None = None
    if keys.flag("attn_output_gate", default=family.output_gate):
        gate = "element"
    elif keys.flag("use_head_wise_attn_gate", default=False):
        gate = "head"
    return Traits(qkv, follows, qk_norm, family.wide_qk_norm and qk_norm, gate)


def query_heads(keys: Keys) -> int:
    """Query heads of a layer."""
    return keys.number("the query projection", *QUERY_HEADS)


def head_dim(keys: Keys, hidden: int, heads: int) -> int:
    """Head dimension: its own key, else hidden size / query heads."""
    stated = keys.optional(*_HEAD_DIM)
    if stated is not None or not hidden or not heads:
        return stated or 0
    if hidden % heads:
        keys.problem("head_dim", f"is missing, and {hidden} (hidden size) is not a multiple of {heads} heads")
        return 0
    return hidden // heads


def check_groups(keys: Keys, key: str, queries: int, kv_heads: int) -> None:
    """Note query heads that cannot be shared out evenly over the KV heads."""
    if queries and kv_heads and queries % kv_heads:
        keys.problem(key, f"{queries} query heads are not a multiple of {kv_heads} KV heads")


def _latent(keys: Keys) -> LatentAttention | None:
    """MLA; ``head_dim`` and ``num_key_value_heads`` say nothing about its cache and are not read."""
    sizes = {
        "query_heads": query_heads(keys),
        "kv_lora_rank": keys.number("the latent of MLA's cache", "kv_lora_rank"),
        "rope_dim": keys.number("the rope key of MLA's cache", "qk_rope_head_dim"),
        "nope_dim": keys.number("MLA's query projection", "qk_nope_head_dim"),
        "v_head_dim": keys.number("MLA's output projection", "v_head_dim"),
    }
    rank = keys.optional("q_lora_rank")
    return None if keys.problems else LatentAttention(**sizes, q_lora_rank=rank)


def index_layers(keys: Keys, layers: int) -> list[SparseIndex | None]:
    """The index of every layer of DeepSeek sparse attention; ``indexer_types`` says which layers share one."""
    if not keys.has("index_topk", "index_head_dim", "index_n_heads"):
        return [None] * layers
    purpose = "the index of sparse attention"
    sizes = {
        "heads": keys.number(purpose, "index_n_heads"),
        "head_dim": keys.number(purpose, "index_head_dim"),
        "top_k": keys.number(purpose, "index_topk"),
    }
    if not keys.has("q_lora_rank"):
        keys.missing(f"{purpose}, which reads compressed queries", "q_lora_rank")
    shared = [False] * layers
    if keys.has("indexer_types"):
        words = {"full": False, "shared": True}
        shared = keys.per_layer("indexer_types", layers, words, spare=mtp_layers(keys)[1]) or []
        if shared and shared[0]:
            keys.problem("indexer_types", "begins with a shared layer, which has no layer to share with")
    if keys.problems:
        return []
    return [SparseIndex(**sizes, shared=is_shared) for is_shared in shared]


def _geometry(keys: Keys, family: Family, hidden: int) -> Geometry:
    queries = query_heads(keys)
    size = head_dim(keys, hidden, queries)
    kv_heads = _kv_heads(keys, family, queries)
    v_size = keys.optional("v_head_dim")
    return Geometry(queries, kv_heads, size, size if v_size is None else v_size)


def _kv_heads(keys: Keys, family: Family, queries: int) -> int:
    if keys.has("multi_query_group_num") and keys.flag("multi_query_attention", default=True):
        key, stated = "multi_query_group_num", keys.optional("multi_query_group_num")
    elif not keys.flag("new_decoder_architecture", default=False) and keys.flag(
        "multi_query", default=family.kv_heads == "one"
    ):
        return 1  # Falcon-7B states as many KV heads as query heads beside it
    else:
        key, _ = keys.find(*_KV_HEADS)
        stated = keys.optional(*_KV_HEADS)
    if stated is None:
        if family.kv_heads:
            return queries
        keys.missing("the size of the KV cache", *_KV_HEADS, "multi_query_group_num", "multi_query")
        return 0
    check_groups(keys, key, queries, stated)
    return stated


def _local_geometry(keys: Keys, full: Geometry) -> Geometry:
    """Heads of the sliding layers where they differ (MiMo-V2, Step-3.5)."""
    other = keys.table("attention_other_setting")
    where, queries, groups, size = keys, "swa_num_attention_heads", "swa_num_key_value_heads", "swa_head_dim"
    if other is not None:
        where = Keys(other, keys.problems, f"{keys.prefix}attention_other_setting.")
        queries, groups, size = "num_attention_heads", "num_attention_groups", "head_dim"
    found = (where.optional(queries), where.optional(groups), where.optional(size))
    v_size = where.optional("swa_v_head_dim")
    if v_size is None and full.v_head_dim == full.head_dim:
        v_size = found[2]
    local = Geometry(*(f if s is None else s for s, f in zip((*found, v_size), full, strict=True)))
    check_groups(where, groups, local.query_heads, local.kv_heads)
    return local


def _global_geometry(keys: Keys, full: Geometry) -> Geometry:
    """Heads of the layers that attend to everything, where they differ (Gemma-4)."""
    kv_heads = keys.optional("num_global_key_value_heads")
    size = keys.optional("global_head_dim")
    if kv_heads is not None:
        check_groups(keys, "num_global_key_value_heads", full.query_heads, kv_heads)
        full = full._replace(kv_heads=kv_heads)
    return full if size is None else full._replace(head_dim=size, v_head_dim=size)


def _window(keys: Keys, family: Family) -> int:
    if _is_chunked(keys, family):
        return keys.number("chunked attention", "attention_chunk_size")
    return keys.number("sliding-window attention", "sliding_window", "sliding_window_size")


def _is_chunked(keys: Keys, family: Family) -> bool:
    types = keys.values.get("layer_types")
    return family.chunked or (isinstance(types, list) and "chunked_attention" in types)


def _sliding_layers(keys: Keys, family: Family, layers: int) -> list[bool]:
    """Tell for every layer if it attends to a window (or chunk) only."""
    words = {"full_attention": False, "linear_attention": False, "sliding_attention": True, "chunked_attention": True}
    if keys.has("layer_types") and not isinstance(keys.values.get("sliding_window_pattern"), str):
        return keys.per_layer("layer_types", layers, words, spare=mtp_layers(keys)[1]) or []
    if keys.has("hybrid_layer_pattern"):
        return keys.per_layer("hybrid_layer_pattern", layers, {0: False, 1: True}, mtp_layers(keys)[1]) or []
    if family.chunked:
        return _chunked_layers(keys, layers)
    if not keys.has("sliding_window", "sliding_window_size"):
        return [False] * layers
    qwen = family.qwen_window or keys.has("max_window_layers")
    if not keys.flag("use_sliding_window", default=not qwen):
        return [False] * layers
    if qwen:
        first = keys.number("sliding-window attention", "max_window_layers", least=0)
        return [i >= first for i in range(layers)]
    return _pattern(keys, family, layers)


def _chunked_layers(keys: Keys, layers: int) -> list[bool]:
    """Llama-4: the layers with rope are chunked; without a list, every fourth has none."""
    if not keys.has("attention_chunk_size"):
        return [False] * layers
    if keys.values.get("no_rope_layers"):
        return keys.per_layer("no_rope_layers", layers, {0: False, 1: True}) or []
    every = keys.optional("no_rope_layer_interval")
    every = 4 if every is None else every
    return [(i + 1) % every != 0 for i in range(layers)] if every else []


def _pattern(keys: Keys, family: Family, layers: int) -> list[bool]:
    """``sliding_window_pattern``: n (every n-th layer is full) or a word such as LLLG that repeats."""
    name, word = keys.find("sliding_window_pattern", "_sliding_window_pattern")
    if isinstance(word, str):
        if not word or set(word) - set("LG"):
            keys.problem(name, f"must be a number or made of L (window) and G (full), is {show(word)}")
            return []
        return [word[i % len(word)] == "L" for i in range(layers)]
    every = keys.optional(name) if name else family.window_every
    return [not every or (i + 1) % every != 0 for i in range(layers)]
