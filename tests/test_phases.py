"""Chunks, cached prefixes, mixed steps: what each sequence says of itself, and what follows in closed form."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.errors import InputError
from sim.first_token import in_flight
from sim.lower import lower
from sim.model import Attention
from sim.ops_compute import Attend, ExpandLatent, Index
from sim.proof import prove
from sim.scenario import parse_scenario
from sim.testing import SAMPLE_MODELS
from sim.workload import Group, Sequences, Workload
from tests.strategies_for_tests import evaluate, gqa, lane, layout, mla, model, placement

PROMPT, CHUNK = 4096, 1024


def attend_of(of: Attention, work: Workload, index: int = 0):
    """The work of (the ``index``-th) attention of a model of one kind under TP 1."""
    placed = placement(model(of), "tp", tp=1)
    (segment,) = lower(placed.model, placed.strategy, work.phase).layers.values()
    return [op for op in segment.ops if isinstance(op, Attend)][index].work(lane(placed, work))


def prefill(context: int, **more) -> Workload:
    return Workload(phase="prefill", batch=2, context=context, **more)


@given(st.integers(1, 300), st.integers(1, 300), st.sampled_from([None, 1, 7, 64]))
def test_chunks_compute_exactly_the_pairs_of_the_whole_prompt(length, chunk, window):
    placed = placement(model(gqa(8, 2, window=window)), "tp", tp=1)
    work = Workload(phase="prefill", batch=3, context=length, chunk=chunk)
    lanes = [lane(placed, Workload(phase="prefill", batch=3, context=length))]
    parts = [type(lanes[0])(0, placed.cut, step, placed.precision) for step in work.steps]
    assert sum(p.pairs(window) for p in parts) == lanes[0].pairs(window)
    assert sum(p.appended() for p in parts) == lanes[0].appended() == 3 * length
    assert [step.longest.length for step in work.steps][-1] == length


def test_a_prefix_is_read_once_and_only_new_tokens_are_computed():
    whole, rest = (attend_of(gqa(8, 2), prefill(PROMPT, cached=c)) for c in (0, PROMPT - CHUNK))
    pairs = 2 * (PROMPT * (PROMPT + 1) - (PROMPT - CHUNK) * (PROMPT - CHUNK + 1)) // 2
    assert rest.flops == 4 * 8 * 16 * pairs
    assert whole.kv_bytes == 0
    assert rest.kv_bytes == 2 * (PROMPT - CHUNK) * 2 * 2 * 16 * 2


def test_a_window_rereads_only_what_its_first_new_token_sees():
    rest = attend_of(gqa(8, 2, window=100), prefill(PROMPT, cached=PROMPT - CHUNK))
    assert rest.kv_bytes == 2 * 99 * 2 * 2 * 16 * 2
    assert rest.flops == 4 * 8 * 16 * 2 * CHUNK * 100


def test_mla_expands_cached_latents_again():
    placed = placement(model(mla(24)), "tp", tp=1)
    (segment,) = lower(placed.model, placed.strategy, "prefill").layers.values()
    (op,) = [op for op in segment.ops if isinstance(op, ExpandLatent)]
    works = [op.work(lane(placed, prefill(PROMPT, cached=c))) for c in (0, PROMPT - CHUNK)]
    assert works[0].flops == works[1].flops  # all PROMPT tokens either way
    assert works[1].kv_bytes == 2 * (PROMPT - CHUNK) * (32 + 8) * 2


@pytest.mark.parametrize("new", [1, 4])
def test_a_few_new_tokens_behind_a_long_prefix_are_a_decode_step(new):
    prompt = attend_of(gqa(8, 2), prefill(PROMPT, cached=PROMPT - new))
    decode = attend_of(gqa(8, 2), Workload(batch=2, context=PROMPT, query_tokens=new))
    assert prompt.other == decode
    assert prompt.flops == pytest.approx(decode.flops, rel=new / PROMPT)
    step = evaluate(placement(model(gqa(8, 2)), "tp", tp=1), prefill(PROMPT, cached=PROMPT - new)).best.seconds
    other = evaluate(placement(model(gqa(8, 2)), "tp", tp=1), Workload(batch=2, context=PROMPT)).best.seconds
    assert step == pytest.approx(other, rel=0.1)


def mixed(**prompt) -> Workload:
    return Workload(phase="mixed", batch=5, context=900, query_tokens=2, prompts=[{"batch": 2, **prompt}])


@pytest.mark.parametrize("of", [gqa(8, 2), gqa(8, 2, window=50), mla(24)], ids=["gqa", "window", "mla"])
def test_a_mixed_step_is_both_attentions_and_one_of_everything_else(of):
    work = mixed(context=PROMPT, cached=CHUNK)
    assert attend_of(of, work, 0) == attend_of(of, Workload(batch=5, context=900, query_tokens=2))
    assert attend_of(of, work, 1) == attend_of(of, prefill(PROMPT, cached=CHUNK))
    placed = placement(model(of), "tp", tp=1)
    figures = lane(placed, work)
    assert figures.rows_over(()) == 5 * 2 + 2 * (PROMPT - CHUNK)
    assert figures.rows_over((), (), per_sequence=True) == 5 * 2 + 2


def test_a_sparse_index_runs_for_both_parts_of_a_mixed_step():
    sparse = SAMPLE_MODELS["sparse"]
    (segment,) = lower(sparse, layout("tp", tp=2), "mixed").layers.values()
    assert [op.prefill for op in segment.ops if isinstance(op, Index)] == [False, True]


def test_attention_dp_gives_a_lone_chunk_to_one_replica():
    placed = placement(model(gqa(24, 8)), "attention_dp", dp=4)
    work = Workload(phase="mixed", batch=4, context=900, prompts=[{"context": 512}])
    rows = [lane(placed, work, rank).rows_over(("dp",)) for rank in range(4)]
    assert rows == [1 + 512, 1, 1, 1]


@pytest.mark.parametrize("phase", ["prefill", "mixed"])
@pytest.mark.parametrize("name", SAMPLE_MODELS)
def test_chunks_and_mixed_steps_are_executed(name, phase):
    for strategy in (layout("tp", tp=2, pp=2), layout("attention_dp", dp=2, tp=2), layout("wide_ep", dp=4)):
        if not strategy.check(SAMPLE_MODELS[name], phase):
            assert prove(SAMPLE_MODELS[name], strategy, phase=phase).difference == ""


def test_jobs_in_flight_pass_the_stages_in_order():
    assert in_flight([[1.0, 1.0]]) == 2
    assert in_flight([[1.0, 1.0]] * 5) == 6
    assert in_flight([[1.0, 2.0]] * 3) == 1 + 3 * 2
    assert in_flight([[3.0], [1.0], [2.0]]) == 6


def test_chunks_add_up_to_the_first_token():
    placed = placement(model(gqa(8, 2)), "tp", tp=1)
    whole, chunked = (evaluate(placed, w) for w in (prefill(PROMPT), prefill(PROMPT, chunk=CHUNK)))
    report = chunked.first_token
    assert (report.steps, report.new_tokens, report.cached_tokens) == (4, PROMPT, 0)
    assert sum(report.parts.values()) - report.overlapped_seconds == pytest.approx(report.seconds)
    assert report.last_step_seconds == chunked.best.seconds > report.first_step_seconds
    assert whole.first_token.steps == 1
    assert whole.first_token.seconds - whole.first_token.parts["front end"] == pytest.approx(whole.best.seconds)


def test_a_pipeline_with_chunks_in_flight_answers_sooner_than_without():
    placed = placement(model(gqa(8, 2), layers=8), "tp", tp=1, pp=4)
    whole, chunked = (evaluate(placed, w).first_token for w in (prefill(2**17), prefill(2**17, chunk=2**14)))
    assert chunked.overlapped_seconds > 0
    assert chunked.seconds < whole.seconds


def test_ragged_prompts_leave_when_they_are_done():
    work = Workload(phase="prefill", context=[2500, 900], cached=[500, 0], chunk=1000)
    assert work.steps == [
        Sequences((Group(1, 1500, 1000, True), Group(1, 900, 900, True))),
        Sequences((Group(1, 2500, 1000, True),)),
    ]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"phase": "decode", "cached": 5}, "cached belongs to phase: prefill"),
        ({"phase": "mixed"}, "phase: mixed needs prompts"),
        ({"phase": "prefill", "cached": 100}, "leave at least one token"),
        ({"phase": "decode", "prompts": [{"context": 5}]}, "phase: mixed needs prompts"),
        ({"phase": "mixed", "prompts": [{"context": 5, "cached": 5}]}, "leaves nothing of context 5"),
        ({"phase": "prefill", "cached": [1, 2, 3]}, "cached lists 3 lengths"),
        ({"phase": "mixed", "prompts": [{"context": 5}], "chunk": 4}, "chunk belongs to phase: prefill"),
    ],
)
def test_what_a_workload_cannot_be(fields, message):
    data = {"model": "llama-3.1-8b", "gpu": "h100-sxm", "layouts": [{"strategy": "tp", "tp": 1}]}
    with pytest.raises(InputError, match=message):
        parse_scenario(data | {"workload": {"batch": 2, "context": 100} | fields})
