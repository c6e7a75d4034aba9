"""Collectives against closed forms, and the properties that hold on every fabric."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.catalog.gpus import load_gpu
from sim.catalog.topologies import parse_topology
from sim.errors import InputError, TopologyError
from sim.fabric import Fabric
from sim.hardware import Gpu
from sim.network.collectives import FREE, KINDS, Collectives
from sim.network.constants import load_fabric_constants

C = load_fabric_constants()
V100, H100, H200, B200 = (load_gpu(n) for n in ("v100-sxm2-32gb", "h100-sxm", "h200-sxm", "b200-sxm"))
GB200, GB300, L40S, H100_PCIE = (load_gpu(n) for n in ("gb200", "gb300", "l40s", "h100-pcie"))
A100 = load_gpu("a100-sxm-80gb")
EXACT = 1e-9
Spec = str | dict[str, object]


def exactly(value: Any) -> Any:
    """To 1e-9 relative; the default absolute tolerance would swallow seconds per byte."""
    return pytest.approx(value, rel=EXACT, abs=0)


def on(spec: Spec, gpu: Gpu, **forced: str) -> Collectives:
    return Collectives(parse_topology(spec).build(gpu), gpu, C, forced=forced)


def bus(spec: Spec, gpu: Gpu, n: int, message: float, **forced: str) -> float:
    """Bus bandwidth of an all-reduce in bytes/s, as nccl-tests reckon it."""
    return 2 * (n - 1) / n * message / on(spec, gpu, **forced).seconds("all_reduce", tuple(range(n)), message)


def floor(spec: Spec, gpu: Gpu, kind: str, n: int) -> float:
    return on(spec, gpu).cost(kind, tuple(range(n))).floor_seconds_per_byte


# -- closed forms, M = 1 byte


@pytest.mark.parametrize("n", [2, 3, 4, 8])
def test_ring_collectives_on_a_switch(n: int) -> None:
    egress = 450e9
    assert on("hgx-8", H200, all_reduce="ring").loads("all_reduce", tuple(range(n)))[0].floor == exactly(
        2 * (n - 1) / n / egress
    )
    assert floor("hgx-8", H200, "all_reduce", n) == exactly(min(2 * (n - 1) / n, 1 + 1 / n) / egress)
    assert floor("hgx-8", H200, "reduce_scatter", n) == exactly((n - 1) / n / egress)
    assert floor("hgx-8", H200, "all_gather", n) == exactly((n - 1) / egress)
    assert floor("hgx-8", H200, "broadcast", n) == exactly(1 / egress)
    assert floor("hgx-8", H200, "gather", n) == exactly((n - 1) / egress)


@pytest.mark.parametrize(("spec", "gpu", "n"), [("hgx-8", H100, 8), ("nvl72", GB200, 64), ("nvl72", GB200, 72)])
def test_all_to_all_on_a_crossbar_is_bound_by_egress(spec: str, gpu: Gpu, n: int) -> None:
    assert gpu.nvlink
    assert floor(spec, gpu, "all_to_all", n) == exactly(1 / gpu.nvlink.bandwidth)


@pytest.mark.parametrize("n", [4, 6, 8, 16, 64])
def test_all_to_all_on_a_ring_is_bound_by_its_bisection(n: int) -> None:
    """Half of the ranks send to the other half over the two links that cross, each way."""
    link = 225e9
    crossing = (n / 2) ** 2 / (n - 1)
    assert floor(f"ring-{n}", H100, "all_to_all", n) == exactly(crossing / (2 * link))
    if n == 64:
        assert floor("ring-64", H100, "all_to_all", n) == pytest.approx(n / 8 / link, rel=0.02, abs=0)


@pytest.mark.parametrize("n", [3, 5, 8])
def test_all_reduce_on_a_ring_uses_both_directions(n: int) -> None:
    assert floor(f"ring-{n}", H100, "all_reduce", n) == exactly(2 * (n - 1) / n / 450e9)


@pytest.mark.parametrize("n", [3, 4, 8])
def test_direct_mesh_sends_over_every_link_at_once(n: int) -> None:
    link = 450e9 / (n - 1)
    assert floor(f"fully_connected-{n}", H100, "all_to_all", n) == exactly(1 / (n - 1) / link)
    cost = on(f"fully_connected-{n}", H100).cost("all_reduce", tuple(range(n)))
    assert cost.floor_seconds_per_byte == exactly(2 / n / link)
    assert floor(f"fully_connected-{n}", H100, "send", 2) == exactly(1 / link)


def test_pcie_over_two_sockets_is_bound_by_the_cpu_link() -> None:
    spec: Spec = {"kind": "pcie", "gpus": 8, "cpu_link": "20 GB/s"}
    assert floor(spec, L40S, "all_to_all", 8) == exactly(4 * 4 / 7 / 20e9)
    assert floor(spec, L40S, "all_to_all", 4) == exactly(1 / 32e9)  # one socket: the slot
    narrow: Spec = {"kind": "pcie", "gpus": 4, "gpus_per_switch": 2, "uplink": "8 GB/s"}
    assert floor(narrow, L40S, "all_to_all", 4) == exactly(2 * 2 / 3 / 8e9)  # two GPUs send two thirds up
    assert floor(narrow, L40S, "all_to_all", 2) == exactly(1 / 32e9)
    wide: Spec = {"kind": "pcie", "gpus": 8, "cpu_link": "1000 GB/s"}
    assert floor(wide, L40S, "all_to_all", 8) == exactly(1 / 32e9)


@pytest.mark.parametrize(("nodes", "inside"), [(2, 8), (4, 8), (8, 8), (3, 4)])
def test_collectives_over_servers_are_bound_by_the_nics(nodes: int, inside: int) -> None:
    spec: Spec = {"kind": "cluster", "nodes": nodes, "node": f"hgx-{inside}", "nic": "400 Gb/s"}
    n, nic = nodes * inside, 50e9
    rail = (nodes - 1) / nodes / inside
    nvlink = (inside - 1) / inside / 450e9  # the bound once the NICs of a server together outrun a GPU's NVLink
    assert floor(spec, H100, "all_reduce", n) == exactly(2 * max(rail / nic, nvlink))
    assert floor(spec, H100, "reduce_scatter", n) == exactly(max(rail / nic, nvlink))
    assert floor(spec, H100, "all_gather", n) == exactly(n * max(rail / nic, nvlink))
    assert floor(spec, H100, "all_to_all", n) == exactly((n - inside) / (n - 1) / nic)


def test_a_shared_nic_carries_all_its_gpus() -> None:
    spec: Spec = {"kind": "cluster", "nodes": 2, "node": "hgx-8", "nics_per_node": 2, "nic": "10 GB/s"}
    assert floor(spec, H100, "all_to_all", 16) == exactly(4 * 8 / 15 / 10e9)


def test_the_cube_mesh_is_bound_by_its_single_links() -> None:
    """GPUs 0 to 3 exchange over six links of which three per pair of GPUs are single."""
    assert floor("dgx1", V100, "all_to_all", 4) == exactly(1 / 3 / 25e9)
    assert floor("dgx1", V100, "send", 2) == exactly(1 / 25e9)
    two = on("dgx1", V100)
    assert two.cost("send", (0, 3)).floor_seconds_per_byte == exactly(1 / 50e9)


def test_the_cube_mesh_reduces_over_all_its_links() -> None:
    """One ring of double links, one of single links: together the whole egress of 150 GB/s."""
    cost = on("dgx1", V100).cost("all_reduce", tuple(range(8)))
    assert cost.floor_seconds_per_byte == exactly(2 * 7 / 8 / 150e9)
    assert cost.algorithm == "2 rings"


def test_the_cube_mesh_broadcasts_over_both_its_rings() -> None:
    """From any root, either way around: half of each ring's part crosses its narrowest links."""
    for root in range(8):
        ranks = (root, *(r for r in range(8) if r != root))
        cost = on("dgx1", V100).cost("broadcast", ranks)
        assert cost.algorithm == "2 rings"
        assert cost.floor_seconds_per_byte == exactly(1 / 150e9)
    assert floor("ring-6", H100, "broadcast", 6) == exactly(1 / 450e9)


def test_unbalanced_groups_work_over_the_rails_that_all_servers_have() -> None:
    cost = on("cluster-2", H100, all_reduce="ring").cost("all_reduce", tuple(range(12)))
    assert cost.algorithm == "ring"
    assert cost.seconds_per_byte >= 11 / 12 / 50e9  # half each way round
    usual = on("cluster-2", H100).cost("all_reduce", tuple(range(12)))
    assert usual.algorithm in ("hierarchical", "hierarchical tree")
    # four rails; four of the eight ranks hand a quarter to each of three and, at the end, of seven others
    assert usual.floor_seconds_per_byte == exactly(max(1 / 4 / 50e9, (3 + 7) / 4 / 450e9))


# -- measured figures


@pytest.mark.parametrize(("gpu", "ring", "switch"), [(H200, 367e9, 473e9), (B200, 680e9, 838e9)])
def test_reduction_in_the_switch_shows(gpu: Gpu, ring: float, switch: float) -> None:
    """nccl-tests on 8 GPUs at 8 GiB, with and without NVLink SHARP."""
    assert bus("hgx-8", gpu, 8, 2**33) == pytest.approx(switch, rel=0.02)
    assert bus("hgx-8", gpu, 8, 2**33, all_reduce="ring") == pytest.approx(ring, rel=0.03)
    assert on("hgx-8", gpu).cost("all_reduce", tuple(range(8))).algorithm == "in_switch"


@pytest.mark.parametrize(("n", "measured"), [(4, 363.3e9), (6, 435.6e9)])
def test_reduction_in_the_switch_depends_on_the_group_as_measured(n: int, measured: float) -> None:
    assert bus("hgx-8", H200, n, 2**33) == pytest.approx(measured, rel=0.01)


def test_switches_before_the_fourth_nvlink_do_not_add_up() -> None:
    assert on("hgx-8", A100).cost("all_reduce", tuple(range(8))).algorithm == "ring"
    with pytest.raises(InputError, match="cannot be forced to in_switch"):
        on("hgx-8", A100, all_reduce="in_switch").cost("all_reduce", tuple(range(8)))


@pytest.mark.parametrize(("gpu", "us"), [(H200, 3.05), (B200, 5.04)])
def test_small_all_reduces_take_the_measured_time(gpu: Gpu, us: float) -> None:
    """TensorRT-LLM on 8 GPUs at 256 bytes."""
    assert on("hgx-8", gpu).seconds("all_reduce", tuple(range(8)), 256) == pytest.approx(us * 1e-6, rel=0.15)


def test_an_all_reduce_over_trays_is_copied_by_the_switch() -> None:
    """GB300 NVL72, TensorRT-LLM over 8 GPUs of two trays: 4.4 us at 16 KiB, 26 us at 8 MiB."""
    rack = on("nvl72", GB300)
    cost = rack.cost("all_reduce", tuple(range(8)))
    assert cost.algorithm_for(2**14) == "multicast one_shot (trtllm_multicast_one_shot)"
    assert cost.seconds(2**14) == pytest.approx(4.4e-6, rel=0.05)
    assert cost.seconds(2**23) == pytest.approx(26e-6, rel=0.1)
    assert rack.cost("all_reduce", tuple(range(4))).algorithm_for(2**14).startswith("one_shot")


def test_one_sided_dispatch_and_combine_take_the_measured_time() -> None:
    """GB200 NVL72 at one token per rank: 18.9 and 31.0 us over 8 ranks, 27.8 and 32.6 over 64."""
    rack = on("nvl72", GB200)
    for n, dispatch, combine in ((8, 18.9e-6, 31.0e-6), (64, 27.8e-6, 32.6e-6)):
        assert rack.cost("dispatch", tuple(range(n))).alpha == pytest.approx(dispatch, rel=0.25)
        assert rack.cost("combine", tuple(range(n))).alpha == pytest.approx(combine, rel=0.25)


def test_dispatch_over_rdma_comes_near_the_measured_time() -> None:
    """DeepEP low latency, 128 tokens of 7,168 FP8 values to 8 experts: 118 us over 16 ranks, 173 over 64."""
    message = 128 * 8 * 7168
    for nodes, measured in ((2, 118e-6), (8, 173e-6)):
        cost = on(f"cluster-{nodes}", H100).cost("dispatch", tuple(range(8 * nodes)))
        assert cost.seconds(message) == pytest.approx(measured, rel=0.2)


# -- properties

MACHINES: dict[str, tuple[Spec, Gpu]] = {
    "hgx": ("hgx-8", H100),
    "nvl72": ("nvl72-12", GB200),
    "dgx1": ("dgx1", V100),
    "ring": ("ring-6", H100),
    "mesh": ("fully_connected-4", H100),
    "pairs": ("nvlink_pairs-8", H100_PCIE),
    "pcie": ("pcie-8", L40S),
    "cluster": ({"kind": "cluster", "nodes": 3, "node": "hgx-2"}, H100),
    "shared": ({"kind": "cluster", "nodes": 2, "node": "pcie-4", "nics_per_node": 1}, L40S),
}
BUILT = {name: on(spec, gpu) for name, (spec, gpu) in MACHINES.items()}
machines = st.sampled_from(sorted(BUILT))
kinds = st.sampled_from(KINDS)
SIZES = 2.0 ** np.arange(8, 34)


def draw_group(data: st.DataObject, kind: str, size: int) -> tuple[int, ...]:
    ranks = data.draw(st.permutations(range(size)))
    return tuple(ranks[: 2 if kind == "send" else data.draw(st.integers(2, size))])


def rebuilt(c: Collectives, change: Callable[[tuple[str, str], float], float]) -> Collectives:
    """The same machine with ``change(link, bandwidth)`` on every link."""
    graph = c.fabric.graph.copy()
    for u, v, link in graph.edges(data=True):
        link["bandwidth"] = change((u, v), link["bandwidth"])
    return Collectives(Fabric("changed", "", graph, c.fabric.gpus), c.gpu, C)


@settings(deadline=None)
@given(machines, kinds, st.data())
def test_costs_are_sane_everywhere(name: str, kind: str, data: st.DataObject) -> None:
    c = BUILT[name]
    ranks = draw_group(data, kind, len(c.fabric))
    cost, n = c.cost(kind, ranks), len(ranks)
    assert cost.alpha > 0
    assert 0 < cost.floor_seconds_per_byte <= cost.seconds_per_byte
    wire = {"all_reduce": 2 * (n - 1) / n, "all_gather": n - 1, "reduce_scatter": (n - 1) / n}.get(kind, 1)
    uneven = len({len(server) for server in c.candidates.servers(ranks)}) > 1
    if cost.algorithm == "hierarchical" and uneven:  # some work for others
        assert cost.wire_per_byte >= wire * (1 - EXACT)
    elif cost.algorithm not in ("in_switch", "tree", "double_tree", "rail_aligned", "hierarchical tree"):
        assert cost.wire_per_byte == exactly(wire)
    assert cost.seconds(0) == cost.alpha
    sizes = np.array([0.0, *2.0 ** np.arange(40)])
    times = cost.seconds(sizes)
    assert (np.diff(times) >= 0).all()
    assert (times >= sizes * cost.floor_seconds_per_byte * (1 - EXACT)).all()
    assert times.tolist() == [cost.seconds(float(size)) for size in sizes]


@settings(deadline=None)
@given(machines, kinds, st.data(), st.floats(1, 50))
def test_more_bandwidth_is_never_slower_and_leaves_latency_alone(
    name: str, kind: str, data: st.DataObject, factor: float
) -> None:
    c = BUILT[name]
    ranks = draw_group(data, kind, len(c.fabric))
    wider = data.draw(st.sampled_from(sorted({d["kind"] for _, _, d in c.fabric.graph.edges(data=True)})))
    links = c.fabric.graph.edges
    faster = rebuilt(c, lambda link, b: b * (factor if links[link]["kind"] == wider else 1)).cost(kind, ranks)
    assert faster.seconds_per_byte <= c.cost(kind, ranks).seconds_per_byte * (1 + EXACT)
    assert faster.floor_seconds_per_byte <= c.cost(kind, ranks).floor_seconds_per_byte * (1 + EXACT)
    assert faster.alpha == c.cost(kind, ranks).alpha
    assert (faster.seconds(SIZES) <= c.cost(kind, ranks).seconds(SIZES) * (1 + EXACT)).all()


@settings(deadline=None)
@given(machines, kinds, st.data(), st.floats(1, 50))
def test_one_wider_link_is_never_slower(name: str, kind: str, data: st.DataObject, factor: float) -> None:
    c = BUILT[name]
    ranks = draw_group(data, kind, len(c.fabric))
    u, v = data.draw(st.sampled_from(sorted(c.fabric.graph.edges)))
    faster = rebuilt(c, lambda link, b: b * (factor if set(link) == {u, v} else 1)).cost(kind, ranks)
    assert (faster.seconds(SIZES) <= c.cost(kind, ranks).seconds(SIZES) * (1 + EXACT)).all()


@settings(deadline=None)
@given(machines, kinds, st.data())
def test_equal_shapes_cost_the_same(name: str, kind: str, data: st.DataObject) -> None:
    """Computed from scratch for both groups, not looked up."""
    c = BUILT[name]
    one = draw_group(data, kind, len(c.fabric))
    others = st.permutations(range(len(c.fabric))).map(lambda p: tuple(p[: len(one)]))
    other = data.draw(others)
    if c.fabric.group_shape(one) == c.fabric.group_shape(other):
        a = Collectives(c.fabric, c.gpu, C).cost(kind, one)
        b = Collectives(c.fabric, c.gpu, C).cost(kind, other)
        assert a[:4] == exactly(b[:4])
        assert a[4:6] == b[4:6]
        assert a.seconds(SIZES) == exactly(b.seconds(SIZES))


def test_many_groups_do_share_a_shape() -> None:
    """So the property above is not vacuous."""
    cluster, cube = BUILT["cluster"].fabric, BUILT["dgx1"].fabric
    assert len({cluster.group_shape(p) for p in permutations(range(6), 2)}) == 3  # same box, rail, neither
    assert len({cube.group_shape(p) for p in permutations(range(8), 2)}) == 14  # of 56


@settings(deadline=None)
@given(machines, kinds, st.data())
def test_bytes_on_the_last_links_are_the_bytes_delivered(name: str, kind: str, data: st.DataObject) -> None:
    c = BUILT[name]
    ranks = draw_group(data, kind, len(c.fabric))
    n = len(ranks)
    carried = c.link_bytes(kind, ranks)
    delivered = {
        "all_reduce": 2.0 * (n - 1),
        "reduce_scatter": float(n - 1),
        "all_gather": n * (n - 1.0),
        "broadcast": n - 1.0,
        "gather": n - 1.0,
        "send": 1.0,
    }.get(kind, float(n))
    gpus = set(c.fabric.gpus)
    into = sum(b for (_, v), b in carried.items() if v in gpus)
    out = sum(b for (u, _), b in carried.items() if u in gpus)
    assert into == exactly(out)  # every byte sent arrives
    assert into >= min(delivered, n + 1) * (1 - EXACT)  # and more only where GPUs pass bytes on
    if name in ("hgx", "nvl72", "pcie"):
        switch = c.plan(kind, ranks).algorithm == "in_switch"
        assert into == exactly(n + 1.0 if switch else delivered)  # the switch copies
    worst = max(b / c.fabric.graph.edges[link]["bandwidth"] for link, b in carried.items())
    assert worst >= c.cost(kind, ranks).floor_seconds_per_byte * (1 - EXACT)


@settings(deadline=None)
@given(st.sampled_from(["cluster", "shared"]), kinds, st.data())
def test_a_slower_network_is_never_faster(name: str, kind: str, data: st.DataObject) -> None:
    spec, gpu = MACHINES[name]
    assert isinstance(spec, dict)
    c = BUILT[name]
    ranks = draw_group(data, kind, len(c.fabric))
    far = on({**spec, "latency": "50 us"}, gpu).cost(kind, ranks)
    assert far.alpha >= c.cost(kind, ranks).alpha
    assert far.seconds_per_byte == exactly(c.cost(kind, ranks).seconds_per_byte)


def test_latency_counts_once_per_trip_over_the_network() -> None:
    spec: Spec = {"kind": "cluster", "nodes": 4, "node": "hgx-1", "latency": "10 us"}
    still: Spec = {"kind": "cluster", "nodes": 4, "node": "hgx-1", "latency": "0 s"}
    for kind, trips in (("all_reduce", 4), ("all_gather", 3), ("all_to_all", 1)):
        more = on(spec, H100).cost(kind, (0, 1, 2, 3)).alpha - on(still, H100).cost(kind, (0, 1, 2, 3)).alpha
        assert more == exactly(trips * 10e-6)


# -- edges


def test_a_group_of_one_is_free() -> None:
    assert on("hgx-8", H100).cost("all_reduce", (5,)) == FREE
    assert on("hgx-8", H100).link_bytes("all_reduce", (5,)) == {}


def test_costs_are_computed_once_per_shape() -> None:
    c = on("cluster-4", H100)
    assert c.cost("all_reduce", tuple(range(8))) is c.cost("all_reduce", tuple(range(24, 32)))
    assert c.cost("all_to_all", (0, 8)) is c.cost("all_to_all", (7, 31))


@pytest.mark.parametrize(
    ("kind", "ranks", "message"),
    [
        ("all_scatter", (0, 1), "choose one of"),
        ("all_reduce", (), "at least one rank"),
        ("all_reduce", (0, 0), "each once"),
        ("send", (0, 1, 2), "one other"),
    ],
)
def test_what_makes_no_sense_is_refused(kind: str, ranks: tuple[int, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        on("hgx-8", H100).cost(kind, ranks)


def test_a_rank_that_does_not_exist_is_refused() -> None:
    with pytest.raises(TopologyError, match="ranks 0 to 7, not 8"):
        on("hgx-8", H100).cost("all_reduce", (0, 8))
