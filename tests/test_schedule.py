"""From operations to instructions: runs are joined, collectives issued early and waited for late."""

from __future__ import annotations

import pytest
from strategies_for_tests import MOE, UnitMachine, gqa, lane, layout, machine, mla, model, placement, run_stage

from sim.fold import unfolded
from sim.lower import lower
from sim.overlap import interleave, stages
from sim.schedule import Issue, Run, Track, prepare, track
from sim.workload import Workload

WORK = Workload(batch=4, context=100)


def _layer(placed, on=None, rank=0, which=0) -> tuple[Track, list[str]]:
    """A lane's track through a layer, and the names of its operations."""
    segment = list(lower(placed.model, placed.strategy, "decode").layers.values())[which]
    pattern = prepare(segment)
    on = on or UnitMachine(gemm=1.0)

    def price(op, rank):
        return on.collectives.cost(op.kind), ()

    found = track(
        pattern, lane(placed, WORK, rank), rank, unfolded(placed.cut.mesh.size), on.kernels, price, placed.cut.mesh
    )
    return found, [op.name for op in pattern.ops]


def _story(placed, **options) -> list[str]:
    """A track in words."""
    found, names = _layer(placed, **options)
    told = []
    for instruction in found.instructions:
        if isinstance(instruction, Run):
            told.append(" ".join(names[n].rpartition(".")[2] for n in instruction.ops))
        elif isinstance(instruction, Issue):
            told.append(f"issue {names[instruction.slot]}")
        else:
            slot = instruction.slot
            told.append(f"wait {names[slot] if slot >= 0 else f'carried {-1 - slot}'}")
    return told


def test_a_layer_of_tensor_parallelism_has_two_exposed_collectives():
    assert _story(placement(model(gqa(8, 2)), "tp", tp=2)) == [
        "wait carried 0",
        "wait carried 1",
        "add_norm qkv append_kv core o",
        "issue attention.all_reduce",
        "wait attention.all_reduce",
        "add_norm gate_up activation down",
        "issue ffn.all_reduce",
    ]


def test_on_one_gpu_a_layer_is_one_run():
    assert _story(placement(model(gqa(8, 2)), "tp", tp=1)) == [
        "wait carried 0",
        "wait carried 1",
        "add_norm qkv append_kv core o add_norm gate_up activation down",
    ]


def test_shared_experts_run_beside_the_dispatch():
    story = _story(placement(model(mla(), MOE), "wide_ep", dp=2))
    start = story.index("issue ffn.dispatch")
    assert story[start : start + 5] == [
        "issue ffn.dispatch",
        "shared_gate_up activation shared_down",
        "wait ffn.dispatch",
        "experts",
        "issue ffn.combine",
    ]


def test_hop_b_issues_all_attentions_before_the_first_merge():
    placed = placement(model(gqa(8, 1)), "helix", tpa=1, kvp=2, hop_b=2)
    segment = next(iter(lower(placed.model, placed.strategy, "decode", 2).layers.values()))
    names = [op.name for op in segment.ops if op.name.startswith("attention")]
    exchange, merge = names.index("attention.all_to_all"), names.index("attention.merge")
    assert names.count("attention.core") == names.count("attention.all_to_all") == names.count("attention.merge") == 2
    assert max(i for i, name in enumerate(names) if name == "attention.core") < exchange < merge


def test_a_worker_that_owns_no_output_projection_skips_it():
    placed = placement(model(gqa(8, 2)), "kvp", kvp=2, tp=1)
    worker = " ".join(_story(placed, rank=1))
    master = " ".join(_story(placed, rank=0))
    assert "gate_up" in master
    assert "merge" in master
    assert "gate_up" not in worker
    assert "merge" not in worker
    assert "issue attention.gather" in worker


def test_a_lane_meets_the_classes_of_its_group():
    placed = placement(model(gqa(8, 2)), "tp", tp=2)
    found, names = _layer(placed)
    meeting = found.meetings[names.index("attention.all_reduce")]
    assert meeting.key == (names.index("attention.all_reduce"), (0, 1))
    assert meeting.members == 2
    assert found.exits == (names.index("ffn.all_reduce"), None)  # the residual was computed


def test_time_of_a_layer_is_its_sum_on_unit_costs():
    """Four GEMMs a layer and one LM head, one second each; an all-reduce 0.25 s: embedding, then two a layer."""
    placed = placement(model(gqa(8, 2), layers=3), "tp", tp=2)
    on = UnitMachine(gemm=1.0, attention=0.5, fixed={"all_reduce": 0.25, "all_gather": 2.0})
    critical = run_stage(placed, on, WORK).critical
    attention = 0.5 * 4 * 1  # four sequences, one KV head on each rank
    assert critical.seconds == 3 * (4 + attention) + 1 + 7 * 0.25 + 2.0
    assert critical.busy == 3 * (4 + attention) + 1
    assert critical.operations["attention.all_reduce"] == critical.operations["ffn.all_reduce"] == 0.75
    assert critical.idle == 0


def test_an_imbalance_is_waited_for_at_the_collective():
    """Three sequences over two replicas: one replica waits for the other's second attention."""
    placed = placement(model(gqa(8, 2), layers=1), "attention_dp", dp=2)
    passed = run_stage(placed, UnitMachine(attention=1.0), Workload(batch=3, context=100))
    busy = [one.busy for one in passed.lanes]
    assert busy == [4.0, 2.0]  # two sequences of two heads, and one
    assert [one.idle for one in passed.lanes] == [0.0, 2.0]
    assert passed.critical.seconds == 4.0


# -- two-batch overlap --------------------------------------------------------------------------------------


def test_lists_are_cut_behind_communication():
    segment = next(iter(lower(model(gqa(8, 2)), layout("tp", tp=2), "decode").layers.values()))
    assert [[op.name for op in part][-1] for part in stages(list(segment.ops))] == [
        "attention.all_reduce",
        "ffn.all_reduce",
    ]
    ops = list(segment.ops)
    assert [op.name for op in interleave(ops, ops)] == [op.name for half in stages(ops) for op in (*half, *half)]


def test_one_half_computes_while_the_other_communicates():
    """Per layer and half: 2 GEMMs in each block (1 s each) and an all-reduce of 1 s behind it."""
    placed = placement(model(gqa(8, 2), layers=8), "tp", tp=2, two_batch_overlap=True)
    plain = placement(model(gqa(8, 2), layers=8), "tp", tp=2)
    on = UnitMachine(gemm=1.0, fixed={"all_reduce": 1.0})
    overlapped, apart = run_stage(placed, on, WORK).critical, run_stage(plain, on, WORK).critical
    assert apart.seconds == 1 + 8 * (4 + 2) + 1  # embedding's all-reduce, the layers, the LM head
    # every GEMM now runs twice; of four all-reduces a layer only one stays visible, where the halves meet again
    assert overlapped.busy == 8 * 8 + 1
    assert overlapped.seconds == 1 + 8 * (8 + 1) + 1
    assert "attention.all_reduce" not in overlapped.operations


# -- event counts: the guard on cost ------------------------------------------------------------------------

R1, LLAMA = "deepseek-r1", "llama-3.1-405b"
COUNTS = [
    (LLAMA, "tp", {"tp": 8}, 17, 2548),
    (R1, "wide_ep", {"dp": 64}, 11, 15400),
    (R1, "helix", {"tpa": 1, "kvp": 8, "ep": 8}, 46, 1858),
    (R1, "attention_dp", {"dp": 8, "ep": 8}, 11, 2128),
]


@pytest.mark.parametrize(("name", "kind", "degrees", "folded", "ranks"), COUNTS, ids=str)
def test_events_of_one_step(name, kind, degrees, folded, ranks):
    placed = placement(name, kind, **degrees)
    work = Workload(batch=placed.cut.sequence_groups * 8, context=4096)
    assert run_stage(placed, machine(64), work).events == folded
    assert run_stage(placed, machine(64), work, granularity="ranks").events == ranks


def test_folded_events_do_not_grow_with_layers_or_ranks():
    counts = set()
    for layers in (4, 40, 400):
        for tp in (2, 8):
            counts.add(run_stage(placement(model(gqa(8, 2), layers=layers), "tp", tp=tp), machine(64), WORK).events)
    assert len(counts) == 1


def test_events_of_every_rank_are_runs_and_collectives():
    """tp 4, three layers: each rank two runs a layer and three more; two events per collective of all."""
    placed = placement(model(gqa(8, 4), layers=3), "tp", tp=4)
    events = run_stage(placed, machine(64), WORK, granularity="ranks").events
    runs = 4 * (1 + 3 * 2 + 2)
    collectives = 2 * (1 + 3 * 2 + 1)
    assert events == runs + collectives
