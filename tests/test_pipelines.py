"""Pipelines: sequences are dealt to groups, then to micro-batches, which circulate through the stages in turn."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies_for_tests import evaluate, gqa, model, placement

from sim import engine
from sim.findings import duplication
from sim.workload import Workload


def test_pipelines_hold_what_their_whole_batch_holds():
    """dp 2, pp 2, three sequences: 2 + 1 on each stage, held once."""
    placed = placement(model(gqa(24, 2), layers=2), "attention_dp", dp=2, pp=2)
    kv = evaluate(placed, Workload(batch=3, context=100)).kv()
    assert kv.held_bytes == kv.unique_bytes
    assert kv.duplication == 1.0


def test_ragged_pipelines_hold_no_less_than_one_copy():
    placed = placement(model(gqa(24, 1), layers=2), "attention_dp", dp=2, pp=2)
    kv = evaluate(placed, Workload(context=(1, 3, 1))).kv()
    assert kv.held_bytes == kv.unique_bytes


def test_ragged_micro_batches_are_all_simulated():
    """The order of two sequences does not change the step."""
    placed = placement(model(gqa(24, 2), layers=2), "tp", tp=2, pp=2)
    a, b = (evaluate(placed, Workload(context=c)).step().seconds for c in ((100, 1_000_000), (1_000_000, 100)))
    assert a == pytest.approx(b, rel=1e-9)


def test_some_heads_on_several_ranks_do_not_stop_at_more_ranks_than_there_are():
    """tp 4 on 6 KV heads: nothing is said of 6 ranks."""
    evaluation = evaluate(placement(model(gqa(24, 6)), "tp", tp=4), Workload(batch=64, context=4096))
    assert "6 ranks" not in duplication(evaluation, evaluation.report())


@given(st.integers(1, 4), st.integers(1, 4), st.data())
@settings(max_examples=60)
def test_no_pipeline_is_faster_than_its_longest_batch_or_its_busiest_stage(stages, micro_batches, data):
    row = st.lists(st.floats(1e-3, 1.0), min_size=stages, max_size=stages)
    seconds = data.draw(st.lists(row, min_size=micro_batches, max_size=micro_batches))
    longest, busiest = max(map(sum, seconds)), max(map(sum, zip(*seconds, strict=True)))
    period = engine.pipeline_period(seconds)
    assert period >= max(longest, busiest) * (1 - 1e-9)
    assert period <= sum(map(sum, seconds)) * (1 + 1e-9)


def test_a_short_micro_batch_does_not_overtake_a_long_one():
    """Each stage serves in turn, so both step every 2.0625 s."""
    seconds = [[0.5625, 0.9375, 0.3125, 0.1875], [0.75, 0.5, 0.375, 0.4375]]
    assert engine.pipeline_period(seconds) >= 2.0625 * (1 - 1e-9)
    assert engine.pipeline_period(seconds) == pytest.approx(engine.pipeline_period(seconds[::-1]), rel=1e-9)
