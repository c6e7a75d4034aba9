"""What is said under a table: exact sentences, each with the figure behind it."""

from __future__ import annotations

from itertools import groupby

import pytest
from strategies_for_tests import MOE, evaluate, gqa, mla, model, placement

from sim import compare, load, parse_scenario
from sim.findings import duplication, findings, left_out, range_of, weights
from sim.workload import Workload

WORK = Workload(batch=64, context=4096)


@pytest.fixture(scope="module")
def qwen():
    return compare(load("qwen3_235b_8xh200"))


def test_sentences_of_qwen3_on_8_gpus(qwen):
    """The main job's answer; the figures of time move with the constants, the sentences and the bytes do not."""
    timeless = [line for line in qwen.findings if " a step" not in line and " GPU at " not in line]
    assert timeless == [
        "Most room per GPU: tp8-dcp2 (batch up to 134 on 8 GPUs)",
        "tp8: 8 ranks share 4 KV heads, so each KV head lives on 2 ranks: half of all KV bytes are copies (2.00x), "
        "and KV read time stopped falling at 4 ranks",
        "dp8-ep8: every KV byte is held once; each of 8 groups keeps its own sequences",
        "dp8-ep8: weights are held 1.28x, 7.57 GiB of copies per GPU on average",
        "tp8-dcp2: every KV byte is held once; 2 ranks share each sequence's tokens",
        "tpa4-kvp2: every KV byte is held once; 2 ranks share each sequence's tokens",
        "tpa4-kvp2: cutting the batch to hide the exchange (HOP-B) does not pay here: one piece is fastest",
        "kvp2-tp4: every KV byte is held once; 2 ranks share each sequence's tokens",
        "dp8-wide_ep8-r32: every KV byte is held once; each of 8 groups keeps its own sequences",
        "dp8-wide_ep8-r32: weights are held 1.52x, 14.2 GiB of copies per GPU on average",
    ]


def test_every_layout_says_what_bounds_it(qwen):
    for report in qwen.layouts:
        (line,) = [line for line in qwen.findings if line.startswith(f"{report.tag}: ") and "x its floor" in line]
        ratio = report.step.seconds / report.step.floor_seconds
        assert (
            f"a step ({range_of(report.step)}), {ratio:.1f}x its floor; most goes to {report.step.bottleneck}" in line
        )


def test_the_ranking_names_the_best(qwen):
    fast = min(qwen.layouts, key=lambda x: x.step.seconds)
    busy = max(qwen.layouts, key=lambda x: x.output_tokens_per_s_per_gpu)
    assert qwen.findings[0].startswith(f"Lowest latency: {fast.tag} (")
    assert qwen.findings[1].startswith(f"Most work per GPU at this batch: {busy.tag} (")


def test_what_is_left_out_is_said(qwen):
    assert qwen.not_modelled == (
        "requests coming and going: a step has exactly this batch, no prefill runs beside it",
        "how batches are padded for CUDA graphs, and the last partly filled block of a paged cache",
        "which experts a prompt prefers: tokens choose as unevenly as in measured runs on average; the expected number "
        "of distinct experts is read",
        "slower kernels while communication runs beside them on the same GPU",
        "messages of several groups on one link at a time; --granularity flows lets them share it",
    )


def _about(of, kind, work=WORK, **degrees):
    evaluation = evaluate(placement(of, kind, **degrees), work)
    return duplication(evaluation, evaluation.report())


@pytest.mark.parametrize(
    ("of", "degrees", "said"),
    [
        (
            model(gqa(24, 2)),
            {"tp": 8},
            "tp8: 8 ranks share 2 KV heads, so each KV head lives on 4 ranks: three quarters of all KV bytes are "
            "copies (4.00x), and KV read time stopped falling at 2 ranks",
        ),
        (
            model(gqa(24, 1)),
            {"tp": 3},
            "tp3: 3 ranks share 1 KV head, so it lives on 3 ranks: two thirds of all KV bytes are copies (3.00x), "
            "and more ranks do not make KV reads any shorter",
        ),
        (
            model(mla()),
            {"tp": 8},
            "tp8: 8 ranks share 1 latent KV head, so it lives on 8 ranks: 88 % of all KV bytes are copies (8.00x), "
            "and more ranks do not make KV reads any shorter",
        ),
    ],
)
def test_why_bytes_are_held_more_than_once(of, degrees, said):
    assert _about(of, "tp", **degrees) == said


def test_a_prefill_reads_no_cache():
    said = _about(model(gqa(24, 2)), "tp", Workload(phase="prefill", batch=2, context=100), tp=4)
    assert said == (
        "tp4: 4 ranks share 2 KV heads, so each KV head lives on 2 ranks: half of all KV bytes are copies (2.00x)"
    )


def test_nothing_is_said_where_nothing_is_shared():
    assert _about(model(gqa(24, 4)), "tp", tp=4) is None


def test_replicas_keep_their_own_sequences():
    said = _about(model(gqa(24, 4)), "tp", tp=4, replicas=3)
    assert said == "tp4x3: every KV byte is held once; each of 3 groups keeps its own sequences"


def test_weights_that_are_held_once_are_not_mentioned():
    assert weights(evaluate(placement(model(gqa(24, 4), MOE), "tp", tp=4), WORK).report()) is None


def _scenario(**changed):
    fields = {
        "model": "llama-3.1-8b",
        "gpu": "h100-sxm",
        "workload": {"batch": 1, "context": 1000},
        "layouts": [{"strategy": "tp", "tp": 1}],
    }
    return compare(parse_scenario({**fields, **changed}))


def test_what_does_not_fit_says_what_would():
    report = _scenario(workload={"batch": 100, "context": "128k"})
    assert report.findings[0] == "No layout fits: see each one's largest batch and longest context"
    memory = report.layouts[0].memory
    assert report.findings[1] == (
        f"tp1: does not fit: {report.layouts[0].reasons[0]}; batch {memory.max_batch} at this context fits, "
        f"context {memory.max_context:,} at this batch fits"
    )
    assert report.layouts[0].reasons == (
        "needs 1.58 TiB of 79.6 GiB: weights 15 GiB, KV 1.56 TiB, engine reserve 7.96 GiB",
    )


def test_weights_that_leave_no_room():
    report = _scenario(model="llama-3.1-70b")
    assert report.findings[1].endswith("; the weights alone (131 GiB per GPU) leave no room")


def test_a_single_layout_is_not_ranked():
    assert all(line.startswith("tp1: ") for line in _scenario().findings)


def test_left_out_follows_the_workload():
    placed = placement(model(gqa(24, 4)), "tp", tp=2)
    work = Workload(batch=2, context=100, query_tokens=3)
    lines = left_out([evaluate(placed, work)], placed.model, work)
    assert "acceptance and drafting: each step counts one token per sequence, whatever is accepted" in lines
    work = Workload(phase="prefill", batch=2, context=100)
    lines = left_out([evaluate(placed, work)], placed.model, work)
    assert not any("sequence" in line or "batch" in line for line in lines)


def test_findings_are_in_the_order_of_the_layouts():
    evaluations = [evaluate(placement(model(gqa(24, 2)), "tp", tp=tp), WORK) for tp in (4, 8, 2)]
    lines = findings(evaluations, [e.report() for e in evaluations])
    tags = [tag for tag, _ in groupby(line.split(":")[0] for line in lines[3:])]
    assert tags == ["tp4", "tp8", "tp2"]
