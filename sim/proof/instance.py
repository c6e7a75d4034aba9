"""A small model of the same shape: heads, experts and degrees as they are, everything else scaled down.

What decides whether a layout is exact is how heads, experts and tokens divide over ranks, so these stay. Sizes that no
strategy looks at (head dimension, hidden size, expert width, layers, vocabulary, window) shrink to a few elements.
"""

from __future__ import annotations

from dataclasses import replace

from sim.cut import Cut
from sim.formats import NumberFormat
from sim.lower import cut_of
from sim.model import (
    Attention,
    Ffn,
    GroupedQueryAttention,
    LatentAttention,
    Layer,
    LayerRun,
    LinearAttention,
    Model,
    MoeFfn,
)
from sim.strategy import Strategy
from sim.workload import Precision

WINDOW, BLOCK, PICKS = 5, 2, 4


def _at_least(least: int, ranks: int) -> int:
    """The smallest multiple of ``ranks`` from ``least`` on."""
    return -(-least // ranks) * ranks


def _attention(a: Attention | None, kv: NumberFormat) -> Attention | None:
    """Few elements per head, but so many that a cached token takes whole bytes in the cache's format."""
    wide = kv.denominator > 2
    if isinstance(a, GroupedQueryAttention):
        same = a.v_head_dim == a.head_dim
        head, value = ((16, 16) if same else (24, 8)) if wide else ((4, 4) if same else (4, 6))
        return GroupedQueryAttention(
            query_heads=a.query_heads,
            kv_heads=a.kv_heads,
            head_dim=head,
            v_head_dim=value,
            window=WINDOW if a.window else None,
            chunked=a.chunked,
            shared_kv=a.shared_kv,
            output_gate=a.output_gate,
        )
    if isinstance(a, LatentAttention):
        latent, rope = ((kv.denominator if 16 <= kv.denominator <= 64 else 32) - 8, 8) if wide else (6, 2)
        return LatentAttention(
            query_heads=a.query_heads,
            q_lora_rank=8 if a.q_lora_rank else None,
            kv_lora_rank=latent,
            rope_dim=rope,
            nope_dim=4,
            v_head_dim=3,
            index=a.index.model_copy(update={"heads": 2, "head_dim": 4, "top_k": PICKS}) if a.index else None,
        )
    return None


def _linear(a: LinearAttention | None) -> LinearAttention | None:
    """Heads as they are, few elements per head."""
    small = {"key_dim": 4, "value_dim": 3, "channel_decay": 2 if a and a.channel_decay else None}
    return a.model_copy(update=small) if a else None


def _ffn(f: Ffn | None, cut: Cut) -> Ffn | None:
    if f is None:
        return None

    def width(role: str, least: int) -> int:
        return _at_least(least, cut.mesh.count(cut.axes(role)))

    if isinstance(f, MoeFfn):
        shared = width("shared_ffn", 4) if f.shared_width else 0
        return MoeFfn(
            experts=f.experts,
            top_k=f.top_k,
            width=width("expert_ffn", 4),
            shared_width=shared,
            gated=f.gated,
            latent=8 if f.latent else None,
        )
    return f.model_copy(update={"width": width("ffn", 8), "bias": False})


def scaled(model: Model, strategy: Strategy, precision: Precision) -> Model:
    """The small model that a layout of ``model`` is executed with."""
    cut = cut_of(strategy, model)
    ranks = cut.mesh.size
    vocabulary = cut.mesh.count(cut.axes("vocab"))
    each = 2 if ranks * len(model.runs) <= 32 else 1
    runs = []
    for count, layer in model.runs[:6]:
        small = Layer(
            attention=_attention(layer.attention, precision.kv), linear=_linear(layer.linear), ffn=_ffn(layer.ffn, cut)
        )
        runs.append(LayerRun(count=min(count, each), layer=small))
    missing = strategy.pp - sum(run.count for run in runs)
    if missing > 0:
        runs[-1] = LayerRun(count=runs[-1].count + missing, layer=runs[-1].layer)
    return Model(
        name=f"{model.name} (small)",
        hidden=_at_least(16, ranks),
        vocab=_at_least(32, vocabulary) + model.vocab % vocabulary,
        tied_embeddings=model.tied_embeddings,
        pattern=tuple(runs),
    )


def small_blocks(cut: Cut) -> Cut:
    """The cut with token blocks so short that a few tokens reach every rank."""
    ownership = cut.ownership
    return replace(cut, ownership=ownership.model_copy(update={"block": min(ownership.block, BLOCK)}))


def describe(model: Model, small: Model) -> dict[str, str]:
    """What was scaled, for the report."""
    first, least = model.runs[0][1], small.runs[0][1]
    notes = {
        "layers": f"{model.layers} -> {small.layers}",
        "hidden size": f"{model.hidden} -> {small.hidden}",
        "vocabulary": f"{model.vocab} -> {small.vocab}",
    }
    for a, b in ((first.attention, least.attention),):
        if isinstance(a, GroupedQueryAttention) and isinstance(b, GroupedQueryAttention):
            notes["head dimension"] = f"{a.head_dim} -> {b.head_dim}"
        elif isinstance(a, LatentAttention) and isinstance(b, LatentAttention):
            notes["latent"] = f"{a.kv_lora_rank}+{a.rope_dim} -> {b.kv_lora_rank}+{b.rope_dim}"
    for f, g in ((first.ffn, least.ffn), (model.runs[-1][1].ffn, small.runs[-1][1].ffn)):
        if f and g:
            notes["expert width" if f.kind == "moe" else "FFN width"] = f"{f.width} -> {g.width}"
    windows = {k.attention.window for k in model.kinds if k.attention and k.attention.window}
    if windows:
        notes["window"] = f"{', '.join(map(str, sorted(windows)))} -> {WINDOW}"
    return notes
