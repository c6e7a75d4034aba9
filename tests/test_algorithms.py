"""Algorithms of collectives: what each rank sends, against closed forms, and trees that are trees."""

from __future__ import annotations

from collections import Counter
from math import ceil, log2
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.network import algorithms
from sim.network.algorithms import Plan


def exactly(value: Any) -> Any:
    return pytest.approx(value, rel=1e-9, abs=0)


def received(plan: Plan) -> dict[int, float]:
    total: Counter[int] = Counter()
    for stage in plan.stages:
        for _, target, size in stage.flows:
            total[target] += size  # type: ignore[assignment]
    return dict(total)


sizes = st.integers(2, 33)


@given(sizes)
def test_every_rank_of_a_ring_sends_the_lower_bound(n: int) -> None:
    for kind, wire in (("all_reduce", 2 * (n - 1) / n), ("all_gather", n - 1), ("reduce_scatter", (n - 1) / n)):
        plan = algorithms.ring(kind, range(n))
        assert plan.sent() == exactly(dict.fromkeys(range(n), wire))
        assert received(plan) == exactly(dict.fromkeys(range(n), wire))
        assert plan.stages[0].steps == (2 if kind == "all_reduce" else 1) * (n - 1)


@given(sizes)
def test_shots_and_the_switch_send_what_their_formulas_say(n: int) -> None:
    for plan, wire in (
        (algorithms.one_shot(range(n)), n - 1),
        (algorithms.two_shot(range(n)), 2 * (n - 1) / n),
        (algorithms.in_switch(range(n)), 1 + 1 / n),
        (algorithms.direct("all_reduce", range(n)), 2 * (n - 1) / n),
        (algorithms.pairwise_exchange(range(n)), 1),
    ):
        assert plan.sent() == exactly(dict.fromkeys(range(n), wire))
        assert received(plan) == exactly(dict.fromkeys(range(n), wire))


@given(sizes)
def test_a_piece_is_what_goes_to_one_peer_in_one_step(n: int) -> None:
    assert algorithms.ring("all_reduce", range(n)).piece == exactly(1 / n)
    assert algorithms.ring("reduce_scatter", range(n)).piece == exactly(1 / n)
    assert algorithms.ring("all_gather", range(n)).piece == exactly(1)
    assert algorithms.pairwise_exchange(range(n)).piece == exactly(1 / (n - 1))
    assert algorithms.one_shot(range(n)).piece == exactly(1)
    assert algorithms.two_shot(range(n)).piece == exactly(1 / n)
    assert algorithms.send([0, 1]).piece == exactly(1)


@given(st.integers(1, 300))
def test_a_tree_has_one_root_and_logarithmic_depth(n: int) -> None:
    above = algorithms.parents(n)
    assert above[0] is None
    assert all(p is not None and 0 <= p < n for p in above[1:])
    children = Counter(p for p in above if p is not None)
    assert max(children.values(), default=0) <= 2
    for i in range(n):
        depth, at = 0, above[i]
        while at is not None:
            depth, at = depth + 1, above[at]
        assert depth <= ceil(log2(n)) + (n > 1)


@given(sizes)
def test_trees_move_the_message_up_and_down_every_edge(n: int) -> None:
    for plan in (algorithms.tree(range(n)), algorithms.double_tree(range(n))):
        assert sum(plan.sent().values()) == exactly(2 * (n - 1))
        assert plan.sent() == exactly(received(plan))


@given(sizes)
def test_two_trees_share_the_work(n: int) -> None:
    """No rank sends more than 2 M; in a single tree an inner one sends 3 M."""
    assert max(algorithms.double_tree(range(n)).sent().values()) <= 2 + 1e-9
    if n >= 7:
        assert max(algorithms.tree(range(n)).sent().values()) == exactly(3)


@given(st.integers(2, 6), st.integers(2, 8))
def test_a_hierarchy_crosses_the_network_with_an_nth(n: int, g: int) -> None:
    servers = [[s * g + i for i in range(g)] for s in range(n)]

    def crossing(plan: Plan) -> float:
        return sum(size for stage in plan.stages for a, b, size in stage.flows if a // g != b // g) / (n * g)

    assert crossing(algorithms.hierarchical("all_reduce", servers)) == exactly(2 * (n - 1) / n / g)
    assert crossing(algorithms.hierarchical("all_gather", servers)) == exactly(n - 1)
    assert crossing(algorithms.hierarchical("reduce_scatter", servers)) == exactly((n - 1) / n / g)
    trees = algorithms.hierarchical("all_reduce", servers, across="double_tree")
    assert crossing(trees) == exactly(2 * (n - 1) / n / g)


@given(st.integers(2, 6), st.integers(2, 8))
def test_a_rail_aligned_exchange_never_leaves_its_rail_between_servers(n: int, g: int) -> None:
    servers = [[s * g + i for i in range(g)] for s in range(n)]
    plan = algorithms.rail_aligned(servers)
    across = [(a, b, size) for stage in plan.stages for a, b, size in stage.flows if a // g != b // g]
    assert {(a % g) == (b % g) for a, b, _ in across} == {True}
    sent = Counter[int]()
    for a, _, size in across:
        sent[a] += size  # type: ignore[assignment]
    assert dict(sent) == exactly(dict.fromkeys(range(n * g), (n - 1) * g / (n * g - 1)))


def test_the_rest_is_what_it_says() -> None:
    assert algorithms.chain((4, 2, 7)).stages[0].flows == ((4, 2, 1.0), (2, 7, 1.0))
    assert algorithms.to_root((1, 2, 3)).stages[0].flows == ((2, 1, 1.0), (3, 1, 1.0))
    assert algorithms.send((3, 5)).stages[0].flows == ((3, 5, 1.0),)
    assert algorithms.multicast(algorithms.one_shot((0, 1))).algorithm == "multicast one_shot"
