"""FLOPs and bytes of single operations, payloads and formats, as worked out by hand."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import pytest
from strategies_for_tests import evaluate, figures, lane, layout, placement

from sim.catalog.models import load_model
from sim.formats import number_format
from sim.lower import lower
from sim.memory import low_latency_buffer
from sim.model import MoeFfn
from sim.ops_communication import distinct_ranks
from sim.workload import Precision, Workload

KNOWN = json.loads((Path(__file__).parent / "data" / "worked_examples.json").read_text("utf-8"))
LLAMA, R1 = "llama-3.1-405b", "deepseek-r1"

# -- operations ----------------------------------------------------------------------------------------------

LLAMA_OPS = {
    "ops_llama_tp8_B8_S1M_decode": ("tp", {"tp": 8}),
    "ops_llama_tp64_B8_S1M_decode": ("tp", {"tp": 64}),
    "ops_llama_helix64_B8_S1M_decode": ("helix", {"tpa": 8, "kvp": 8, "ownership": "contiguous"}),
}


@pytest.mark.parametrize("key", LLAMA_OPS)
def test_decode_operations_of_llama(key):
    known, (kind, degrees) = KNOWN[key], LLAMA_OPS[key]
    placed, work = placement(LLAMA, kind, **degrees), Workload(batch=8, context=2**20)
    ranks = placed.cut.mesh.size
    ops = figures(placed, work, rank=ranks - 1)  # with contiguous ownership the last rank owns the newest token
    for ours, theirs in (("attention.qkv", "qkv_gemm"), ("attention.o", "o_gemm")):
        assert {"flops": ops[ours].flops, "w_bytes": ops[ours].weight_bytes} == known[theirs]
    core = ops["attention.core"]
    assert core.flops == known["attn"]["flops"]
    assert core.kv_bytes == known["attn"]["kv_read_bytes"]
    assert core.io_bytes == known["attn"]["qo_bytes"]
    assert core.flops / core.kv_bytes == known["attn"]["ai_flops_per_kv_byte"]
    assert ops["attention.append_kv"].kv_bytes == known["attn"]["kv_write_bytes"]
    up, down = ops["ffn.gate_up"], ops["ffn.down"]
    ffn = {"flops": up.flops + down.flops, "w_bytes": up.weight_bytes + down.weight_bytes}
    assert ffn == known["ffn"]


def test_prefill_operations_of_llama():
    known = KNOWN["ops_llama_tp8_prefill_8192"]
    placed, work = placement(LLAMA, "tp", tp=8), Workload(phase="prefill", batch=1, context=8192)
    ops = figures(placed, work)
    assert ops["attention.qkv"].flops == known["qkv_flops"]
    assert ops["attention.core"].flops == known["attn_flops"]
    assert ops["attention.o"].flops == known["o_flops"]
    assert ops["ffn.gate_up"].flops + ops["ffn.down"].flops == known["ffn_flops"]
    assert ops["attention.all_reduce"].size == ops["ffn.all_reduce"].size == known["allreduce_msg_bytes"]


R1_OPS = {
    "ops_r1_tp8_B8_S1M_decode": ("tp", {"tp": 8}, 8),
    "ops_r1_helix_kvp8_B8_S1M_decode": ("helix", {"tpa": 1, "kvp": 8, "ep": 8}, 8),
    "ops_r1_adp_B1_S1M_decode": ("attention_dp", {"dp": 8, "ep": 8}, 8),
}
R1_NAMES = {"q_a_kv_a": "q_a_kv_a", "q_b": "q_b", "absorb": "absorb_uk", "raise": "up_uv", "o": "o"}


@pytest.mark.parametrize("key", R1_OPS)
def test_decode_operations_of_r1(key):
    known, (kind, degrees, batch) = KNOWN[key], R1_OPS[key]
    placed = placement(R1, kind, Precision(weights="fp8"), **degrees)
    ops = figures(placed, Workload(batch=batch, context=2**20), layer=1)
    for ours, theirs in R1_NAMES.items():
        op = ops[f"attention.{ours}"]
        assert {"flops": op.flops, "w_bytes": op.weight_bytes} == known[theirs], ours
    core = ops["attention.core"]
    assert {"flops": core.flops, "kv_read_bytes": core.kv_bytes} == known["attn"]


@pytest.mark.parametrize("case", KNOWN["r1_prefill_attn_share"], ids=lambda c: str(c["T"]))
def test_share_of_attention_in_a_prefill_of_r1(case):
    """Every GEMM of every layer on one side, scores and values on the other; the LM head belongs to neither."""
    placed, work = placement(R1, "tp", tp=1), Workload(phase="prefill", batch=1, context=case["T"])
    linear = attention = 0
    for number, count in enumerate(placed.model.kinds.values()):
        for name, op in figures(placed, work, layer=number).items():
            if name == "attention.core":
                attention += count * op.flops
            else:
                linear += count * op.flops
    assert attention == case["attn_flops"]
    assert linear == case["lin_flops"]
    assert attention / (attention + linear) == case["attn_flop_share"]


# -- experts -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "ours"), [("bf16", "bf16"), ("fp8_block128", "fp8"), ("mxfp8", "mxfp8"), ("nvfp4", "nvfp4")]
)
def test_dispatch_payload_of_one_token(written, ours):
    placed = placement(R1, "wide_ep", Precision(dispatch=ours), dp=8)
    program = lower(placed.model, placed.strategy, "decode")
    dispatch = next(op for op in list(program.layers.values())[1].ops if op.name == "ffn.dispatch")
    assert dispatch.payload(lane(placed, Workload(batch=8, context=10))) == KNOWN["dispatch_bytes_per_token"][written]


VOLUMES = [v for v in KNOWN["ep_volumes"] if "note" not in v]


@pytest.mark.parametrize("case", VOLUMES, ids=lambda v: str(v["ep"]))
def test_volumes_of_expert_parallelism(case):
    ranks, work = case["ep"], Workload(batch=case["ep"], context=10)
    assert distinct_ranks(256, ranks, 8) == pytest.approx(case["expected_unique_ranks"], rel=1e-14)
    assert min(ranks, 8) == case["upper_bound_copies"]
    per_rank = placement(R1, "wide_ep", Precision(dispatch="fp8"), dp=ranks)
    messages = figures(per_rank, work, layer=1)
    sent, back = messages["ffn.dispatch"].sent, messages["ffn.combine"].sent
    assert sent == pytest.approx(case["dispatch_fp8_bytes_per_token_expected_remote"], rel=1e-14)
    assert back == pytest.approx(case["combine_bf16_bytes_per_token_expected_remote"], rel=1e-14)
    assert sent / 7392 == pytest.approx(case["expected_remote_copies"], rel=1e-14)
    per_expert = placement(R1, "wide_ep", dp=ranks, copies="per_expert")
    copies = figures(per_expert, work, layer=1)["ffn.dispatch"].sent / 14336 * ranks / (ranks - 1)
    assert copies == pytest.approx(case["expert_major_copies"], rel=1e-14)
    gathered = figures(placement(R1, "attention_dp", dp=ranks, ep=ranks), work, layer=1)["ffn.all_gather"]
    assert gathered.size * (ranks - 1) == case["ag_recv_bytes_per_local_token_bf16"]


def test_experts_that_do_not_divide_need_redundant_slots():
    assert KNOWN["ep_volumes"][-1]["ep"] == 72
    r1 = load_model(R1)
    with_copies = layout("wide_ep", dp=72, redundant_experts=32)
    assert with_copies.check(r1) == []
    assert with_copies.cut(r1).dim("experts", 256).size == 288
    assert {with_copies.cut(r1).range(with_copies.cut(r1).dim("experts", 256), r)[1] for r in range(72)} == {4}


def test_upper_bound_of_128_tokens_a_rank():
    upper, ranks = KNOWN["bound_128_tokens_rank_ep64"], 64
    placed = placement(R1, "wide_ep", Precision(dispatch="fp8"), dp=ranks, copies="per_expert")
    messages = figures(placed, Workload(batch=128 * ranks, context=10), layer=1)
    whole = Fraction(ranks, ranks - 1)  # the bound counts the copies that stay as well
    assert messages["ffn.dispatch"].sent * whole == pytest.approx(upper["dispatch_fp8_upper"], rel=1e-14)
    assert messages["ffn.combine"].sent * whole == pytest.approx(upper["combine_bf16_upper"], rel=1e-14)


@pytest.mark.parametrize(("tokens", "expected"), KNOWN["deepep_ll_rdma_buffer_bytes"].items())
def test_low_latency_buffers(tokens, expected):
    assert low_latency_buffer(7168, 256, int(tokens)) == expected
    placed = placement(R1, "wide_ep", dp=8, copies="per_expert")
    report = evaluate(placed, Workload(batch=8 * int(tokens), context=10)).memory()
    assert report.communication_bytes == expected


def test_published_rates_follow_from_our_payloads():
    """GB/s = tokens x copies x payload / measured time; DeepEP's dispatch message has a header of 16 bytes."""
    placed = placement(R1, "wide_ep", Precision(dispatch="fp8"), dp=8)
    ops = list(lower(placed.model, placed.strategy, "decode").layers.values())[1].ops
    size = {op.name: op.payload(lane(placed, Workload(batch=8, context=10))) for op in ops if hasattr(op, "payload")}
    check = KNOWN["deepep_ll_check_GBps"]
    for key, message, micros in (
        ("dispatch_ep8", 16 + size["ffn.dispatch"], 77),
        ("combine_ep8", size["ffn.combine"], 114),
        ("dispatch_ep64", 16 + size["ffn.dispatch"], 173),
        ("combine_ep64", size["ffn.combine"], 314),
    ):
        assert 128 * 8 * message / micros / 1e3 == pytest.approx(check[key], rel=1e-14)
    check, payload = KNOWN["trtllm_onesided_check_GBps"], KNOWN["dispatch_bytes_per_token"]
    assert 2048 * 8 * payload["bf16"] / 311.8e3 == pytest.approx(check["bf16_dispatch_ep8_b2048"], rel=1e-14)
    assert 2048 * 8 * payload["nvfp4"] / 101.7e3 == pytest.approx(check["nvfp4_dispatch_ep8_b2048"], rel=1e-14)


def test_rows_of_one_expert():
    placed = placement(R1, "wide_ep", dp=64)
    experts = figures(placed, Workload(batch=128 * 64, context=10), layer=1)["ffn.experts"]
    slots = lane(placed, Workload(batch=1, context=1)).size(placed.cut.dim("experts", 256))
    assert experts.shape.rows / slots == KNOWN["moe_gemm_m"]["B=128/GPU,64 GPUs"]


@pytest.mark.parametrize(("tokens", "expected"), KNOWN["expected_active_experts"].items())
def test_expected_distinct_experts(tokens, expected):
    placed = placement(R1, "tp", tp=1)
    experts = figures(placed, Workload(batch=int(tokens), context=10), layer=1)["ffn.experts"]
    assert experts.shape.hit == pytest.approx(expected, rel=1e-13)
    assert experts.weight_bytes == pytest.approx(expected * 2 * KNOWN["ds_expert_params"], rel=1e-13)


# -- formats -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "ours"),
    [
        ("nvfp4", "nvfp4"),
        ("mxfp4", "mxfp4"),
        ("mxfp8", "mxfp8"),
        ("fp8_block128x128", "fp8_block"),
        ("fp8_token_group128", "fp8_group"),
    ],
)
def test_bits_of_an_element(written, ours):
    assert number_format(ours).bits == Fraction(KNOWN["quant_bits_per_elem"][written])


def test_bytes_of_one_expert():
    r1, known = load_model(R1), KNOWN["expert_bytes"]
    ffn = next(layer.ffn for layer in r1.kinds if isinstance(layer.ffn, MoeFfn))
    elements = sum(t.elements for t in ffn.tensors(r1.hidden) if t.name.startswith("experts")) // ffn.experts
    assert number_format("bf16").bytes(elements) == known["bf16"]
    assert number_format("fp8_block").bytes(elements) == known["fp8_blockscale"]
    assert number_format("nvfp4").bytes(elements) == known["nvfp4"] == known["nvfp4_MiB"] * 2**20


def test_four_bit_cache_of_one_head():
    placed = placement(LLAMA, "tp", Precision(kv_cache="nvfp4"), tp=8)
    attention = next(iter(placed.model.kinds)).attention
    on = lane(placed, Workload(batch=1, context=1))
    assert on.kv_bytes_per_token(attention) == KNOWN["nvfp4_kv_bytes_llama_token_layer_rank_1head"]
