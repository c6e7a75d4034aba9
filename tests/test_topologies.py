"""The families that ship: what they connect, how a scenario names them, and what they refuse."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import networkx as nx
import pytest

from sim.catalog.gpus import load_gpu
from sim.catalog.topologies import parse_topology
from sim.errors import TopologyError
from sim.fabric import Fabric
from sim.hardware import Gpu
from topologies.hgx import links_per_chip

V100, A100, H100, H200 = (load_gpu(n) for n in ("v100-sxm2-32gb", "a100-sxm-80gb", "h100-sxm", "h200-sxm"))
B200, GB200, L40S, H100_PCIE = (load_gpu(n) for n in ("b200-sxm", "gb200", "l40s", "h100-pcie"))


def switches(fabric: Fabric) -> list[str]:
    return [n for n, kind in fabric.graph.nodes(data="kind") if kind == "nvswitch"]


def links(fabric: Fabric, gpu: Gpu, a: str, b: str) -> float:
    assert gpu.nvlink
    return float(fabric.graph.edges[a, b]["bandwidth"] / gpu.nvlink.link_bandwidth)


@pytest.mark.parametrize(
    ("gpu", "split"), [(A100, [2] * 6), (H100, [5, 4, 4, 5]), (H200, [5, 4, 4, 5]), (B200, [9, 9])]
)
def test_hgx_spreads_the_links_over_the_switch_chips(gpu: Gpu, split: list[int]) -> None:
    box = parse_topology("hgx").build(gpu)
    assert gpu.nvlink
    for g in box.gpus:
        assert [links(box, gpu, g, chip) for chip in switches(box)] == split
        assert box.egress(g) == gpu.nvlink.bandwidth
    assert box.diameter == 2
    assert box.bisection_bandwidth == pytest.approx(4 * gpu.nvlink.bandwidth)


def test_links_are_spread_evenly_whatever_their_number() -> None:
    for count in range(1, 40):
        for chips in range(1, 9):
            split = links_per_chip(count, chips)
            assert sum(split) == count
            assert max(split) - min(split) <= 1


def test_nvl72_links_every_gpu_once_to_each_of_18_chips() -> None:
    rack = parse_topology("nvl72").build(GB200)
    assert len(rack) == 72
    assert len(switches(rack)) == 18
    assert all(links(rack, GB200, g, chip) == 1 for g in rack.gpus for chip in switches(rack))
    assert 2 * rack.egress("gpu71") == 1.8e12
    assert {rack.graph.nodes[g]["tray"] for g in rack.gpus} == set(range(18))
    assert rack.diameter == 2
    assert rack.bisection_bandwidth == pytest.approx(36 * 900e9)


def test_dgx1_is_the_hybrid_cube_mesh() -> None:
    """Rows of the matrix that nvidia-smi prints on 8 × V100-SXM2 sum to 6 links."""
    cube = parse_topology("dgx1").build(V100)
    matrix = [
        [round(links(cube, V100, a, b)) if cube.graph.has_edge(a, b) else 0 for b in cube.gpus] for a in cube.gpus
    ]
    assert matrix[0] == [0, 1, 1, 2, 2, 0, 0, 0]
    assert matrix[5] == [0, 2, 0, 0, 1, 0, 2, 1]
    assert [sum(row) for row in matrix] == [6] * 8
    assert [list(column) for column in zip(*matrix, strict=True)] == matrix
    assert sorted(n for row in matrix for n in row if n) == [1] * 16 + [2] * 16  # each pair seen twice
    assert cube.diameter == 2


def test_ring_mesh_and_pairs() -> None:
    ring = parse_topology("ring-6").build(H100)
    assert ring.diameter == 3
    assert ring.bisection_bandwidth == pytest.approx(450e9)  # two links of half the egress
    assert parse_topology("ring-2").build(H100).bisection_bandwidth == pytest.approx(450e9)
    mesh = parse_topology("fully_connected-4").build(H100)
    assert mesh.diameter == 1
    assert mesh.egress("gpu0") == pytest.approx(450e9)
    pairs = parse_topology("nvlink_pairs-5").build(H100_PCIE)
    assert [len(pairs.domain(g)) for g in pairs.gpus] == [2, 2, 2, 2, 1]
    assert pairs.egress("gpu4") == 64e9


def test_pcie_halves_meet_on_the_cpu_link() -> None:
    two = parse_topology({"kind": "pcie", "gpus": 8, "cpu_link": "20 GB/s"}).build(L40S)
    assert two.bisection_bandwidth == 20e9
    one = parse_topology({"kind": "pcie", "gpus": 8, "sockets": 1}).build(L40S)
    assert one.bisection_bandwidth == pytest.approx(4 * 32e9)
    switched = parse_topology({"kind": "pcie", "gpus": 4, "gpus_per_switch": 2}).build(L40S)
    assert switched.bisection_bandwidth == 32e9  # the switch's uplink
    assert len(switched.routes("gpu0", "gpu1")[0].nodes) == 3


def test_cluster_has_a_nic_per_gpu_and_a_leaf_per_rail() -> None:
    spec = {"kind": "cluster", "nodes": 4, "node": "hgx-8", "nic": "400 Gb/s"}
    machine = parse_topology(spec)
    cluster = machine.build(H100)
    assert machine.gpu_count == len(cluster) == 32
    assert cluster.gpus[9] == "node1.gpu1"
    assert cluster.bisection_bandwidth == pytest.approx(16 * 50e9)
    kinds = [k for _, k in cluster.graph.nodes(data="kind")]
    assert (kinds.count("nic"), kinds.count("ib_switch")) == (32, 9)


def test_cluster_nodes_share_nics_and_keep_their_pcie() -> None:
    spec = {
        "kind": "cluster",
        "nodes": 2,
        "node": {"kind": "pcie", "gpus": 4},
        "nics_per_node": 1,
        "nic": "10 GB/s",
    }
    cluster = parse_topology(spec).build(L40S)
    assert cluster.bisection_bandwidth == 10e9
    assert set(cluster.graph.adj["node0.nic0"]) == {"node0.cpu0", "leaf0"}


def test_every_family_is_connected_and_counts_its_gpus() -> None:
    for spec, gpu in {
        "nvl72-9": GB200,
        "dgx1": V100,
        "pcie-7": L40S,
        "cluster-3": H100,
        "hgx-1": H100,
    }.items():
        machine = parse_topology(spec)
        fabric = machine.build(gpu)
        assert machine.gpu_count == len(fabric)
        assert nx.is_strongly_connected(fabric.graph)
        assert gpu.name in fabric.description


@pytest.mark.parametrize(
    ("spec", "gpu", "message"),
    [
        ("hgx", L40S, "l40s lacks; use pcie"),
        ("hgx", H100_PCIE, "use nvlink_pairs or pcie"),
        ("hgx", V100, "use dgx1"),
        ("nvl72", A100, "18 switch chips; a100-sxm-80gb has 12; use hgx"),
        ("dgx1", H100, "use v100-sxm2-32gb"),
        ("fully_connected-32", H100, "at most 19 GPUs"),
        ("nvlink_pairs-4", L40S, "use pcie"),
        ({"kind": "cluster", "nodes": 2, "node": "hgx-4", "nics_per_node": 8}, H100, "8 NICs for 4 GPUs"),
        ({"kind": "cluster", "nodes": 2, "node": "cluster-2"}, H100, "cannot be a cluster"),
    ],
)
def test_a_machine_that_does_not_exist_says_what_would_work(spec: Any, gpu: Gpu, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        parse_topology(spec).build(gpu)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("hgxx-8", "'hgxx' is not installed; did you mean 'hgx'"),
        ("dgx1-4", "one size"),
        ("nvl72-80", "topology.gpus: .*72, not 80"),
        ("ring-0", "topology.gpus: must be at least 1, not 0"),
        ("", "not installed"),
        (3, "topology: must be for example hgx-8 or {kind: nvl72}, not 3"),
        ({"gpus": 8}, "topology.kind: is missing; choose one of cluster, dgx1"),
        ({"kind": "ring", "gpu": 8}, "topology.gpu: unknown key 'gpu'; did you mean 'gpus'"),
        ({"kind": "cluster", "node": "hgx"}, "topology.nodes: is missing"),
        ({"kind": "cluster", "nodes": 2, "node": "foo"}, "topology.node: 'foo' is not installed"),
        ({"kind": "cluster", "nodes": 2, "nic": "400 parsecs"}, "topology.nic: '400 parsecs'"),
    ],
)
def test_a_wrong_spec_is_refused_with_its_key(spec: Any, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        parse_topology(spec)


def test_all_problems_of_a_spec_come_at_once() -> None:
    with pytest.raises(TopologyError) as error:
        parse_topology({"kind": "pcie", "gpus": 0, "sockets": -1, "slots": 3})
    assert {p.key for p in error.value.problems} == {"topology.gpus", "topology.sockets", "topology.slots"}


@pytest.mark.parametrize("spec", ["hgx-8", "nvl72", "dgx1", "pcie-4", "cluster-4", "nvlink_pairs-6"])
def test_a_topology_survives_being_written_and_read(spec: str) -> None:
    machine = parse_topology(spec)
    assert parse_topology(machine.model_dump()) == machine
    assert parse_topology(machine) is machine
    assert hash(machine) == hash(parse_topology(spec))


def test_naming_a_machine_does_not_import_networkx() -> None:
    code = (
        "import sys; from sim.catalog.topologies import parse_topology; "
        "parse_topology('cluster-4'); sys.exit('networkx' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_ten_thousand_gpus_can_be_built_and_grouped() -> None:
    big = parse_topology("cluster-1250").build(H100)
    assert len(big) == 10_000
    assert big.group_shape(range(8)) == big.group_shape(range(9_992, 10_000))
    assert big.group_shape((0, 8)) == big.group_shape((7, 9_999))
