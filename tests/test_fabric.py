"""Fabrics: routes, bytes that are conserved, and shapes of groups."""

from __future__ import annotations

from itertools import pairwise
from math import inf

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.catalog.gpus import load_gpu
from sim.catalog.topologies import parse_topology
from sim.errors import TopologyError
from sim.fabric import Fabric
from sim.network.degrade import degraded
from sim.network.routes import tier
from sim.topology import connect

H100 = load_gpu("h100-sxm")
MACHINES = {
    "hgx-8": H100,
    "nvl72-12": load_gpu("gb200"),
    "dgx1": load_gpu("v100-sxm2-32gb"),
    "ring-6": H100,
    "ring-5": H100,
    "fully_connected-4": H100,
    "nvlink_pairs-8": load_gpu("h100-pcie"),
    "pcie-8": load_gpu("l40s"),
    "cluster-2": H100,
}
FABRICS = {spec: parse_topology(spec).build(gpu) for spec, gpu in MACHINES.items()}
machines = st.sampled_from(sorted(FABRICS))


def line(*bandwidths: float, kind: str = "nvlink4") -> Fabric:
    graph = nx.DiGraph()
    ids = [f"gpu{i}" for i in range(len(bandwidths) + 1)]
    graph.add_nodes_from(ids, kind="gpu")
    for a, b, bandwidth in zip(ids, ids[1:], bandwidths, strict=False):
        connect(graph, a, b, kind, bandwidth, 1e-6)
    return Fabric("line", "for a test", graph, ids)


def groups(fabric: Fabric) -> st.SearchStrategy[list[int]]:
    return st.permutations(range(len(fabric))).flatmap(
        lambda ranks: st.integers(2, len(ranks)).map(lambda n: ranks[:n])
    )


@settings(deadline=None)
@given(machines, st.data())
def test_shares_of_the_routes_add_up_and_routes_follow_links(spec: str, data: st.DataObject) -> None:
    fabric = FABRICS[spec]
    a, b = data.draw(groups(fabric))[:2]
    routes = fabric.routes(fabric.gpus[a], fabric.gpus[b])
    assert sum(r.share for r in routes) == pytest.approx(1, rel=1e-12)
    assert routes == fabric.routes(fabric.gpus[a], fabric.gpus[b])
    for route in routes:
        assert (route.nodes[0], route.nodes[-1]) == (fabric.gpus[a], fabric.gpus[b])
        assert all(fabric.graph.has_edge(u, v) for u, v in pairwise(route.nodes))


@settings(deadline=None)
@given(machines, st.data())
def test_bytes_on_links_are_conserved(spec: str, data: st.DataObject) -> None:
    """What leaves a node is what entered it, less what was for it, plus what it sent."""
    fabric = FABRICS[spec]
    ranks = data.draw(groups(fabric))
    pair = st.tuples(st.sampled_from(ranks), st.sampled_from(ranks)).filter(lambda p: p[0] != p[1])
    flows = [(a, b, size) for (a, b), size in data.draw(st.dictionaries(pair, st.floats(1, 1e9))).items()]
    part, loads, _ = fabric.load(flows, ranks)
    surplus = [0.0] * len(part.kinds)
    for load, edge in zip(loads, part.edges, strict=True):
        surplus[edge.source] -= load
        surplus[edge.target] += load
    for a, b, size in flows:
        surplus[part.index[fabric.gpus[a]]] += size
        surplus[part.index[fabric.gpus[b]]] -= size
    assert surplus == pytest.approx([0.0] * len(surplus), abs=1e-9 * (1 + sum(f[2] for f in flows)))


@settings(deadline=None)
@given(machines, st.data())
def test_loads_are_the_flows_on_their_routes(spec: str, data: st.DataObject) -> None:
    """The fast way to count loads agrees with walking every route."""
    fabric = FABRICS[spec]
    ranks = data.draw(groups(fabric))[:4]
    flows = [(a, b, 1.0 + a + 10 * b) for a in ranks for b in ranks if a != b]
    walked: dict[tuple[str, str], float] = {}
    for a, b, size in flows:
        for nodes, share in fabric.routes(fabric.gpus[a], fabric.gpus[b]):
            for link in pairwise(nodes):
                walked[link] = walked.get(link, 0.0) + size * share
    part, loads, _ = fabric.load(flows, ranks)
    counted = {
        (u, v): load * share for load, shares in zip(loads, part.shares, strict=True) for u, v, share in shares if load
    }
    assert counted == pytest.approx(walked, rel=1e-9)


def test_a_link_of_parallel_switches_carries_its_part() -> None:
    box = FABRICS["hgx-8"]
    shares = {route.nodes[1]: route.share for route in box.routes("gpu0", "gpu7")}
    assert shares == pytest.approx({f"nvswitch{i}": n / 18 for i, n in enumerate((5, 4, 4, 5))})


def test_nvlink_is_preferred_to_pcie_and_pcie_to_the_network() -> None:
    pairs = FABRICS["nvlink_pairs-8"]
    assert pairs.routes("gpu0", "gpu1")[0].nodes == ("gpu0", "gpu1")
    cluster = FABRICS["cluster-2"]
    assert all(
        tier(cluster.graph.edges[link]["kind"]) == "nvlink"
        for route in cluster.routes("node0.gpu0", "node0.gpu7")
        for link in pairwise(route.nodes)
    )


def test_another_rail_is_reached_over_nvlink_and_not_over_the_spine() -> None:
    cluster = FABRICS["cluster-2"]
    same = cluster.routes("node0.gpu3", "node1.gpu3")
    assert [r.nodes for r in same] == [("node0.gpu3", "node0.nic3", "leaf3", "node1.nic3", "node1.gpu3")]
    for route in cluster.routes("node0.gpu3", "node1.gpu5"):
        assert "spine" not in route.nodes
        assert route.nodes[-4:] == ("node0.nic5", "leaf5", "node1.nic5", "node1.gpu5")  # forwarded by the sender
    assert cluster.load([(3, 13, 1.0)], (3, 13))[2] == cluster.load([(3, 11, 1.0)], (3, 11))[2]
    lost = degraded(cluster, removed=["node1.nic5"])  # and by the receiver, where it must be
    assert all(route.nodes[-2].startswith("node1.nvswitch") for route in lost.routes("node0.gpu3", "node1.gpu5"))


def test_domain_is_what_nvlink_connects() -> None:
    assert FABRICS["nvlink_pairs-8"].domain("gpu2") == {"gpu2", "gpu3"}
    assert FABRICS["pcie-8"].domain("gpu2") == {"gpu2"}
    assert FABRICS["cluster-2"].domain("node1.gpu0") == {f"node1.gpu{i}" for i in range(8)}


def test_shapes_do_not_depend_on_which_equal_gpus_are_taken() -> None:
    box, cluster = FABRICS["hgx-8"], FABRICS["cluster-2"]
    assert box.group_shape((0, 1)) == box.group_shape((6, 3))
    assert cluster.group_shape(range(8)) == cluster.group_shape(range(8, 16))
    assert cluster.group_shape((0, 8)) == cluster.group_shape((5, 13)) == cluster.group_shape((13, 5))
    assert cluster.group_shape((0, 8)) != cluster.group_shape((0, 9))
    assert cluster.group_shape((0, 9)) == cluster.group_shape((5, 12))


def test_shapes_tell_different_seats_apart() -> None:
    cube, pcie, pairs = FABRICS["dgx1"], FABRICS["pcie-8"], FABRICS["nvlink_pairs-8"]
    assert cube.group_shape((0, 1)) != cube.group_shape((0, 3)) != cube.group_shape((0, 5))
    assert pcie.group_shape((0, 1)) == pcie.group_shape((6, 4)) != pcie.group_shape((0, 4))
    assert pairs.group_shape((0, 1)) != pairs.group_shape((0, 2))


def test_figures_of_a_line() -> None:
    fabric = line(10.0, 2.0, 10.0)
    assert fabric.diameter == 3
    assert fabric.bisection_bandwidth == 2.0
    assert fabric.egress("gpu1") == 12.0
    assert len(fabric) == 4
    assert "line" in repr(fabric)


def test_a_single_gpu_is_a_fabric() -> None:
    alone = parse_topology("pcie-1").build(load_gpu("l40s"))
    assert alone.diameter == 0
    assert alone.bisection_bandwidth == 0.0


def test_gpus_that_nothing_connects_are_named() -> None:
    graph = nx.DiGraph()
    graph.add_nodes_from(["a", "b"], kind="gpu")
    apart = Fabric("apart", "", graph, ["a", "b"])
    with pytest.raises(TopologyError, match="nothing connects 'a' and 'b'"):
        apart.routes("a", "b")
    with pytest.raises(TopologyError, match="nothing connects 'a' and 'b'"):
        apart.load([(0, 1, 1.0)], (0, 1))
    with pytest.raises(TopologyError, match="ranks 0 to 1, not 2"):
        apart.group_shape((0, 2))


@pytest.mark.parametrize(
    ("nodes", "link", "gpus", "message"),
    [
        ({"a": "gpu"}, None, [], "at least one"),
        ({"a": "gpu"}, None, ["a", "a"], "each of its GPUs once"),
        ({"a": "gpu"}, None, ["a", "b"], "'b' is listed as a GPU"),
        ({"a": "gpu", "b": "toaster"}, None, ["a"], "kind 'toaster'"),
        ({"a": "gpu", "b": "gpu"}, {"kind": "nvlink4"}, ["a", "b"], "needs kind, bandwidth, latency"),
        ({"a": "gpu", "b": "gpu"}, {"kind": "x", "bandwidth": 0, "latency": 0}, ["a", "b"], "bandwidth > 0"),
        (
            {"a": "gpu", "b": "gpu"},
            {"kind": "x", "bandwidth": 1, "latency": -inf},
            ["a", "b"],
            "latency >= 0",
        ),
    ],
)
def test_a_graph_that_cannot_be_a_machine_is_refused(
    nodes: dict[str, str], link: dict[str, object] | None, gpus: list[str], message: str
) -> None:
    graph = nx.DiGraph()
    for node, kind in nodes.items():
        graph.add_node(node, kind=kind)
    if link:
        graph.add_edge("a", "b", **link)
    with pytest.raises(TopologyError, match=message):
        Fabric("bad", "", graph, gpus)
