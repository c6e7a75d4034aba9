"""Servers that are alike share the search for routes: same loads as one search from every GPU, at fewer searches."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.catalog.gpus import load_gpu
from sim.catalog.topologies import parse_topology
from sim.fabric import Fabric
from sim.network.collectives import Collectives
from sim.network.constants import load_fabric_constants
from sim.network.degrade import degraded
from sim.network.spreading import Spreading

H100 = load_gpu("h100-sxm")


def cluster(nodes: int, node: str = "hgx-4", gpu: str = "h100-sxm", **fields: object) -> Fabric:
    return parse_topology({"kind": "cluster", "nodes": nodes, "node": node, **fields}).build(load_gpu(gpu))


MACHINES = {
    "hgx": cluster(3),
    "two NICs": cluster(3, nics_per_node=2),
    "a NIC less in one server": degraded(cluster(4), removed=["node2.nic1"]),
    "a slow server": degraded(cluster(6), slowed={"node3.nic0": 0.5, ("node1.gpu2", "node1.nvswitch1"): 0.25}),
    "without a spine": degraded(cluster(3), removed=["spine"]),
    "a lost chip": degraded(cluster(5), removed=["node0.nvswitch3", ("node1.gpu0", "node1.nvswitch0")]),
    "two pods": cluster(4, "hgx-2", nodes_per_pod=2),
    "fat tree": cluster(4, "hgx-2", rails=False, nodes_per_leaf=2),
    "a leaf each": cluster(4, "hgx-2", rails=False, nodes_per_leaf=1),
    "rails of their own": cluster(4, "hgx-2", nodes_per_leaf=1, nodes_per_pod=2),
    "a slow uplink": degraded(cluster(5, "hgx-2", nodes_per_leaf=1), slowed={("leaf2.1", "spine"): 0.5}),
    "cube mesh": cluster(3, "dgx1", "v100-sxm2-32gb"),
    "pcie": cluster(3, "pcie-4", "l40s"),
    "pairs": cluster(2, "nvlink_pairs-4", "h100-pcie", nics_per_node=1),
    "rack": cluster(2, "nvl72-6", "gb200"),
}
machines = st.sampled_from(sorted(MACHINES))


@settings(deadline=None, max_examples=200)
@given(machines, st.data())
def test_loads_are_those_of_one_search_from_every_gpu(name: str, data: st.DataObject) -> None:
    fabric = MACHINES[name]
    ranks = data.draw(
        st.permutations(range(len(fabric))).flatmap(lambda r: st.integers(2, len(r)).map(lambda n: r[:n]))
    )
    pair = st.sampled_from(list(permutations(ranks, 2)))
    flows = [(a, b, size) for (a, b), size in data.draw(st.dictionaries(pair, st.floats(1, 1e9), max_size=20)).items()]
    part, loads, latency = fabric.load(flows, ranks)
    node = {r: part.index[fabric.gpus[r]] for r in ranks}
    searched, slowest = part.spread((node[a], node[b], size) for a, b, size in flows)
    assert loads == pytest.approx(searched, rel=1e-12)
    assert latency == slowest


@settings(deadline=None, max_examples=50)
@given(machines, st.data())
def test_loads_are_those_of_the_routes(name: str, data: st.DataObject) -> None:
    fabric = MACHINES[name]
    a, b = data.draw(st.permutations(range(len(fabric))))[:2]
    carried: dict[tuple[str, str], float] = {}
    for route in fabric.routes(fabric.gpus[a], fabric.gpus[b]):
        for link in zip(route.nodes, route.nodes[1:], strict=False):
            carried[link] = carried.get(link, 0.0) + route.share
    part, loads, _ = fabric.load([(a, b, 1.0)], range(len(fabric)))
    found: dict[tuple[str, str], float] = {}
    for load, shares in zip(loads, part.shares, strict=True):
        for u, v, share in shares if load else ():
            found[u, v] = found.get((u, v), 0.0) + load * share
    assert found == pytest.approx(carried, rel=1e-12)


@pytest.mark.parametrize("name", sorted(MACHINES))
def test_sorts_of_servers_are_as_few_as_they_differ(name: str) -> None:
    expected = {"two pods": 2, "fat tree": 2, "a NIC less in one server": 2, "a slow server": 3, "a lost chip": 3}
    expected |= {"rails of their own": 2, "a slow uplink": 2}
    assert len(set(MACHINES[name].unit_sorts.values())) == expected.get(name, 1)


@pytest.mark.parametrize("nodes", [2, 3, 32])
def test_many_servers_need_as_many_searches_as_two(nodes: int) -> None:
    fabric, searches = cluster(nodes), []
    part, _, _ = fabric.load([], range(len(fabric)))
    names = {u: [n for n in fabric.graph if fabric.graph.nodes[n].get("unit") == u] for u in range(nodes)}

    def search(pair: tuple[str, str]):
        searches.append(pair)
        return part

    spreading = Spreading(part, names, fabric.unit_sorts, search)
    loads, _ = spreading.spread((a, b, 1.0) for a, b in permutations(fabric.gpus, 2))
    assert len(searches) == 4 * 3 + 4 * 4  # pairs of places inside a server, and between two
    assert sum(load for load, e in zip(loads, part.edges, strict=True) if part.kinds[e.source] == "gpu") > 0


def test_an_all_reduce_over_128_boxes_costs_what_its_busiest_links_say() -> None:
    fabric = cluster(128, "hgx-8")
    machine = Collectives(fabric, H100, load_fabric_constants())
    ring = machine.loads("all_reduce", tuple(range(1024)))[0]
    assert ring.pace["ib"] == pytest.approx(2 * 127 / 128 / 8 / 50e9, rel=1e-12)  # a rail's part over its NIC
    assert ring.pace["nvlink4"] == pytest.approx(2 * 7 / 8 / 450e9, rel=1e-12)
