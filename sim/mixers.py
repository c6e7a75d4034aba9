"""What each kind of attention and feed-forward does in a layer, written once for all strategies.

A strategy decides where queries, partial outputs and tokens travel; these pieces say what is computed between.
MLA runs with absorbed weights in decode and with expanded heads in prefill (DeepSeek-V2 paper, section 2.1).
"""

from __future__ import annotations

from sim.builder import Builder
from sim.errors import ProgramError
from sim.model import Attention, DenseFfn, GroupedQueryAttention, LatentAttention, MoeFfn
from sim.program import Value


def _attention(b: Builder) -> Attention:
    if not b.layer or not b.layer.attention:
        raise ProgramError("attention outside a layer that has one")
    return b.layer.attention


def query(b: Builder, x: Value) -> Value:
    """Projections of the new tokens; their cache entries are written. Returns the queries."""
    return projected(b, x)[0]


def projected(b: Builder, x: Value) -> tuple[Value, ...]:
    """As ``query``; in a prefill of MLA followed by the keys and values that the prompt expands to."""
    a = _attention(b)
    if isinstance(a, GroupedQueryAttention):
        names = ["q", "k"] if a.shared_kv else ["q", "k", "v"]
        q, *kv = b.project(x, names, "qkv")
        b.output_gate = b.project(x, ["o_gate"], "o_gate")[0] if a.output_gate else None
        return (b.append_kv(q, *kv)[0],)
    return _latent_query(b, x, a)


def _latent_query(b: Builder, x: Value, a: LatentAttention) -> tuple[Value, ...]:
    if a.q_lora_rank:
        compressed, latent = b.project(x, ["q_a", "kv_a"], "q_a_kv_a")
        compressed = b.norm(compressed, "q_a_norm")
        (q,) = b.project(compressed, ["q_b"], "q_b")
        if a.index and not a.index.shared:
            (scored,) = b.project(compressed, ["index_q"], "index_q")
            keys, weights = b.project(x, ["index_k", "index_weights"], "index_k")
            given = (scored, keys, weights)
            for part in zip(*map(b.by_phase, given), strict=True) if b.phase == "mixed" else [given]:
                b.pick(b.gather_candidates(b.index(*part)))
    else:
        (latent,) = b.project(x, ["kv_a"], "kv_a")
        (q,) = b.project(x, ["q_b"], "q")
    q, latent = b.append_kv(q, b.norm(latent, "kv_a_norm"))
    return (q, latent) if b.phase == "mixed" else _latent_of_phase(b, a, q, latent)


def _latent_of_phase(b: Builder, a: LatentAttention, q: Value, latent: Value) -> tuple[Value, ...]:
    """Absorbed queries where tokens are decoded; keys and values of every head where they belong to a prompt."""
    if b.prefills(q):
        return q, b.expand_latent(latent, a)
    return (b.per_head(q, "uk", a.kv_lora_rank + a.rope_dim, "absorb"),)


def attend(b: Builder, q: Value, *more: Value) -> Value:
    """Attention over the local cache: a softmax share where tokens are split.

    In a mixed step one kernel runs for what decodes and one for the prompts; all other operations see both at once.
    """
    a = _attention(b)
    if b.phase != "mixed":
        return _attend(b, a, q, *more)
    parts = zip(*(b.by_phase(v) for v in (q, *more)), strict=True)
    if isinstance(a, LatentAttention):
        parts = [_latent_of_phase(b, a, *part) for part in parts]  # type: ignore[assignment]
    return b.concat([raise_latent(b, _attend(b, a, *part)) for part in parts])


def _attend(b: Builder, a: Attention, q: Value, *expanded: Value) -> Value:
    if isinstance(a, LatentAttention) and not b.prefills(q):
        return b.attend(q, a.kv_lora_rank)
    return b.attend(q, a.v_head_dim, *expanded)


def raise_latent(b: Builder, attended: Value) -> Value:
    """MLA decode: from the latent to each head's values (W_UV). Other kinds have nothing to do."""
    a = _attention(b)
    if isinstance(a, LatentAttention) and b.decodes(attended) and attended.dims[1].size == a.kv_lora_rank:
        return b.per_head(attended, "uv", a.v_head_dim, "raise")
    return attended


def output(b: Builder, attended: Value) -> Value:
    """Back to the hidden size; a sum is owed over the axes that split the heads."""
    attended = raise_latent(b, attended)
    if b.output_gate:
        attended = b.gate(attended, b.output_gate)
    (y,) = b.project(attended, ["o"], "o")
    return y


def recurrent(b: Builder, x: Value) -> Value:
    """Linear attention; a sum is owed over the axes that split its heads."""
    inputs = [f"state_{part}" for part in ("q", "k", "v", "z", "gates")]
    if b.layer and b.layer.linear and b.layer.linear.channel_decay:
        *given, low = b.project(x, [*inputs, "state_decay_down"], "state_in")
        given += b.project(low, ["state_decay_up"], "state_decay")
    else:
        given = b.project(x, inputs, "state_in")
    (y,) = b.project(b.recur(*given), ["state_o"], "state_o")
    return y


def _ffn(b: Builder) -> DenseFfn | MoeFfn:
    if not b.layer or not b.layer.ffn:
        raise ProgramError("a feed-forward block outside a layer that has one")
    return b.layer.ffn


def is_moe(b: Builder) -> bool:
    """Whether this layer routes tokens to experts."""
    return isinstance(_ffn(b), MoeFfn)


def feed_forward(b: Builder, x: Value) -> Value:
    """The whole block on replicated tokens: dense, or routed and shared experts added up."""
    ffn = _ffn(b)
    if isinstance(ffn, DenseFfn):
        return _mlp(b, x, "gate_up", "down")
    routed = routed_experts(b, x)
    return b.add(routed, shared_expert(b, x)) if ffn.shared_width else routed


def has_shared(b: Builder) -> bool:
    """Whether this layer has shared experts."""
    ffn = _ffn(b)
    return isinstance(ffn, MoeFfn) and ffn.shared_width > 0


def _mlp(b: Builder, x: Value, up: str, down: str) -> Value:
    (wide,) = b.project(x, [up], up)
    (y,) = b.project(b.activate(wide), [down], down)
    return y


def shared_expert(b: Builder, x: Value) -> Value:
    """The experts that every token visits."""
    return _mlp(b, x, "shared_gate_up", "shared_down")


def route(b: Builder, x: Value) -> Value:
    """Router logits, from which the top-k choice follows, on every rank that has the token."""
    (logits,) = b.project(x, ["router"], "router")
    return logits


def routed_experts(b: Builder, x: Value, imbalance: float = 1.0) -> Value:
    """Routing and this rank's experts, on tokens that every rank holds."""
    ffn = _ffn(b)
    assert isinstance(ffn, MoeFfn)
    routing = route(b, x)
    return _from_latent(b, ffn, b.experts(_to_latent(b, ffn, x), routing, ffn, imbalance))


def _to_latent(b: Builder, ffn: MoeFfn, x: Value) -> Value:
    """What the routed experts see of a token."""
    return b.project(x, ["latent_down"], "latent_down")[0] if ffn.latent else x


def _from_latent(b: Builder, ffn: MoeFfn, y: Value) -> Value:
    """Back to the hidden size; what is owed stays owed."""
    return b.project(y, ["latent_up"], "latent_up", owed=True)[0] if ffn.latent else y


def exchanged_experts(b: Builder, x: Value, per_expert: bool, imbalance: float = 1.0) -> Value:
    """Routing, dispatch to the experts' ranks, experts, and combine; shared experts run beside the exchange."""
    ffn = _ffn(b)
    assert isinstance(ffn, MoeFfn)
    routing = route(b, x)
    seen = _to_latent(b, ffn, x)
    sent = b.dispatch(seen, routing, ffn, per_expert)
    shared = shared_expert(b, x) if ffn.shared_width else None
    routed = b.experts(sent, routing, ffn, imbalance)
    y = _from_latent(b, ffn, b.combine(routed, seen, ffn, per_expert))
    return b.add(y, shared) if shared else y
