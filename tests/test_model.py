"""A model's tensors, layers and cache, and the shapes that cannot exist."""

import pytest
from pydantic import ValidationError

from sim.model import DenseFfn, GroupedQueryAttention, LatentAttention, Layer, LayerRun, Model, MoeFfn

GQA = GroupedQueryAttention(query_heads=8, kv_heads=2, head_dim=16, v_head_dim=16)
MLA = LatentAttention(query_heads=4, q_lora_rank=24, kv_lora_rank=32, rope_dim=8, nope_dim=16, v_head_dim=16)
FFN = DenseFfn(width=256)
FULL = Layer(attention=GQA, ffn=FFN)
LOCAL = Layer(attention=GQA.model_copy(update={"window": 64}), ffn=FFN)


def sizes(block, hidden=64):
    return {t.name: t.elements for t in block.tensors(hidden)}


def model(**fields):
    return Model(**{"name": "toy", "hidden": 64, "vocab": 100, "pattern": [{"count": 1, "layer": FULL}]} | fields)


def run(count, layer):
    return LayerRun(count=count, layer=layer)


def test_gqa_projects_queries_for_all_heads_and_keys_and_values_for_kv_heads():
    assert sizes(GQA) == {"q": 64 * 8 * 16, "k": 64 * 2 * 16, "v": 64 * 2 * 16, "o": 8 * 16 * 64}


def test_gqa_extras_are_counted_where_they_are_learned():
    extras = {"qkv_bias": True, "o_bias": True, "qk_norm": True, "sinks": True}
    found = sizes(GQA.model_copy(update=extras))
    assert {name: n for name, n in found.items() if name not in sizes(GQA)} == {
        "q_bias": 8 * 16,
        "k_bias": 2 * 16,
        "v_bias": 2 * 16,
        "o_bias": 64,
        "qk_norm": 2 * 16,
        "sinks": 8,
    }


def test_a_wide_norm_of_q_and_k_has_weights_for_every_head():
    assert sizes(GQA.model_copy(update={"qk_norm": True, "wide_qk_norm": True}))["qk_norm"] == (8 + 2) * 16


def test_one_projection_for_k_and_v_saves_weights_but_no_cache():
    shared = GQA.model_copy(update={"shared_kv": True})
    assert "v" not in sizes(shared)
    assert shared.cache_elements == GQA.cache_elements == 2 * 16


def test_value_heads_may_be_narrower_than_key_heads():
    narrow = GroupedQueryAttention(query_heads=8, kv_heads=2, head_dim=24, v_head_dim=16)
    assert narrow.cache_elements == 24 + 16
    assert sizes(narrow)["o"] == 8 * 16 * 64


@pytest.mark.parametrize(("kv_heads", "label"), [(8, "MHA"), (2, "GQA"), (1, "MQA")])
def test_the_label_is_the_fields_own_word(kv_heads, label):
    assert GQA.model_copy(update={"kv_heads": kv_heads}).label == label


def test_mla_caches_one_latent_and_one_rope_key_for_all_heads():
    assert (MLA.label, MLA.cached_heads, MLA.cache_elements, MLA.window) == ("MLA", 1, 32 + 8, None)


def test_mla_weights_follow_its_five_projections():
    assert sizes(MLA) == {
        "q_a": 64 * 24,
        "q_a_norm": 24,
        "q_b": 24 * 4 * (16 + 8),
        "kv_a": 64 * (32 + 8),
        "kv_a_norm": 32,
        "uk": 4 * 16 * 32,
        "uv": 4 * 32 * 16,
        "o": 4 * 16 * 64,
    }


def test_mla_without_a_query_rank_projects_from_the_residual_stream():
    assert sizes(MLA.model_copy(update={"q_lora_rank": None}))["q_b"] == 64 * 4 * (16 + 8)


@pytest.mark.parametrize(("gated", "matrices"), [(True, 3), (False, 2)])
def test_a_gate_is_a_third_matrix(gated, matrices):
    assert sum(sizes(DenseFfn(width=256, gated=gated)).values()) == matrices * 64 * 256


def test_experts_shared_experts_and_router_are_separate_tensors():
    moe = MoeFfn(experts=8, top_k=2, width=32, shared_width=48, shared_gate=True, router_bias=True)
    assert sizes(moe) == {
        "router": 64 * 8,
        "router_bias": 8,
        "experts_gate_up": 8 * 2 * 64 * 32,
        "experts_down": 8 * 64 * 32,
        "shared_gate_up": 2 * 64 * 48,
        "shared_down": 64 * 48,
        "shared_gate": 64,
    }
    assert {t.part for t in moe.tensors(64)} == {"routed_experts", "shared_experts"}


def test_norms_routers_and_biases_are_never_quantised():
    moe = MoeFfn(experts=8, top_k=2, width=32, router_bias=True, expert_bias=True)
    layer = Layer(attention=GQA.model_copy(update={"qkv_bias": True}), ffn=moe, extra_norms=2)
    kept = {t.name for t in layer.tensors(64) if not t.quantised}
    assert kept >= {"attn_norm", "ffn_norm", "extra_norms", "router", "router_bias", "q_bias"}
    assert not kept & {"q", "k", "v", "o", "experts_gate_up", "experts_down"}


def test_a_layer_without_attention_has_no_attention_weights():
    names = {t.name for t in Layer(attention=None, ffn=FFN).tensors(64)}
    assert names == {"ffn_norm", "gate_up", "down"}


def test_layers_are_numbered_head_then_pattern_then_tail():
    toy = model(head=[run(1, FULL)], pattern=[run(2, LOCAL), run(1, FULL)], period=2, tail=[run(1, FULL)])
    assert toy.runs == ((1, FULL), (2, LOCAL), (1, FULL), (2, LOCAL), (2, FULL))
    assert toy.kinds == {FULL: 4, LOCAL: 4}
    assert toy.layers == 8


@pytest.mark.parametrize(("tied", "tables"), [(True, 1), (False, 2)])
def test_tied_embeddings_are_held_once(tied, tables):
    inner = sum(t.elements for t in FULL.tensors(64))
    assert model(tied_embeddings=tied).parameters == inner + tables * 100 * 64 + 64


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: GroupedQueryAttention(query_heads=8, kv_heads=3, head_dim=4, v_head_dim=4),
            "not a multiple of 3",
        ),
        (
            lambda: GroupedQueryAttention(query_heads=8, kv_heads=2, head_dim=4, v_head_dim=8, shared_kv=True),
            "K and V can be shared only",
        ),
        (lambda: MoeFfn(experts=4, top_k=5, width=8), "top_k 5 is larger than the 4"),
        (lambda: Layer(attention=None, ffn=None), "needs an attention block or a feed-forward block"),
        (lambda: DenseFfn(width=0), "greater than or equal to 1"),
        (lambda: model(period=10**9), "1,000,000,000 layers are more than 10,000"),
        (lambda: model(colour="red"), "Extra inputs are not permitted"),
        (lambda: model(pattern=[]), "at least 1 item"),
        (lambda: model(unquantised=["router"]), "Input should be"),
    ],
)
def test_a_shape_that_cannot_exist_is_refused_with_the_rule(build, message):
    with pytest.raises(ValidationError, match=message):
        build()


def test_models_can_be_keys_of_a_dictionary():
    assert {model(): 1}[model()] == 1
