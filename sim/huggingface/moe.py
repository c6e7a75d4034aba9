"""The feed-forward block of every layer, dense or mixture of experts, read from a Hugging Face config."""

from __future__ import annotations

from sim.huggingface.families import Family
from sim.huggingface.keys import Keys
from sim.model import DenseFfn, Ffn, MoeFfn

EXPERTS = ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts", "num_routed_experts")
_TOP_K = (
    "num_experts_per_tok",
    "num_experts_per_token",
    "experts_per_token",
    "moe_k",
    "moe_top_k",
    "moe_topk",
    "top_k_experts",
    "num_selected_experts",
)
_EXPERT_WIDTH = ("moe_intermediate_size", "moe_ffn_hidden_size", "expert_ffn_hidden_size")
_WIDTH = ("intermediate_size", "ffn_hidden_size", "n_inner", "ffn_dim")
_SHARED_WIDTH = (
    "shared_expert_intermediate_size",
    "share_expert_dim",
    "shared_intermediate_size",
    "moe_shared_expert_intermediate_size",
)
_SHARED_COUNT = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts", "num_shared_expert")


def ffn_layers(keys: Keys, family: Family, hidden: int, layers: int) -> list[Ffn | None]:
    """One feed-forward block per layer; an empty list if anything is wrong (and noted)."""
    is_moe = moe_layers(keys, layers) if _has_experts(keys) else [False] * layers
    moe = experts_block(keys, family) if any(is_moe) else None
    dense = dense_block(keys, family, hidden) if not all(is_moe) or not layers else None
    if keys.problems:
        return []
    return [moe if routed else dense for routed in is_moe]


def is_gated(keys: Keys, family: Family) -> bool:
    """Tell if the blocks have a gate matrix; squared ReLU never has one."""
    return family.gated and keys.text("hidden_act", "activation") not in ("relu2", "relu_squared")


def has_experts_beside_ffn(keys: Keys) -> bool:
    """Tell if a dense block runs beside the experts in every layer (Gemma-4's ``enable_moe_block``)."""
    return keys.flag("enable_moe_block", default=False)


def _has_experts(keys: Keys) -> bool:
    return keys.has(*EXPERTS) and keys.flag("enable_moe_block", default=True)


def dense_block(keys: Keys, family: Family, hidden: int) -> DenseFfn | None:
    """The dense block; None if anything is wrong (and noted)."""
    names = ("intermediate_size_mlp", "dense_intermediate_size", *_WIDTH)
    width = keys.optional(*names)
    if width is None and family.ffn_factor:
        width = family.ffn_factor * hidden
    elif width is None:
        keys.missing("the dense feed-forward width", *names[2:], *names[:2])
    bias = keys.flag("mlp_bias", "bias", "use_bias", default=family.mlp_bias)
    gated = is_gated(keys, family)
    return DenseFfn(width=width, gated=gated, bias=bias) if width and not keys.problems else None


def experts_block(keys: Keys, family: Family) -> MoeFfn | None:
    """The mixture of experts; None if anything is wrong (and noted)."""
    experts = _expert_count(keys)
    top_k = keys.number("the active experts per token", *_TOP_K)
    if experts and top_k > experts:
        keys.problem(keys.find(*_TOP_K)[0], f"{top_k} active experts are more than the {experts} routed ones")
    width = keys.number("the width of one expert", *_EXPERT_WIDTH, *_WIDTH)
    beside = has_experts_beside_ffn(keys)
    shared = keys.number("the dense block beside the experts", *_WIDTH) if beside else _shared(keys, family, width)
    router_bias = keys.flag("use_routing_bias", default=family.router_bias)
    gated = is_gated(keys, family)
    latent = keys.optional("moe_latent_size", "routed_expert_hidden_size")
    if keys.problems:
        return None
    return MoeFfn(
        experts=experts,
        top_k=top_k,
        width=width,
        shared_width=shared,
        shared_part="dense_ffn" if beside else "shared_experts",
        shared_gate=family.shared_gate and shared > 0,
        gated=gated,
        router_bias=router_bias,
        expert_bias=family.expert_bias,
        latent=latent,
    )


def _expert_count(keys: Keys) -> int:
    """Routed experts; spellings that stand side by side must agree."""
    counts = {name: keys.optional(name) for name in EXPERTS if keys.has(name)}
    known = {count for count in counts.values() if count}
    if len(known) > 1:
        said = ", ".join(f"{name} {count}" for name, count in counts.items())
        keys.problem(next(iter(counts)), f"the counts of routed experts disagree: {said}")
    return max(known, default=0)


def _shared(keys: Keys, family: Family, width: int) -> int:
    """Total width of the experts that every token visits."""
    if family.chunked:
        return width  # Llama-4 always has one
    stated = keys.optional(*_SHARED_WIDTH, least=0)
    count = keys.optional(*_SHARED_COUNT, least=0, most=1000)
    return (count or 0) * width if stated is None else stated


def moe_layers(keys: Keys, layers: int) -> list[bool]:
    """Tell for every layer if it has experts, in all the spellings; an empty list if wrong (and noted)."""
    spare = keys.optional("num_nextn_predict_layers", least=0, most=1000) or 0
    if keys.has("mlp_layer_types"):
        words = {"dense": False, "sparse": True}
        return keys.per_layer("mlp_layer_types", layers, words, spare) or []
    for name in ("moe_layers_enum", "moe_layers"):
        if keys.values.get(name):
            chosen = keys.indices(name, layers)
            return [] if chosen is None else [i in chosen for i in range(layers)]
    if isinstance(keys.values.get("moe_layer_freq"), list):
        return keys.per_layer("moe_layer_freq", layers, {0: False, 1: True}, spare) or []
    return _moe_by_rule(keys, layers)


def _moe_by_rule(keys: Keys, layers: int) -> list[bool]:
    if keys.has("interleave_moe_layer_step"):
        step = keys.number("the MoE layers", "interleave_moe_layer_step")
        return [(i + 1) % step == 0 for i in range(layers)] if step else []
    if keys.has("moe_layer_start_index", "moe_layer_interval"):
        return _moe_range(keys, layers)
    if keys.has("mlp_only_layers", "decoder_sparse_step"):
        dense = keys.indices("mlp_only_layers", layers) or set()
        step = _step(keys, "decoder_sparse_step")
        return [i not in dense and (i + 1) % step == 0 for i in range(layers)] if step else []
    first = keys.optional("first_k_dense_replace", "num_dense_layers", least=0) or 0
    step = _step(keys, "moe_layer_freq")
    return [i >= first and i % step == 0 for i in range(layers)] if step else []


def _step(keys: Keys, name: str) -> int:
    """Every how many layers; 1 when absent, ``UNKNOWN`` when wrong (and noted)."""
    stated = keys.optional(name)
    return 1 if stated is None else stated


def _moe_range(keys: Keys, layers: int) -> list[bool]:
    """ERNIE: every n-th layer from a first to a last one (-1: the last of all)."""
    first = keys.optional("moe_layer_start_index", least=0) or 0
    stated = keys.optional("moe_layer_end_index", least=-1)
    last = layers - 1 if stated is None or stated == -1 else stated
    step = _step(keys, "moe_layer_interval")
    return [first <= i <= last and (i + 1) % step == 0 for i in range(layers)] if step and last is not None else []
