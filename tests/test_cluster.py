"""Networks of servers and racks: rails, fat trees and pods, with what crosses which level."""

from __future__ import annotations

from typing import Any

import pytest

from sim.catalog.gpus import load_gpu
from sim.catalog.topologies import parse_topology
from sim.errors import TopologyError
from sim.fabric import Fabric
from sim.network.collectives import Collectives
from sim.network.constants import load_fabric_constants
from sim.network.report import report

H100, GB200, V100 = (load_gpu(name) for name in ("h100-sxm", "gb200", "v100-sxm2-32gb"))
NIC = 50e9


def cluster(nodes: int, node: str = "hgx-4", gpu: str = "h100-sxm", **fields: object) -> Fabric:
    return parse_topology({"kind": "cluster", "nodes": nodes, "node": node, **fields}).build(load_gpu(gpu))


def switches(fabric: Fabric) -> list[str]:
    return sorted(n for n, kind in fabric.graph.nodes(data="kind") if kind == "ib_switch")


def exactly(value: Any) -> Any:
    return pytest.approx(value, rel=1e-9, abs=0)


def on_the_way(fabric: Fabric, a: str, b: str) -> set[tuple[str, ...]]:
    return {tuple(n for n in route.nodes if n in switches(fabric)) for route in fabric.routes(a, b)}


def test_a_rail_has_a_leaf_in_each_unit_and_units_meet_at_the_spine() -> None:
    units = cluster(4, nodes_per_leaf=2)
    assert switches(units) == [*(f"leaf{u}.{r}" for u in range(2) for r in range(4)), "spine"]
    assert on_the_way(units, "node0.gpu1", "node1.gpu1") == {("leaf0.1",)}
    assert on_the_way(units, "node0.gpu1", "node3.gpu1") == {("leaf0.1", "spine", "leaf1.1")}
    assert on_the_way(units, "node0.gpu1", "node3.gpu2") == {("leaf0.1", "spine", "leaf1.2")}
    assert units.bisection_bandwidth == exactly(8 * NIC)


def test_a_fat_tree_has_all_nics_of_a_server_on_one_leaf() -> None:
    tree = cluster(4, rails=False, nodes_per_leaf=2)
    assert switches(tree) == ["leaf0", "leaf1", "spine"]
    assert on_the_way(tree, "node0.gpu1", "node1.gpu2") == {("leaf0",)}
    assert on_the_way(tree, "node0.gpu1", "node2.gpu1") == {("leaf0", "spine", "leaf1")}
    assert switches(cluster(3, rails=False)) == ["leaf"]


def test_pods_meet_at_a_core() -> None:
    pods = cluster(8, "hgx-2", rails=False, nodes_per_leaf=2, nodes_per_pod=4)
    assert switches(pods) == ["core", "leaf0", "leaf1", "leaf2", "leaf3", "spine0", "spine1"]
    far = on_the_way(pods, "node0.gpu0", "node7.gpu0")
    assert far == {("leaf0", "spine0", "core", "spine1", "leaf3")}
    assert on_the_way(pods, "node0.gpu0", "node3.gpu0") == {("leaf0", "spine0", "leaf1")}
    assert pods.diameter == 2 * 2 + 6 - 2


@pytest.mark.parametrize("oversubscription", [1.0, 2.0, 4.0])
def test_oversubscription_narrows_every_level_above_the_leaves(oversubscription: float) -> None:
    two = cluster(4, rails=False, nodes_per_leaf=2, oversubscription=oversubscription)
    assert two.bisection_bandwidth == exactly(8 * NIC / oversubscription)
    three = cluster(4, rails=False, nodes_per_leaf=1, nodes_per_pod=2, oversubscription=oversubscription)
    assert three.bisection_bandwidth == exactly(8 * NIC / oversubscription**2)
    ranks = tuple(range(16))
    exchange = Collectives(two, H100, load_fabric_constants()).cost("all_to_all", ranks)
    assert exchange.floor_seconds_per_byte == exactly(max(12 / 15 / NIC, 8 * 8 / 15 / (8 * NIC / oversubscription)))


def test_a_unit_that_is_not_full_is_a_unit_all_the_same() -> None:
    assert switches(cluster(5, "hgx-1", nodes_per_leaf=2, nodes_per_pod=3)) == [
        "core", "leaf0.0", "leaf1.0", "leaf2.0", "spine0", "spine1",
    ]  # fmt: skip


def test_racks_join_over_the_network_and_keep_their_trays() -> None:
    racks = cluster(2, "nvl72", "gb200")
    assert len(racks) == 144
    assert sum(kind == "nic" for _, kind in racks.graph.nodes(data="kind")) == 144
    assert racks.bisection_bandwidth == exactly(72 * NIC)
    assert len(racks.domain("node1.gpu5")) == 72
    places = [(0, 3), (3, 4), (71, 72), (72, 75), (0, 72)]
    assert [racks.one_system(pair) for pair in places] == [True, False, False, True, False]
    assert on_the_way(racks, "node0.gpu70", "node1.gpu70") == {("leaf70",)}
    whole = Collectives(racks, GB200, load_fabric_constants()).cost("all_reduce", tuple(range(144)))
    assert whole.algorithm.startswith("hierarchical")
    assert whole.floor_seconds_per_byte == exactly(2 * max(1 / 2 / 72 / NIC, 71 / 72 / 900e9))


def test_a_report_on_racks_names_what_is_inside_and_between() -> None:
    found = report(cluster(2, "nvl72-8", "gb200", nics_per_node=4, network="ethernet"), GB200)
    assert (found.gpus, found.servers, found.nodes["nic"]) == (16, 2, 8)
    assert {(pair.kind, pair.where) for pair in found.pairs} == {
        ("NV18", "inside a server"),
        ("NET", "between servers"),
    }
    assert found.bisection_bytes_per_s == exactly(4 * NIC)
    assert set(found.egress_bytes_per_s.values()) == {900e9}


def test_what_shares_a_leaf_fits_into_its_pod() -> None:
    with pytest.raises(TopologyError, match="cluster: 4 nodes per leaf are more than the 2 of a pod; give at most 2"):
        cluster(8, nodes_per_leaf=4, nodes_per_pod=2)
