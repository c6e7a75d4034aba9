"""Equal ranks run as one: which ranks are equal, and that nothing is lost."""

from __future__ import annotations

import pytest
from strategies_for_tests import MOE, evaluate, gqa, machine, mla, model, placement, run_stage

from sim.fold import Classes, unfolded
from sim.step import StageModel
from sim.workload import Workload


def _members(placed, work, on=None) -> tuple[tuple[int, ...], ...]:
    stage = StageModel(placed, on or machine(64), work.phase, work.sequences)
    return stage.classes("folded").members


def test_tensor_parallel_ranks_are_all_equal():
    assert _members(placement(model(gqa(24, 4)), "tp", tp=8), Workload(batch=5, context=99)) == (tuple(range(8)),)


def test_replicas_with_one_sequence_more_differ():
    placed = placement(model(gqa(24, 4)), "attention_dp", dp=4)
    assert _members(placed, Workload(batch=8, context=99)) == ((0, 1, 2, 3),)
    assert _members(placed, Workload(batch=6, context=99)) == ((0, 1), (2, 3))
    assert _members(placed, Workload(batch=2, context=99)) == ((0, 1), (2, 3))


def test_replicas_with_other_lengths_differ():
    placed = placement(model(gqa(24, 4)), "attention_dp", dp=4)
    assert _members(placed, Workload(context=(7, 7, 7, 8))) == ((0, 1, 2), (3,))


def test_shards_of_a_sequence_differ_where_their_tokens_do():
    placed = placement(model(gqa(24, 4)), "helix", tpa=2, kvp=4, ownership="round_robin", block=1)
    # 100 tokens: 25 on each; the newest one lies on the last shard (rank = tpa x 4 + kvp)
    assert _members(placed, Workload(batch=1, context=100)) == ((0, 1, 2, 4, 5, 6), (3, 7))
    assert _members(placed, Workload(batch=1, context=101)) == ((0, 4), (1, 2, 3, 5, 6, 7))


def test_uneven_heads_make_classes():
    """Three KV heads over four ranks of two query heads: 1, 2, 2 and 1."""
    placed = placement(model(gqa(12, 3)), "tp", tp=4)
    assert _members(placed, Workload(batch=1, context=100)) == ((0, 3), (1, 2))


def test_a_remainder_of_experts_makes_classes():
    placed = placement(model(gqa(24, 4), MOE), "tp", tp=8, ep=8)
    assert _members(placed, Workload(batch=1, context=10)) == (tuple(range(8)),)
    uneven = placement(model(gqa(24, 4), MOE), "wide_ep", dp=5)
    assert _members(uneven, Workload(batch=5, context=10)) == ((0, 1, 2), (3, 4))  # 48 experts: 10 and 9


def test_masters_and_workers_differ():
    placed = placement(model(gqa(24, 4)), "kvp", kvp=2, tp=2, block=1)
    assert _members(placed, Workload(batch=1, context=100)) == ((0, 1), (2, 3))


def test_groups_that_sit_apart_differ():
    """On a cluster, groups inside a node are not like groups across nodes; on an NVL72 all are alike, except that those
    within one tray of four map each other's memory."""
    placed = placement(model(gqa(24, 3)), "attention_dp", dp=4, tp=3)
    work = Workload(batch=4, context=100)
    assert _members(placed, work) == ((0, 1, 2, 9, 10, 11), (3, 4, 5, 6, 7, 8))
    assert len(_members(placement(model(gqa(24, 4)), "attention_dp", dp=4, tp=4), work)) == 1
    members = _members(placed, work, machine(80))  # nodes of 8: the attention of ranks 6, 7 and 8 crosses the network
    assert {rank for ranks in members if 6 in ranks for rank in ranks} <= {6, 7, 8}
    assert sorted(rank for ranks in members for rank in ranks) == list(range(12))
    folded, ranks = (evaluate(placed, work, machine(80), granularity=g).step().seconds for g in ("folded", "ranks"))
    assert folded == pytest.approx(ranks, rel=1e-9)


def test_unfolded_is_one_class_per_rank():
    assert unfolded(3) == Classes((0, 1, 2), ((0,), (1,), (2,)))
    assert unfolded(3).representatives == (0, 1, 2)


@pytest.mark.parametrize(
    ("kind", "degrees"),
    [
        ("tp", {"tp": 8, "ep": 2}),
        ("attention_dp", {"dp": 4, "tp": 2, "ep": 8}),
        ("wide_ep", {"dp": 8, "redundant_experts": 16}),
        ("kvp", {"kvp": 4, "tp": 2}),
        ("dcp", {"tp": 8, "dcp": 4}),
        ("helix", {"tpa": 2, "kvp": 4}),
    ],
)
@pytest.mark.parametrize(
    "work",
    [
        Workload(batch=1, context=3),
        Workload(batch=3, context=1000, query_tokens=2),
        Workload(batch=13, context=129, query_tokens=4),
        Workload(context=(5, 4000, 17, 17, 300)),
    ],
    ids=("one short", "fewer than ranks", "not a multiple", "ragged"),
)
def test_each_lane_does_what_its_ranks_would(kind, degrees, work):
    """Busy time, waiting and bytes sent of every rank, not only the time of the step."""
    placed = placement(model(mla(), MOE, layers=4), kind, **degrees)
    folded, ranks = (run_stage(placed, machine(64), work, g) for g in ("folded", "ranks"))
    for rank, alone in enumerate(ranks.lanes):
        lane = folded.lanes[folded.classes.of[rank]]
        assert lane.busy == pytest.approx(alone.busy, rel=1e-9)
        assert lane.seconds == pytest.approx(alone.seconds, rel=1e-9)
        assert lane.idle == pytest.approx(alone.idle, rel=1e-9, abs=1e-15)
        assert lane.floor == pytest.approx(alone.floor, rel=1e-9)
        assert lane.sent == pytest.approx(alone.sent, rel=1e-9)
        names = {*lane.operations, *alone.operations}
        for name in names:
            mine, its = (found.operations.get(name, 0.0) for found in (lane, alone))
            assert mine == pytest.approx(its, rel=1e-6, abs=1e-12), name
