"""Every figure worked out by hand comes out of the programs and the placement; the file says where it comes from."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from pathlib import Path

import pytest
from strategies_for_tests import figures, lane, outside, placement

from sim.catalog.models import load_model
from sim.lower import lower
from sim.ops_communication import ExchangeShares
from sim.ownership import Ownership
from sim.placement import Placement
from sim.program import CommunicationOp
from sim.stages import stage_sizes
from sim.workload import Workload

KNOWN = json.loads((Path(__file__).parent / "data" / "worked_examples.json").read_text("utf-8"))
LLAMA, R1 = "llama-3.1-405b", "deepseek-r1"

LLAMA_LAYOUTS = {
    ("TP", 8): ("tp", {"tp": 8}),
    ("TP", 16): ("tp", {"tp": 16}),
    ("TP", 64): ("tp", {"tp": 64}),
    ("ADP", 8): ("attention_dp", {"dp": 8}),
    ("ADP", 64): ("attention_dp", {"dp": 8, "tp": 8}),
    ("KVP-Medha", 16): ("kvp", {"kvp": 2, "tp": 8}),
    ("DCP", 16): ("dcp", {"tp": 16, "dcp": 2}),
    ("Helix", 8): ("helix", {"tpa": 8, "kvp": 1}),
    ("Helix", 64): ("helix", {"tpa": 8, "kvp": 8}),
}
R1_LAYOUTS = {
    "TP8 (MoE TP8)": ("tp", {"tp": 8}),
    "TP8 + EP8": ("tp", {"tp": 8, "ep": 8}),
    "ADP8 + EP8": ("attention_dp", {"dp": 8, "ep": 8}),
    "WideEP: ADP64 + EP64, 256 slots": ("wide_ep", {"dp": 64, "ep": 64}),
    "DCP8 (vLLM tp8 dcp8, ag_rs)": ("dcp", {"tp": 8, "dcp": 8, "ep": 8}),
    "Helix kvp8 x tpa1, TPF1 x EP8": ("helix", {"tpa": 1, "kvp": 8, "ep": 8}),
}


def _case(strategy: str, ranks: int) -> dict:
    return next(c for c in KNOWN["llama405b"] if (c["strategy"], c["N"]) == (strategy, ranks))


def _llama(case: dict) -> tuple[Placement, Workload]:
    kind, degrees = LLAMA_LAYOUTS[case["strategy"], case["N"]]
    return placement(LLAMA, kind, **degrees), Workload(batch=case["B"], context=case["S"])


def _r1(case: dict, **more) -> tuple[Placement, Workload]:
    kind, degrees = R1_LAYOUTS[case["strategy"]]
    return placement(R1, kind, **degrees, **more), Workload(batch=case["B_global"], context=case["S"])


def _duplication(placed: Placement, work: Workload) -> Fraction:
    held = sum(placed.kv_bytes(0, lane(placed, work, r)) for r in range(placed.cut.mesh.size))
    return Fraction(held, placed.unique_kv_bytes(work.sequences))


GROUPS = {
    "q": ("q",),
    "kv": ("k", "v"),
    "o": ("o",),
    "ffn": ("gate_up", "down"),
    "norms": ("attn_norm", "ffn_norm", "final_norm"),
    "embed": ("embedding",),
    "lm_head": ("lm_head",),
}
R1_GROUPS = {
    "attn": ("q_a", "q_a_norm", "q_b", "kv_a", "kv_a_norm", "uk", "uv", "o"),
    "dense_ffn": ("gate_up", "down"),
    "routed": ("experts_gate_up", "experts_down"),
    "shared": ("shared_gate_up", "shared_down"),
    "gate": ("router", "router_bias"),
    "embed": ("embedding",),
    "lm_head": ("lm_head",),
    "final_norm": ("final_norm",),
}


def _grouped(elements: dict[str, int], groups: dict[str, tuple[str, ...]]) -> dict[str, int]:
    found = {group: sum(elements[name] for name in names) for group, names in groups.items()}
    return found | {"total": sum(elements.values())}


def _ids(cases: list[dict]) -> list[str]:
    return [f"{c['strategy']}-{c['N']}" for c in cases]


llama_cases = pytest.mark.parametrize("case", KNOWN["llama405b"], ids=_ids(KNOWN["llama405b"]))
r1_cases = pytest.mark.parametrize("case", KNOWN["deepseek_r1"], ids=_ids(KNOWN["deepseek_r1"]))


def test_parameters_of_the_models():
    assert load_model(LLAMA).parameters == KNOWN["params_total"]["llama405b"]
    assert load_model(R1).parameters == KNOWN["params_total"]["deepseek_r1_main"]


def test_parameters_of_one_latent_attention_and_of_one_expert():
    r1 = load_model(R1)
    last = list(r1.kinds)[-1]
    size = {t.name: t.elements for t in r1.tensors(last)}
    known = KNOWN["ds_attn_params_layer"]
    assert {name: size[name] for name in ("q_a", "kv_a", "q_b", "o")} == {
        name: known[name] for name in ("q_a", "kv_a", "q_b", "o")
    }
    assert size["uk"] + size["uv"] == known["kv_b"]
    assert size["q_a_norm"] + size["kv_a_norm"] == known["norms"]
    assert (size["experts_gate_up"] + size["experts_down"]) // 256 == KNOWN["ds_expert_params"]


# -- table T1: Llama-3.1-405B --------------------------------------------------------------------------------


@llama_cases
def test_t1_cache(case):
    placed, work = _llama(case)
    first, attention = lane(placed, work), next(iter(placed.model.kinds)).attention
    assert placed.cut.mesh.size == case["N"]
    # DCP gathers the queries of its group only after they are projected; the table says how many a rank projects
    projected = placed.cut.dim("q_heads", attention.query_heads)
    assert first.size(projected) == case["q_heads_during_attention"]
    assert first.kv_heads(attention) == case["kv_heads_per_rank"]
    assert first.kv_bytes_per_token(attention) == case["kv_bytes_token_layer_rank"]
    assert placed.kv_bytes_per_token(0, first) == case["kv_bytes_token_rank"]
    assert first.sequences().count == case["batch_per_rank"]
    one = Workload(batch=1, context=case["S"])
    assert placed.kv_bytes(0, lane(placed, one)) == case["kv_bytes_one_seq_rank"]
    assert placed.kv_bytes(0, first) == case["kv_bytes_batch_rank"]
    assert _duplication(placed, work) == Fraction(case["duplication_factor"])


@llama_cases
def test_t1_weights(case):
    placed, _ = _llama(case)
    ranks = {"weights_params_rank": 0, "weights_params_rank_master": 0, "weights_params_rank_kvp_worker": 8}
    asked = [key for key in ranks if key in case]
    assert asked
    for key in asked:
        assert _grouped(placed.elements(0, ranks[key]), GROUPS) == case[key]


@pytest.mark.parametrize("ranks", [8, 16, 64])
def test_t1_messages_of_tensor_parallelism(ranks):
    case = _case("TP", ranks)
    placed, work = _llama(case)
    inside, around = figures(placed, work), outside(placed, work)
    for message in (inside["attention.all_reduce"], inside["ffn.all_reduce"], around["embedding.all_reduce"]):
        assert message == (case["allreduce_msg_bytes"], case["ring_wire_bytes_rank_per_allreduce"])
    assert around["logits.all_gather"].size * ranks == case["logits_allgather_total_bytes_bf16"]


@pytest.mark.parametrize("ranks", [8, 16, 64])
def test_t1_all_reduces_of_one_step(ranks):
    placed, _ = _llama(_case("TP", ranks))
    program = lower(placed.model, placed.strategy, "decode")
    segments = [(1, program.begin), *((placed.model.kinds[k], s) for k, s in program.layers.items()), (1, program.end)]
    count = sum(n * sum(getattr(op, "kind", "") == "all_reduce" for op in s.ops) for n, s in segments)
    assert count == _case("TP", ranks)["allreduce_per_step"]


@pytest.mark.parametrize("ranks", [8, 64])
def test_t1_messages_of_attention_data_parallelism(ranks):
    case = _case("ADP", ranks)
    placed, work = _llama(case)
    inside = figures(placed, work)
    nothing = (0, 0)
    assert inside.get("attention.all_reduce", nothing)[0] == case["attn_allreduce_msg_bytes_over_tpa"]
    # what arrives from each peer is what each of them contributes
    assert inside["ffn.all_gather"].size * 7 == case["ffn_allgather_recv_bytes_rank"]
    assert inside["ffn.reduce_scatter"].sent == case["ffn_reducescatter_send_bytes_rank"]
    second = case.get("second_reduction_allreduce_msg_bytes_over_tpa", 0)
    assert inside.get("ffn.all_reduce", nothing)[0] == second


def test_t1_messages_of_kv_parallelism():
    case = _case("KVP-Medha", 16)
    placed, work = _llama(case)
    master, worker = figures(placed, work), figures(placed, work, rank=8)
    assert worker["attention.gather"].sent == case["gather_bytes_per_worker_rank"]
    assert master["attention.gather"].sent == 0
    assert master["attention.broadcast"].sent == case["broadcast_recv_bytes_per_worker_rank"]
    assert worker["attention.broadcast"] == (case["broadcast_recv_bytes_per_worker_rank"], 0)
    assert master["attention.all_reduce"].size == master["ffn.all_reduce"].size == case["allreduce_msg_bytes"]


def _dcp_messages(placed: Placement, packed: Placement, work: Workload, case: dict) -> None:
    messages = figures(placed, work)
    ranks = placed.cut.kv_ranks
    assert messages["attention.all_gather"].size * (ranks - 1) == case["q_allgather_recv_bytes_rank"]
    assert messages["attention.all_gather_lse"].size * (ranks - 1) == case["lse_allgather_recv_bytes_rank"]
    assert messages["attention.reduce_scatter"].sent == case["out_reducescatter_send_bytes_rank"]
    assert figures(packed, work)["attention.all_to_all"].sent == case["a2a_send_bytes_rank"]
    assert _exchange(packed).buffer(lane(packed, work)) == case["a2a_packed_buffer_bytes_rank"]


def _exchange(placed: Placement) -> ExchangeShares:
    program = lower(placed.model, placed.strategy, "decode")
    ops = next(iter(program.layers.values())).ops
    return next(op for op in ops if isinstance(op, ExchangeShares))


def test_t1_messages_of_decode_context_parallelism():
    case = _case("DCP", 16)
    placed, work = _llama(case)
    packed = placement(LLAMA, "dcp", tp=16, dcp=2, exchange="a2a")
    _dcp_messages(placed, packed, work, case)
    assert figures(placed, work)["attention.all_gather"].size == case["q_allgather_contrib_bytes_rank"]
    assert figures(placed, work)["attention.all_reduce"].size == case["allreduce_msg_bytes"]
    core = next(
        op for op in lower(placed.model, placed.strategy, "decode").layers.popitem()[1].ops if "core" in op.name
    )
    assert lane(placed, work).size(core.inputs[0].dims[0]) == case["q_heads_after_gather"]


@pytest.mark.parametrize("ranks", [8, 64])
def test_t1_messages_of_helix(ranks):
    case = _case("Helix", ranks)
    placed, work = _llama(case)
    first, inside = lane(placed, work), figures(placed, work)
    assert inside["attention.all_reduce"].size == case["o_proj_allreduce_msg_bytes"]
    assert inside["ffn.all_reduce"].size == case["ffn_allreduce_msg_bytes"]
    after = placed.cut.dim("o_heads", 128)
    assert first.size(after) == case["q_heads_after_a2a"]
    sent = inside["attention.all_to_all"].sent if ranks > 8 else 0
    assert sent == case["a2a_send_bytes_rank_incl_stats"]
    # the buffer exists at kvp 8 only; at kvp 1 the heads are the same and so would be its size
    exchange, share = _exchange(placement(LLAMA, "helix", tpa=8, kvp=8)), Fraction(placed.cut.kv_ranks - 1)
    share /= placed.cut.kv_ranks
    rows, heads, width = 8, 16, 128
    statistics = rows * heads * exchange.statistics * 4
    assert statistics == case["a2a_stats_buffer_bytes_rank"]
    buffer = exchange.buffer(lane(placement(LLAMA, "helix", tpa=8, kvp=8), work))
    assert buffer - statistics == case["a2a_partial_o_buffer_bytes_rank"] == rows * heads * width * 2
    assert (buffer - statistics) * share == case["a2a_send_bytes_rank_paper_volume_only"]


# -- table T2: DeepSeek-R1 -----------------------------------------------------------------------------------


@r1_cases
def test_t2_cache_and_slots(case):
    placed, work = _r1(case)
    first, kinds = lane(placed, work), list(placed.model.kinds)
    attention = kinds[0].attention
    assert placed.cut.mesh.size == case["N"]
    assert first.kv_bytes_per_token(attention) == case["kv_bytes_token_layer_rank"]
    assert placed.kv_bytes_per_token(0, first) == case["kv_bytes_token_rank"]
    assert first.sequences().count == int(case["batch_per_rank"])
    assert placed.kv_bytes(0, lane(placed, Workload(batch=1, context=case["S"]))) == case["kv_bytes_one_seq_rank"]
    assert placed.kv_bytes(0, first) == case["kv_bytes_batch_rank"]
    assert _duplication(placed, work) == Fraction(case["duplication_factor"])
    assert first.size(placed.cut.dim("experts", kinds[1].ffn.experts)) == case["local_expert_slots"]
    if "q_heads_rank" in case:
        assert first.size(placed.cut.dim("attention_heads", 128)) == case["q_heads_rank"]


@r1_cases
def test_t2_weights(case):
    placed, _ = _r1(case)
    elements = placed.elements(0, 0)
    # the table counts a layer's two hidden-size norms with its attention
    elements["o"] += elements["attn_norm"] + elements["ffn_norm"]
    del elements["attn_norm"], elements["ffn_norm"]
    assert _grouped(elements, R1_GROUPS) == case["weights_params_rank"]


def test_t2_messages():
    tp, *_, dcp, helix = KNOWN["deepseek_r1"]
    placed, work = _r1(tp)
    assert figures(placed, work, layer=1)["attention.all_reduce"].size == tp["attn_allreduce_msg_bytes"]
    assert figures(placed, work, layer=1)["ffn.all_reduce"].size == tp["ffn_allreduce_msg_bytes"]
    placed, work = _r1(dcp)
    _dcp_messages(placed, _r1(dcp, exchange="a2a")[0], work, dcp)
    placed, work = _r1(helix)
    inside = figures(placed, work, layer=1)
    statistics = 8 * 128 * 2 * 4
    buffer = _exchange(placed).buffer(lane(placed, work))
    assert statistics == helix["a2a_stats_buffer_bytes_rank"]
    assert buffer - statistics == helix["a2a_partial_o_buffer_bytes_rank"]
    assert inside["attention.all_to_all"].sent == helix["a2a_send_bytes_rank_incl_stats"]
    assert inside["attention.all_reduce"].size == helix["o_proj_allreduce_msg_bytes"]


# -- where tokens, layers and heads live ---------------------------------------------------------------------

RULES = {
    "vllm S=100 n=4 I=16": ("round_robin", 16, 100, 4),
    "vllm S=100 n=4 I=1": ("round_robin", 1, 100, 4),
    "vllm S=1000003 n=8 I=16": ("round_robin", 16, 1000003, 8),
    "vllm S=1000003 n=8 I=1": ("round_robin", 1, 1000003, 8),
    "trtllm round-robin S=100 n=3 block=32": ("prompt_decode", 32, 100, 3),
    "trtllm round-robin S=1000003 n=8 block=32": ("prompt_decode", 32, 1000003, 8),
    "trtllm round-robin S=1048576 n=8 block=32": ("prompt_decode", 32, 1048576, 8),
    "trtllm OLD contiguous S=100 n=3 block=32": ("contiguous", 32, 100, 3),
    "trtllm OLD contiguous S=1000003 n=8 block=32": ("contiguous", 32, 1000003, 8),
}
OWNERS = "trtllm decode owner, block=32 cp=4, iter 1,32,33,64,65,128,129"


def test_every_placement_is_covered():
    assert {*RULES, OWNERS} == set(KNOWN["placement"])


@pytest.mark.parametrize("key", RULES)
def test_tokens_of_each_rank(key):
    rule, block, context, ranks = RULES[key]
    owner = Ownership(rule=rule, block=block)
    assert [owner.held(context, ranks, rank) for rank in range(ranks)] == KNOWN["placement"][key]


def test_owner_of_a_generated_token():
    owner = Ownership(rule="prompt_decode", block=32)
    iterations = (1, 32, 33, 64, 65, 128, 129)
    assert [owner.decode_owner(i, 4) for i in iterations] == KNOWN["placement"][OWNERS]


@pytest.mark.parametrize("key", KNOWN["pp"])
def test_layers_of_each_stage(key):
    engine, sizes = key.split(" ")
    layers, stages = map(int, sizes.split("/"))
    split = {"vllm": "vllm", "trt": "trtllm"}[engine]
    assert stage_sizes(layers, stages, split) == KNOWN["pp"][key]
    if layers == 126:
        placed = placement(LLAMA, "tp", tp=8, pp=stages, stage_split=split)
        assert [sum(n for n, _ in stage) for stage in placed.stages] == KNOWN["pp"][key]


def test_heads_of_the_first_ranks_under_tensor_parallelism():
    placed = placement(LLAMA, "tp", tp=16)
    attention, cut = next(iter(placed.model.kinds)).attention, placed.cut
    for rank, (start, stop, heads) in enumerate(KNOWN["head_map_tp16_first4"]):
        first, count = cut.range(cut.dim("attention_heads", 128), rank)
        kv_first, kv_count = cut.kv_heads(attention, rank)
        assert (first, first + count) == (start, stop)
        assert list(range(kv_first, kv_first + kv_count)) == heads


def _helix_map(placed: Placement, rank: int) -> list:
    attention, cut = next(iter(placed.model.kinds)).attention, placed.cut
    first, count = cut.range(cut.dim("attention_heads", 128), rank)
    kv_first, kv_count = cut.kv_heads(attention, rank)
    after, kept = cut.range(cut.dim("o_heads", 128), rank)
    kvp = cut.mesh.coordinate(rank, "kvp")
    return [first, first + count, list(range(kv_first, kv_first + kv_count)), after, after + kept, kvp]


def test_heads_before_and_after_the_exchange_of_helix():
    two, eight = placement(LLAMA, "helix", tpa=8, kvp=2), placement(LLAMA, "helix", tpa=8, kvp=8)
    assert [_helix_map(two, rank) for rank in range(4)] == KNOWN["head_map_helix_tpa8_kvp2_first4"]
    assert _helix_map(eight, 9) == KNOWN["head_map_helix_tpa8_kvp8_rank_9"]


def test_every_key_of_the_file_is_asserted():
    here = Path(__file__).parent
    files = [*here.glob("test_worked_*.py"), here / "test_attention_kinds.py"]
    source = "".join(path.read_text("utf-8") for path in files)
    assert [key for key in KNOWN if key != "origin" and f'"{key}"' not in source] == []


def test_messages_are_whole_numbers_of_bytes():
    placed = placement(LLAMA, "helix", tpa=8, kvp=8)
    program = lower(placed.model, placed.strategy, "decode")
    on = lane(placed, Workload(batch=8, context=2**20))
    sizes = [op.message(on).size for s in program.segments for op in s.ops if isinstance(op, CommunicationOp)]
    assert all(size == math.floor(size) for size in sizes)
