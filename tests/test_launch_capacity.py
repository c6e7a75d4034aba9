"""Predicted caches against start-up logs, and defects that other tools had."""

import csv
from importlib.resources import files
from statistics import median

import pytest

from sim.catalog.gpus import load_gpu
from sim.launch import capacity, explain, parse, resolve
from sim.launch.agreement import judge, logs, outcomes
from sim.launch.policy import load_policy

OUTCOMES = outcomes()
TRUTH = files("sim").joinpath("data", "truth", "memory.csv").read_text("utf-8")
ROWS = {row["row_id"]: row for row in csv.DictReader(TRUTH.splitlines())}


def room(command, gpu="h200-sxm", version=None):
    return capacity(resolve(parse(command)), load_gpu(gpu), version)


def test_tokens_of_start_up_logs():
    errors = [abs(log.predict().tokens / int(ROWS[log.row]["kv_tokens"]) - 1) for log in logs()]
    assert len(errors) == 24
    assert median(errors) < 0.05
    assert max(errors) < 0.12


def test_bytes_per_token_of_start_up_logs_are_exact():
    for log in logs():
        formula = ROWS[log.row]["formula_B_per_token_rank"]
        if formula:
            assert log.predict().bytes_per_token == pytest.approx(float(formula), rel=1e-4)


@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda o: o.id)
def test_outcomes(outcome):
    verdict = judge(outcome)
    assert verdict.agrees or (verdict.agrees is None and verdict.said)


def test_every_outcome_has_an_answer_or_a_reason():
    assert len(OUTCOMES) == 59
    assert sum(judge(o).agrees is True for o in OUTCOMES) >= 33


def test_kv_bytes_do_not_become_zero_beyond_the_kv_heads():
    per_head = 94 * 2 * 128 * 2
    found = {tp: room(f"vllm serve Qwen/Qwen3-235B-A22B -tp {tp}").bytes_per_token for tp in (2, 4, 8, 16, 64)}
    assert found == {2: 2 * per_head, 4: per_head, 8: per_head, 16: per_head, 64: per_head}


def test_tokens_are_not_pooled_over_tensor_parallel_ranks():
    for command in ("vllm serve deepseek-ai/DeepSeek-R1 -tp 8", "vllm serve Qwen/Qwen3-32B -tp 4"):
        one = room(command)
        assert one.pools == 1
        assert one.tokens * one.bytes_per_token <= one.cache_bytes <= load_gpu("h200-sxm").memory_bytes
    shared = room("vllm serve deepseek-ai/DeepSeek-R1 -tp 8 -dcp 8")
    assert shared.tokens / room("vllm serve deepseek-ai/DeepSeek-R1 -tp 8").tokens == pytest.approx(8, rel=1e-3)
    assert room("vllm serve deepseek-ai/DeepSeek-R1 -dp 8 -ep").pools == 8


@pytest.mark.parametrize("batch", [1, 64])
def test_decode_is_never_faster_than_its_memory(batch):
    gpu = load_gpu("h100-sxm")
    found = explain(
        resolve(parse("vllm serve meta-llama/Llama-3.1-8B --max-model-len 8192")), gpu, batch=batch, context=4096
    )
    cache = batch * 4096 * 32 * 2 * 8 * 128 * 2
    weights = found.report.weights.bytes_per_rank - 128256 * 4096 * 2  # of the embedding only rows are read
    floor = (cache + weights) / gpu.bandwidth
    assert found.report.step.seconds >= found.report.step.floor_seconds >= floor * 0.999


def test_policies():
    assert load_policy("vllm", "0").fraction == 0.9
    assert load_policy("vllm").version == "0.33"
    small = room("sglang serve --model Qwen/Qwen3-8B", "l40s")
    assert 0.8 < small.fraction < 0.95
    limited = room("sglang serve --model Qwen/Qwen3-8B --max-total-tokens 5000", "l40s")
    assert (limited.tokens, limited.low, limited.high) == (5000, 5000, 5000)
    fixed = room("vllm serve Qwen/Qwen3-8B --kv-cache-memory-bytes 1474560000", "l40s")
    assert fixed.tokens == 10000 // 16 * 16
    eager = room("vllm serve Qwen/Qwen3-8B --enforce-eager", "l40s")
    assert eager.tokens > room("vllm serve Qwen/Qwen3-8B", "l40s").tokens


def test_explanation_of_duplicated_heads():
    found = explain(resolve(parse("vllm serve Qwen/Qwen3-235B-A22B -tp 8")), load_gpu("h200-sxm"))
    assert found.report.kv.duplication == 2
    better = {one.tag: one for one in found.better}
    assert better["tp8-dcp2"].tokens == pytest.approx(2 * found.capacity.tokens, rel=0.01)
    assert "--decode-context-parallel-size 2" in better["tp8-dcp2"].command
