"""Layers of pipeline stages, what each stage holds, and what passes between them."""

from __future__ import annotations

import pytest
from strategies_for_tests import DENSE, MOE, evaluate, figures, gqa, lane, layout, model, placement

from sim.handover import handover
from sim.lower import lower
from sim.model import Layer, LayerRun, Model
from sim.stages import split_layers, stage_sizes
from sim.workload import Workload

WORK = Workload(batch=4, context=64)


@pytest.mark.parametrize("split", ["vllm", "trtllm"])
def test_stages_are_even_within_one_layer(split):
    for layers in range(1, 70):
        for stages in range(1, layers + 1):
            sizes = stage_sizes(layers, stages, split)
            assert sum(sizes) == layers
            assert max(sizes) - min(sizes) <= 1


def test_kinds_of_layers_keep_their_order():
    dense, moe = (Layer(attention=gqa(8, 2), ffn=ffn) for ffn in (DENSE, MOE))
    runs = ((3, dense), (58, moe))
    assert split_layers(runs, 1, "vllm") == [[(3, dense), (58, moe)]]
    assert split_layers(runs, 4, "vllm") == [[(3, dense), (12, moe)], [(15, moe)], [(16, moe)], [(15, moe)]]


def test_first_stage_embeds_and_last_one_has_the_head():
    placed = placement(model(gqa(8, 2), layers=3), "tp", tp=2, pp=3)
    names = [set(placed.elements(stage, 0)) for stage in range(3)]
    assert "embedding" in names[0]
    assert {"lm_head", "final_norm"}.isdisjoint(names[0] | names[1])
    assert "embedding" not in names[1] | names[2]
    assert {"lm_head", "final_norm"} <= names[2]


def test_a_tied_embedding_is_on_both_ends():
    run = LayerRun(count=4, layer=Layer(attention=gqa(8, 2), ffn=DENSE))
    tied = Model(name="tied", hidden=96, vocab=960, tied_embeddings=True, pattern=(run,))
    one, two = placement(tied, "tp", tp=1), placement(tied, "tp", tp=1, pp=2)
    assert "lm_head" not in one.elements(0, 0)
    assert [two.elements(stage, 0).get("embedding") for stage in range(2)] == [960 * 96, 960 * 96]
    report = evaluate(two, WORK).weights()
    assert report.held_bytes - report.unique_bytes == 2 * 960 * 96


def _between(kind: str, **degrees):
    placed = placement(model(gqa(8, 2), layers=2), kind, pp=2, **degrees)
    segment = handover(placed.cut, lower(placed.model, placed.strategy, "decode").end.entry)
    return {op.name: op.message(lane(placed, WORK)) for op in segment.ops}


def test_hidden_state_and_residual_pass_in_slices():
    """Two values of 4 x 96 in 16 bit; each of the four ranks sends a quarter, and the receivers gather."""
    whole = 2 * 4 * 96 * 2
    assert _between("tp", tp=1) == {"pipeline.send": (whole, whole)}
    found = _between("tp", tp=4)
    assert found == {"pipeline.send": (whole // 4, whole // 4), "pipeline.all_gather": (whole // 4, whole * 3 // 4)}


def test_replicas_of_the_attention_pass_their_own_rows():
    whole = 2 * 4 * 96 * 2
    assert _between("attention_dp", dp=4) == {"pipeline.send": (whole // 4, whole // 4)}


def test_vanilla_kv_parallelism_passes_from_the_first_group():
    found = _between("kvp", kvp=2, tp=2)
    whole = 2 * 4 * 96 * 2
    assert found == {"pipeline.send": (whole // 2, whole // 2), "pipeline.all_gather": (whole // 2, whole // 2)}


def test_more_stages_than_layers_are_refused():
    reasons = [str(p) for p in layout("tp", tp=1, pp=4).check(model(gqa(8, 2), layers=3))]
    assert reasons == ["pp: 4 stages are more than the 3 layers"]


def test_a_step_is_the_sum_of_its_stages_or_the_wait_for_the_slowest():
    """Two equal stages, two micro-batches: no bubble, and twice the slower stage."""
    placed = placement(model(gqa(8, 2), layers=8), "tp", tp=1, pp=2)
    evaluation = evaluate(placed, WORK)
    passes, seconds = evaluation.best.passes, evaluation.best.seconds
    stages = [p.critical.seconds for p in passes]
    assert seconds == max(sum(stages), 2 * max(stages))
    step = evaluation.step()
    assert step.breakdown.get("pipeline bubble", 0.0) == pytest.approx(seconds - sum(stages), rel=1e-12)


def test_one_sequence_fills_no_pipeline():
    """The stages take turns: a step is the sum over all of them, as long as on one stage plus the handover."""
    placed = placement(model(gqa(8, 2), layers=8), "tp", tp=1, pp=2)
    evaluation = evaluate(placed, Workload(batch=1, context=64))
    assert evaluation.micro_batches == 1
    stages = [p.critical.seconds for p in evaluation.best.passes]
    assert evaluation.step().seconds == sum(stages)


def test_operations_of_a_stage_are_those_of_the_whole_model():
    one, two = (placement(model(gqa(8, 2), layers=4), "tp", tp=2, pp=pp) for pp in (1, 2))
    assert figures(one, WORK) == figures(two, WORK)
