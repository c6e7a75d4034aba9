"""Sparse, chunked and linear attention: bytes, reads and FLOPs against figures worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from strategies_for_tests import evaluate, figures, gqa, lane, layout, model, placement

from sim.catalog.models import load_model
from sim.findings import duplication
from sim.lane import Lane
from sim.model import Layer, LayerRun, LinearAttention, Model
from sim.proof import prove
from sim.workload import Precision, Sequences, Workload

DSA = json.loads((Path(__file__).parent / "data" / "worked_examples.json").read_text("utf-8"))["dsa"]
PACKED = Precision(kv_cache="fp8_ds_mla")
MILLION = Workload(batch=1, context=2**20)


def _reads(placed, workload, layer=0):
    found = figures(placed, workload, layer=layer)
    core, index = found["attention.core"], found["attention.index"]
    return core, index


def test_a_sparse_layer_reads_the_index_and_the_picked_latents():
    placed = placement("deepseek-v3.2", "tp", PACKED, tp=1)
    core, index = _reads(placed, MILLION)
    assert core.kv_bytes == 2048 * DSA["kv_bytes_token_layer_fp8_ds_mla"]
    assert index.kv_bytes == 2**20 * DSA["indexer_bytes_token_layer"]
    assert core.kv_bytes + index.kv_bytes == DSA["decode_read_bytes_per_seq_layer_S1M"] == 139_755_520
    assert index.flops == DSA["indexer_flops_per_query_layer_S1M"]
    assert placed.kv_bytes_per_token(0, lane(placed, MILLION)) == DSA["total_token_61_layers"]


def test_the_same_layer_without_its_index_reads_everything():
    dense = load_model("deepseek-r1")
    core = figures(placement(dense, "tp", PACKED, tp=1), MILLION)["attention.core"]
    assert core.kv_bytes == DSA["dense_fp8_read_bytes_per_seq_layer_S1M"] == 687_865_856


@pytest.mark.parametrize(("index", "copies"), [("sharded", 1), ("whole", 4)])
def test_an_index_under_dcp_is_shared_or_kept_whole(index, copies):
    placed = placement("deepseek-v3.2", "dcp", PACKED, tp=4, dcp=4, index=index)
    context = 2**16
    held = sum(placed.kv_bytes(0, lane(placed, Workload(batch=1, context=context), rank)) for rank in range(4))
    assert held == 61 * context * (656 + copies * 132)
    found = figures(placed, Workload(batch=1, context=context))
    assert found["attention.index"].kv_bytes == context * 132 * copies // 4
    assert found["attention.core"].kv_bytes == 2048 // 4 * 656
    gathered = found.get("attention.all_gather_index")
    assert gathered.size == 2048 * 8 if index == "sharded" else gathered is None


def test_layers_that_share_an_index_keep_no_keys_and_score_nothing():
    placed = placement("glm-5.2", "tp", Precision(), tp=8)
    on = lane(placed, Workload(batch=1, context=4096))
    assert placed.kv_bytes(0, on) == 4096 * (78 * 1152 + 21 * 132)
    kinds = list(placed.model.kinds)
    shared = next(i for i, kind in enumerate(kinds) if kind.attention.index.shared)
    found = figures(placed, Workload(batch=1, context=65536), layer=shared)
    assert "attention.index" not in found
    assert found["attention.core"].kv_bytes == 2048 * 1152


def test_a_stage_that_begins_with_a_shared_index_is_refused():
    problems = layout("tp", tp=8, pp=2).check(load_model("glm-5.2"))
    assert [p.key for p in problems] == ["pp"]
    assert "which the stage before has picked" in problems[0].message


@pytest.mark.parametrize(("context", "read"), [(1, 1), (64, 64), (65, 1), (100, 36), (128, 64), (129, 1)])
def test_a_query_reads_its_own_chunk_and_the_cache_keeps_the_slots_of_one(context, read):
    chunked = gqa(8, 2, window=64).model_copy(update={"chunked": True})
    on = lane(placement(model(chunked), "tp", tp=1), Workload(batch=1, context=context))
    assert on.read_tokens(chunked) == read
    assert on.kv_tokens(chunked.window) == min(context, 64)


def test_draft_tokens_behind_a_chunks_end_read_both_chunks():
    chunked = gqa(8, 2, window=64).model_copy(update={"chunked": True})
    on = lane(placement(model(chunked), "tp", tp=1), Workload(batch=1, context=66, query_tokens=4))
    assert on.read_tokens(chunked) == 66  # the first of the four still lies in the first chunk


@pytest.mark.parametrize("context", [1, 63, 64, 65, 200])
def test_causal_pairs_of_a_chunked_prompt(context):
    chunked = gqa(8, 2, window=64).model_copy(update={"chunked": True})
    on = lane(placement(model(chunked), "tp", tp=1), Workload(phase="prefill", batch=1, context=context))
    assert on.pairs(64, chunked=True) == sum(t % 64 + 1 for t in range(context))


def test_chunks_shared_over_ranks_are_read_once_in_all():
    chunked = gqa(8, 2, window=64).model_copy(update={"chunked": True})
    placed = placement(model(chunked), "dcp", tp=4, dcp=4)
    for context in (1, 64, 65, 100, 1000):
        lanes = [lane(placed, Workload(batch=1, context=context), rank) for rank in range(4)]
        assert sum(one.read_tokens(chunked) for one in lanes) == (context - 1) % 64 + 1


def _states(placed, ranks):
    work = Sequences.even(1, 1000)
    return [placed.kv_bytes(0, Lane(rank, placed.cut, work, Precision())) for rank in range(ranks)]


MAMBA = LinearAttention(key_heads=8, value_heads=64, key_dim=128, value_dim=64, rule="sum", gates=1)
ONLY_STATES = Model(name="states", hidden=96, vocab=960, pattern=(LayerRun(count=3, layer=Layer(linear=MAMBA)),))
STATE = 64 * 64 * 128 * 4 + (64 * 64 + 2 * 8 * 128) * 3 * 2  # heads x head dim x state in fp32; three inputs in 16 bit


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_the_state_of_mamba_2_is_split_over_tp_and_does_not_grow(tp):
    held = _states(placement(ONLY_STATES, "tp", tp=tp), tp)
    assert held == [3 * STATE // tp] * tp


def test_beyond_the_groups_each_rank_has_the_group_that_its_heads_need():
    placed = placement(ONLY_STATES, "tp", tp=16)
    heads = 64 // 16
    assert _states(placed, 16) == [3 * (heads * 64 * 128 * 4 + (heads * 64 + 2 * 128) * 3 * 2)] * 16


@pytest.mark.parametrize(
    ("kind", "degrees", "copies"),
    [
        ("dcp", {"tp": 8, "dcp": 4}, 4),
        ("dcp", {"tp": 8, "dcp": 4, "linear_state": "sharded"}, 1),
        ("helix", {"tpa": 2, "kvp": 4}, 4),
        ("helix", {"tpa": 2, "kvp": 4, "linear_state": "sharded"}, 1),
        ("kvp", {"kvp": 4, "tp": 2}, 1),  # only the first group projects and computes
        ("attention_dp", {"dp": 4, "tp": 2}, 1),
    ],
)
def test_copies_of_a_state_under_each_strategy(kind, degrees, copies):
    assert sum(_states(placement(ONLY_STATES, kind, **degrees), 8)) == copies * 3 * STATE


@pytest.mark.parametrize("name", ["deepseek-v3.2", "glm-5.2", "qwen3-next-80b-a3b", "nemotron-3-nano-30b-a3b"])
def test_models_of_the_new_kinds_are_proved(name):
    for kind, degrees in (("tp", {"tp": 2}), ("dcp", {"tp": 4, "dcp": 2}), ("helix", {"tpa": 1, "kvp": 2})):
        proof = prove(load_model(name), layout(kind, **degrees))
        assert proof.ok, proof.difference


@pytest.mark.parametrize(
    ("name", "degrees", "said"),
    [
        ("deepseek-v3.2", {"tp": 4, "dcp": 4, "index": "whole"}, "tp4-dcp4: index keys repeat on ranks that share"),
        ("qwen3-next-80b-a3b", {"tp": 4, "dcp": 2}, "tp4-dcp2: states of linear attention repeat on ranks that share"),
    ],
)
def test_the_report_says_what_repeats_beside_the_heads(name, degrees, said):
    found = evaluate(placement(name, "dcp", **degrees), Workload(batch=8, context=1024))
    assert said in duplication(found, found.report())
