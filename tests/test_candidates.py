"""Every algorithm can be forced where the group can run it, and then takes the time that its busiest link says."""

from __future__ import annotations

from collections import Counter
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.candidates import Candidates
from sim.catalog.gpus import load_gpu
from sim.catalog.topologies import parse_topology
from sim.errors import InputError
from sim.fabric import Fabric
from sim.network import algorithms
from sim.network.collectives import Collectives
from sim.network.constants import load_fabric_constants

C = load_fabric_constants()
H100, GB200, L40S = (load_gpu(n) for n in ("h100-sxm", "gb200", "l40s"))
BOX = parse_topology("hgx-8").build(H100)
RACK = parse_topology("nvl72-12").build(GB200)
BOXES = parse_topology("cluster-3").build(H100)
SLOTS = parse_topology("pcie-4").build(L40S)
NVLINK, NIC = 450e9, 50e9


def exactly(value: Any) -> Any:
    return pytest.approx(value, rel=1e-9, abs=0)


def on(fabric: Fabric, **forced: str) -> Collectives:
    return Collectives(fabric, {BOX: H100, RACK: GB200, BOXES: H100, SLOTS: L40S}[fabric], C, forced=forced)


@pytest.mark.parametrize(
    ("fabric", "kind", "algorithm", "pace"),
    [
        (BOX, "all_reduce", "ring", 2 * 7 / 8 / NVLINK),
        (BOX, "all_reduce", "tree", 3 / NVLINK),  # an inner rank: one parent, two children
        (BOX, "all_reduce", "one_shot", 7 / NVLINK),
        (BOX, "all_reduce", "two_shot", 2 * 7 / 8 / NVLINK),
        (BOX, "all_reduce", "in_switch", (1 + 1 / 8) / NVLINK),
        (BOX, "all_gather", "ring", 7 / NVLINK),
        (BOX, "reduce_scatter", "ring", 7 / 8 / NVLINK),
        (BOX, "all_gather", "direct", 7 / NVLINK),
        (BOX, "all_to_all", "pairwise", 1 / NVLINK),
        (BOX, "dispatch", "pairwise", 1 / NVLINK),
        (BOX, "broadcast", "chain", 1 / NVLINK),
        (BOX, "broadcast", "tree", 2 / NVLINK),
        (BOX, "gather", "direct", 7 / NVLINK),
        (RACK, "all_reduce", "multicast one_shot", 11 / 900e9),
        (RACK, "all_reduce", "multicast two_shot", 2 * 11 / 12 / 900e9),
        (BOXES, "all_reduce", "ring", 2 * 23 / 24 / NIC / 2),
        (BOXES, "all_reduce", "hierarchical", max(2 * 2 / 3 / 8 / NIC, 2 * 7 / 8 / NVLINK)),
        (BOXES, "all_to_all", "rail_aligned", 16 / 23 / NIC),
        (BOXES, "all_to_all", "pairwise", 16 / 23 / NIC),
        (BOXES, "send", "direct", 1 / NVLINK),
        (SLOTS, "all_reduce", "direct", 2 * 3 / 4 / 32e9),
    ],
)
def test_what_is_forced_runs_at_the_pace_of_its_busiest_link(
    fabric: Fabric, kind: str, algorithm: str, pace: float
) -> None:
    machine = on(fabric, **{kind: algorithm})
    ranks = (0, 1) if kind == "send" else tuple(range(len(fabric)))
    load = next(load for load in machine.loads(kind, ranks) if load.plan.algorithm == algorithm)
    assert max(load.pace.values()) == exactly(pace)
    if algorithm in machine.plan(kind, ranks).algorithm:  # which some library has a kernel for
        cost = machine.cost(kind, ranks)
        assert cost.algorithm == algorithm
        assert {p.algorithm for p in cost.pieces} == {algorithm}


@pytest.mark.parametrize("algorithm", ["tree", "double_tree", "hierarchical tree", "ring"])
def test_algorithms_that_no_library_takes_there_are_priced_when_forced(algorithm: str) -> None:
    """Over even servers NCCL's rings and trees work rail by rail."""
    ranks = tuple(range(24))
    usual = {load.plan.algorithm for load in on(BOXES).loads("all_reduce", ranks)}
    assert usual == {"hierarchical", "hierarchical tree"}
    forced = on(BOXES, all_reduce=algorithm).cost("all_reduce", ranks)
    assert forced.algorithm == algorithm
    assert forced.seconds(2**30) >= on(BOXES).cost("all_reduce", ranks).seconds(2**30)


def test_trees_inside_a_box_are_only_taken_when_forced() -> None:
    assert "tree" not in {load.plan.algorithm for load in on(BOX).loads("all_reduce", tuple(range(8)))}
    assert on(BOX, all_reduce="double_tree").cost("all_reduce", tuple(range(8))).algorithm == "double_tree"


def test_a_group_that_straddles_trays_takes_the_kernels_for_a_rack() -> None:
    """Peers map each other's memory inside one tray; between trays the switch copies. GPUs 2 to 5 sit in two."""
    costs = {ranks: on(RACK).cost("all_reduce", ranks).algorithm_for(2**12) for ranks in ((0, 1, 2, 3), (2, 3, 4, 5))}
    assert [cost.split(" (")[0] for cost in costs.values()] == ["one_shot", "multicast one_shot"]


def test_what_a_group_cannot_run_is_refused_with_what_it_can() -> None:
    with pytest.raises(InputError, match=r"all_reduce cannot be forced to one_shot here; choose from .*hierarchical"):
        on(BOXES, all_reduce="one_shot").cost("all_reduce", tuple(range(24)))
    with pytest.raises(InputError, match=r"all_to_all cannot be forced to rail_aligned here; choose from .*pairwise"):
        on(BOX, all_to_all="rail_aligned").cost("all_to_all", tuple(range(8)))


@given(st.permutations(range(24)))
def test_rings_and_trees_go_through_one_server_after_the_other(ranks: list[int]) -> None:
    """Whatever the order of ranks: a ring crosses between servers as often as there are servers."""
    found = {c.algorithm: c.build() for c in Candidates(BOXES).of("all_reduce", tuple(ranks))}
    crossing = [(a, b) for a, b, _ in found["ring"].stages[0].flows if a // 8 != b // 8]
    assert len(crossing) == 2 * 3
    chain = next(c.build() for c in Candidates(BOXES).of("broadcast", tuple(ranks)))
    assert chain.stages[0].flows[0][0] == ranks[0]
    assert len([(a, b) for a, b, _ in chain.stages[0].flows if a // 8 != b // 8]) == 2


# -- servers that are not alike

uneven = st.lists(st.integers(1, 5), min_size=2, max_size=5).map(
    lambda counts: [[10 * s + i for i in range(count)] for s, count in enumerate(counts)]
)


@given(uneven)
def test_a_hierarchy_of_uneven_servers_delivers_exactly_what_is_needed(servers: list[list[int]]) -> None:
    """Everybody receives what it lacks of an all-gather, and gives away what it does not keep of a reduce-scatter."""
    total = sum(map(len, servers))
    gather, scatter = (algorithms.hierarchical(kind, servers) for kind in ("all_gather", "reduce_scatter"))
    received = Counter[int]()
    for stage in gather.stages:
        for _, target, size in stage.flows:
            received[target] += size  # type: ignore[assignment]
    assert dict(received) == exactly(dict.fromkeys((r for s in servers for r in s), total - 1))
    assert scatter.sent() == exactly(dict.fromkeys((r for s in servers for r in s), (total - 1) / total))


@given(uneven, st.sampled_from(["ring", "double_tree"]))
def test_a_hierarchy_crosses_between_servers_over_the_rails_of_the_smallest(
    servers: list[list[int]], across: str
) -> None:
    plan, rails, n = algorithms.hierarchical("all_reduce", servers, across), min(map(len, servers)), len(servers)
    crossing = [(a, b, size) for stage in plan.stages for a, b, size in stage.flows if a // 10 != b // 10]
    assert {a % 10 for a, _, _ in crossing} == set(range(rails))
    assert all(a % 10 == b % 10 for a, b, _ in crossing)
    assert sum(size for _, _, size in crossing) == exactly(2 * (n - 1))  # a message, in as many parts as rails
    for server in servers:  # and inside, all of it to the rails and all of it back
        inside = sum(size for stage in plan.stages for a, b, size in stage.flows if a in server and b in server)
        assert inside == exactly(2 * (len(server) - 1)) or len(server) == 1


# -- uneven exchanges


def even(n: int, message: float) -> list[list[float]]:
    return [[message / (n - 1)] * n for _ in range(n)]


@pytest.mark.parametrize("kind", ["all_to_all", "dispatch", "combine"])
@pytest.mark.parametrize("message", [1e3, 3e5, 7e8])
@pytest.mark.parametrize("fabric", [BOX, RACK, BOXES, SLOTS])
def test_an_even_exchange_is_a_special_case(fabric: Fabric, message: float, kind: str) -> None:
    ranks = tuple(range(len(fabric)))
    found = on(fabric).uneven(kind, ranks, even(len(ranks), message))
    assert found.seconds == pytest.approx(on(fabric).seconds(kind, ranks, message), rel=1e-12)
    assert found.message == pytest.approx(message, rel=1e-12)


@settings(deadline=None, max_examples=60)
@given(st.sampled_from([BOX, BOXES, SLOTS]), st.data())
def test_the_busiest_link_sets_the_pace_of_an_uneven_exchange(fabric: Fabric, data: st.DataObject) -> None:
    ranks = tuple(data.draw(st.permutations(range(len(fabric))))[: data.draw(st.integers(2, len(fabric)))])
    n = len(ranks)
    row = st.lists(st.floats(0, 1e9), min_size=n, max_size=n)
    sizes = data.draw(st.lists(row, min_size=n, max_size=n))
    machine = on(fabric, all_to_all="pairwise")
    found = machine.uneven("all_to_all", ranks, sizes)
    flows = [(a, b, sizes[i][j]) for (i, a), (j, b) in permutations(enumerate(ranks), 2)]
    part, loads, _ = fabric.load(flows, ranks)
    longest = max(load / edge.bandwidth for load, edge in zip(loads, part.edges, strict=True))
    if fabric is not BOXES:  # over several servers the floor may be that of the rails
        assert found.cost.floor_seconds_per_byte * found.message == pytest.approx(longest, rel=1e-9)
    assert found.seconds >= longest * (1 - 1e-9)
    assert found.message == pytest.approx(max(sum(r) - r[i] for i, r in enumerate(sizes)), rel=1e-12)
    doubled = machine.uneven("all_to_all", ranks, [[2 * size for size in r] for r in sizes])
    assert doubled.seconds >= found.seconds * (1 - 1e-12)


@given(st.integers(0, 7), st.floats(1e6, 1e9))
def test_a_rank_that_everybody_sends_to_is_the_bottleneck(hot: int, size: float) -> None:
    sizes = [[size if j == hot != i else 0.0 for j in range(8)] for i in range(8)]
    found = on(BOX).uneven("all_to_all", tuple(range(8)), sizes)
    assert found.cost.floor_seconds_per_byte * found.message == exactly(7 * size / NVLINK)


def test_rails_forward_uneven_sizes_inside_the_server_first() -> None:
    sizes = [[0.0] * 24 for _ in range(24)]
    sizes[0][9] = 100.0  # from GPU 0 of the first server to GPU 1 of the second
    sizes[2][3] = 7.0
    found = on(BOXES).uneven("all_to_all", tuple(range(24)), sizes)
    flows = [flow for stage in found.stages for flow in stage.flows]
    assert flows == [(0, 1, 1.0), (2, 3, 0.07), (1, 9, 1.0)]
    near = [[size if i // 8 == j // 8 else 0.0 for j, size in enumerate(row)] for i, row in enumerate(even(24, 1.0))]
    assert len(on(BOXES).uneven("all_to_all", tuple(range(24)), near).stages) == 1  # nothing leaves a server


def test_nobody_sending_anything_still_takes_a_kernel() -> None:
    found = on(BOX).uneven("dispatch", (0, 1), [[5.0, 0.0], [0.0, 0.0]])
    assert found.seconds == on(BOX).cost("dispatch", (0, 1)).alpha
    assert found.stages == ()


@pytest.mark.parametrize(
    ("kind", "sizes", "message"),
    [
        ("all_reduce", [[0, 1], [1, 0]], "uneven sizes are for all_to_all, dispatch, combine, not for all_reduce"),
        ("dispatch", [[0, 1]], "needs 2 rows of 2 sizes"),
        ("dispatch", [[0, 1], [1]], "needs 2 rows of 2 sizes"),
        ("dispatch", [[0, -1], [1, 0]], "none of them negative"),
        ("dispatch", [[0, float("nan")], [1, 0]], "none of them negative"),
    ],
)
def test_sizes_that_make_no_sense_are_refused(kind: str, sizes: list[list[float]], message: str) -> None:
    with pytest.raises(InputError, match=message):
        on(BOX).uneven(kind, (0, 1), sizes)
