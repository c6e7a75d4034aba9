"""Collectives on crossbars, rings, meshes, tori and hypercubes against what a pencil gives, over sizes of groups."""

from __future__ import annotations

from itertools import product
from typing import Any

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.fabric import Fabric
from sim.network import algorithms
from sim.network.algorithms import Plan
from sim.topology import connect

LINK = 25e9


def exactly(value: Any) -> Any:
    return pytest.approx(value, rel=1e-9, abs=0)


def built(links: list[tuple[Any, Any]], gpus: list[Any]) -> Fabric:
    graph = nx.DiGraph()
    graph.add_nodes_from((str(g) for g in gpus), kind="gpu")
    graph.add_nodes_from((str(v) for link in links for v in link if v not in gpus), kind="nvswitch")
    for a, b in links:
        connect(graph, str(a), str(b), "nvlink4", LINK, 1e-6)
    return Fabric("drawn", "", graph, map(str, gpus))


def crossbar(n: int, chips: int) -> Fabric:
    return built([(g, f"chip{c}") for g in range(n) for c in range(chips)], list(range(n)))


def ring(n: int) -> Fabric:
    return built([(i, (i + 1) % n) for i in range(n)], list(range(n)))


def torus(*sides: int) -> Fabric:
    nodes = list(product(*map(range, sides)))
    links = [
        (node, (*node[:d], (node[d] + 1) % side, *node[d + 1 :])) for node in nodes for d, side in enumerate(sides)
    ]
    return built(links, nodes)


def hypercube(dimensions: int) -> Fabric:
    nodes = list(range(2**dimensions))
    return built([(a, a ^ 1 << d) for a in nodes for d in range(dimensions) if not a >> d & 1], nodes)


def mesh(n: int) -> Fabric:
    return built([(a, b) for a in range(n) for b in range(a)], list(range(n)))


def pace(fabric: Fabric, plan: Plan) -> float:
    """Seconds per byte of the message on the busiest link."""
    ranks = range(len(fabric))
    total: list[float] = [0.0] * len(fabric.load([], ranks)[0].edges)
    for stage in plan.stages:
        part, loads, _ = fabric.load(stage.flows, ranks)
        total = [a + b for a, b in zip(total, loads, strict=True)]
    return max(load / edge.bandwidth for load, edge in zip(total, part.edges, strict=True))


sizes = st.integers(2, 24)
chips = st.integers(1, 6)


@settings(deadline=None)
@given(sizes, chips)
def test_on_a_crossbar_everything_is_bound_by_what_a_rank_sends_and_receives(n: int, k: int) -> None:
    fabric, egress, ranks = crossbar(n, k), k * LINK, range(n)
    for plan, amount in (
        (algorithms.ring("all_reduce", ranks), 2 * (n - 1) / n),
        (algorithms.ring("all_gather", ranks), n - 1),
        (algorithms.ring("reduce_scatter", ranks), (n - 1) / n),
        (algorithms.direct("all_reduce", ranks), 2 * (n - 1) / n),
        (algorithms.one_shot(ranks), n - 1),
        (algorithms.two_shot(ranks), 2 * (n - 1) / n),
        (algorithms.in_switch(ranks), 1 + 1 / n),
        (algorithms.switch_copies("all_gather", ranks), n - 1),
        (algorithms.switch_copies("reduce_scatter", ranks), 1),
        (algorithms.pairwise_exchange(ranks), 1),
        (algorithms.chain(ranks), 1),
        (algorithms.to_root(ranks), n - 1),
    ):
        assert pace(fabric, plan) == exactly(amount / egress), plan.algorithm


@settings(deadline=None)
@given(st.integers(2, 40), chips)
def test_trees_on_a_crossbar_are_bound_by_the_rank_with_most_neighbours(n: int, k: int) -> None:
    """Three of them from four ranks on; a broadcast only by its children."""
    neighbours = min(n - 1, 3)
    assert pace(crossbar(n, k), algorithms.tree(range(n))) == exactly(neighbours / (k * LINK))
    children = max(algorithms.broadcast_tree(range(n)).sent().values())
    assert children == (2 if n >= 4 else 1)
    assert pace(crossbar(n, k), algorithms.broadcast_tree(range(n))) == exactly(children / (k * LINK))


@settings(deadline=None)
@given(sizes, chips)
def test_two_trees_on_a_crossbar_are_as_good_as_a_ring_for_many(n: int, k: int) -> None:
    assert pace(crossbar(n, k), algorithms.double_tree(range(n))) <= 2 / (k * LINK) * (1 + 1e-9)


@settings(deadline=None)
@given(st.integers(3, 40))
def test_all_to_all_on_a_ring_is_bound_by_its_bisection(n: int) -> None:
    """Sum of the distances to all others, over two links: n²/4 of them for even n, (n²-1)/4 for odd."""
    assert pace(ring(n), algorithms.pairwise_exchange(range(n))) == exactly((n * n - n % 2) / 4 / (n - 1) / (2 * LINK))


@settings(deadline=None)
@given(st.integers(3, 40))
def test_rings_on_a_ring_use_both_directions(n: int) -> None:
    assert pace(ring(n), algorithms.ring("all_reduce", range(n))) == exactly(2 * (n - 1) / n / (2 * LINK))


@settings(deadline=None)
@given(st.integers(3, 12))
def test_a_mesh_exchanges_over_every_link_at_once(n: int) -> None:
    assert pace(mesh(n), algorithms.pairwise_exchange(range(n))) == exactly(1 / (n - 1) / LINK)
    assert pace(mesh(n), algorithms.direct("all_reduce", range(n))) == exactly(2 / n / LINK)


@pytest.mark.parametrize("dimensions", [1, 2, 3, 4, 5])
def test_all_to_all_on_a_hypercube_crosses_each_dimension_with_half(dimensions: int) -> None:
    n = 2**dimensions
    assert pace(hypercube(dimensions), algorithms.pairwise_exchange(range(n))) == exactly(n / 2 / (n - 1) / LINK)


@pytest.mark.parametrize("sides", [(3, 3), (4, 4), (5, 5), (3, 3, 3), (4, 4, 4), (4, 6), (3, 5), (8, 4)])
def test_all_to_all_on_a_torus_is_bound_by_its_longest_side(sides: tuple[int, ...]) -> None:
    """Along a side of k every GPU has k²/4 (or (k²-1)/4) links to go, once for every position in the other sides."""
    fabric, n, k = torus(*sides), len(torus(*sides)), max(sides)
    distance = n / k * (k * k - k % 2) / 4
    assert pace(fabric, algorithms.pairwise_exchange(range(n))) == exactly(distance / (n - 1) / (2 * LINK))


def test_an_exchange_on_a_torus_takes_all_shortest_routes_alike() -> None:
    assert [r.share for r in torus(4, 4).routes("(0, 0)", "(1, 1)")] == [0.5, 0.5]
    assert [r.share for r in torus(5, 5).routes("(0, 0)", "(2, 1)")] == exactly([1 / 3] * 3)
