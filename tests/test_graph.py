"""Graphs of a user's own: what a file may say, what it becomes, and where its mistakes are shown."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from sim.catalog.gpus import load_gpu
from sim.catalog.topologies import parse_topology
from sim.errors import ScenarioError, TopologyError
from sim.network.collectives import Collectives
from sim.network.constants import load_fabric_constants
from sim.run import compare
from sim.scenario import load_scenario, parse_scenario
from sim.testing import check_topology

H100, A100, L40S = load_gpu("h100-sxm"), load_gpu("a100-sxm-80gb"), load_gpu("l40s")
BOX = """\
kind: graph
description: two bridged pairs on two sockets
nodes:
  gpu0: gpu
  gpu1: gpu
  gpu2: gpu
  gpu3: gpu
  cpu0: cpu
  cpu1: cpu
  mlx5_0: nic
links:
  - {from: gpu0, to: gpu1, kind: nvlink, count: 4}
  - {from: gpu2, to: gpu3, kind: nvlink4, bandwidth: 20 GB/s, count: 4, latency: 1 us}
  - {from: [gpu0, gpu1, mlx5_0], to: cpu0, kind: pcie}
  - {from: [gpu2, gpu3], to: cpu1, kind: pcie4}
  - {from: [cpu0, cpu1], to: [cpu0, cpu1], kind: upi}
gpus: [gpu3, gpu2, gpu1, gpu0]
"""
SCENARIO = """\
model: llama-3.1-8b
gpu: h100-sxm
topology: {kind: graph, file: boxes/mine.yaml}
workload: {batch: 4, context: 1k}
layouts:
  - {strategy: tp, tp: 4}
"""


def write(folder: Path, box: str = BOX, scenario: str = SCENARIO) -> Path:
    (folder / "boxes").mkdir(exist_ok=True)
    (folder / "boxes" / "mine.yaml").write_text(box)
    (folder / "s.yaml").write_text(scenario)
    return folder / "s.yaml"


def inline(**changes: object) -> dict[str, object]:
    nodes = {"gpu0": "gpu", "gpu1": "gpu", "sw": "nvswitch"}
    links = [{"from": ["gpu0", "gpu1"], "to": "sw", "kind": "nvlink", "count": 18}]
    return {"kind": "graph", "nodes": nodes, "links": links} | changes


def problems(spec: object) -> list[str]:
    with pytest.raises(TopologyError) as caught:
        parse_topology(spec)  # type: ignore[arg-type]
    return [str(problem) for problem in caught.value.problems]


def test_a_file_becomes_the_fabric_it_draws(tmp_path):
    write(tmp_path)
    box = parse_topology("boxes/mine.yaml", tmp_path)
    assert parse_topology({"kind": "graph", "file": "boxes/mine.yaml"}, tmp_path) == box
    fabric = box.build(H100)
    assert (fabric.name, fabric.description) == ("mine", "two bridged pairs on two sockets")
    assert fabric.gpus == ("gpu3", "gpu2", "gpu1", "gpu0")
    edge = fabric.graph.edges
    assert edge["gpu1", "gpu0"] == {"kind": "nvlink4", "bandwidth": 4 * 25e9, "latency": 0.6e-6, "links": 4}
    assert edge["gpu2", "gpu3"] == {"kind": "nvlink4", "bandwidth": 80e9, "latency": 1e-6, "links": 4}
    assert (edge["gpu0", "cpu0"]["kind"], edge["gpu0", "cpu0"]["bandwidth"]) == ("pcie5", 64e9)
    assert (edge["gpu2", "cpu1"]["kind"], edge["gpu2", "cpu1"]["bandwidth"]) == ("pcie4", 32e9)
    assert edge["mlx5_0", "cpu0"]["kind"] == "pcie5-nic"
    assert edge["cpu0", "cpu1"] == edge["cpu1", "cpu0"]
    check_topology(box, H100)
    check_topology(box, A100)


def test_a_scenario_names_the_file_from_its_own_folder_and_writes_the_graph_out(tmp_path):
    scenario = load_scenario(write(tmp_path))
    assert scenario.topology.gpu_count == 4
    report = compare(scenario)
    assert report.layouts[0].step.seconds > 0
    assert report.resolved["topology"]["links"][0] == {"from": "gpu0", "to": "gpu1", "kind": "nvlink", "count": 4}
    again = parse_scenario(report.resolved)
    assert again.topology == scenario.topology
    assert hash(again.topology) == hash(scenario.topology)
    assert pickle.loads(pickle.dumps(scenario.topology)) == scenario.topology


def test_a_graph_written_in_place_costs_what_the_same_family_costs():
    drawn = parse_topology(inline()).build(H100)
    family = parse_topology("hgx-2").build(H100)
    costs = [Collectives(f, H100, load_fabric_constants()).cost("all_reduce", (0, 1)) for f in (drawn, family)]
    assert costs[0].seconds(2**20) == pytest.approx(costs[1].seconds(2**20), rel=1e-12)
    four = parse_topology({"kind": "cluster", "nodes": 2, "node": inline()})
    assert four.build(H100).gpus == ("node0.gpu0", "node0.gpu1", "node1.gpu0", "node1.gpu1")


def test_trays_stay_with_their_gpus_and_are_written_back():
    nodes = {f"gpu{i}": {"kind": "gpu", "tray": i // 2} for i in range(4)} | {"sw": "nvswitch"}  # type: ignore[dict-item]
    graph = parse_topology(
        {
            "kind": "graph",
            "nodes": nodes,
            "links": [{"from": [f"gpu{i}" for i in range(4)], "to": "sw", "kind": "nvlink"}],
        }
    )
    fabric = graph.build(H100)
    assert [fabric.one_system(pair) for pair in ((0, 1), (1, 2), (2, 3))] == [True, False, True]
    assert fabric.group_shape((0, 1)) == fabric.group_shape((2, 3)) != fabric.group_shape((1, 2))
    assert parse_topology(graph.model_dump()) == graph


def test_servers_become_units():
    nodes = {f"gpu{i}": {"kind": "gpu", "server": i // 2} for i in range(4)}
    nodes |= {f"nic{i}": {"kind": "nic", "server": i} for i in range(2)} | {"leaf": "ib_switch"}  # type: ignore[dict-item]
    links = [
        {"from": ["gpu0", "gpu1"], "to": "nic0", "kind": "pcie"},
        {"from": ["gpu2", "gpu3"], "to": "nic1", "kind": "pcie"},
        {"from": ["nic0", "nic1"], "to": "leaf", "kind": "ib", "bandwidth": "400 Gb/s"},
    ]
    fabric = parse_topology({"kind": "graph", "nodes": nodes, "links": links}).build(L40S)
    assert [fabric.unit(g) for g in fabric.gpus] == [0, 0, 1, 1]
    assert fabric.bisection_bandwidth == 50e9


def test_a_gpu_that_nothing_reaches_is_fine_until_it_is_needed():
    nodes = {"gpu0": "gpu", "gpu1": "gpu", "gpu2": "gpu"}
    fabric = parse_topology(inline(nodes=nodes, links=[{"from": "gpu0", "to": "gpu1", "kind": "nvlink"}])).build(H100)
    prices = Collectives(fabric, H100, load_fabric_constants())
    assert prices.cost("all_reduce", (0, 1)).seconds(1024) > 0
    with pytest.raises(TopologyError, match="gpu2"):
        prices.cost("all_reduce", (0, 1, 2))


def test_one_way_links_go_one_way():
    links = [
        {"from": "gpu0", "to": "gpu1", "kind": "nvlink", "one_way": True},
        {"from": "gpu1", "to": "gpu0", "kind": "nvlink", "one_way": True, "bandwidth": "10 GB/s"},
    ]
    graph = parse_topology(inline(links=links)).build(H100).graph
    assert [graph.edges[pair]["bandwidth"] for pair in (("gpu0", "gpu1"), ("gpu1", "gpu0"))] == [25e9, 10e9]


KINDS = "must be one of nvlink, xgmi, pcie, upi, ib, ethernet, as in nvlink or pcie5, not"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"nodes": None}, "topology.nodes: must be keys with values, not empty"),
        ({"nodes": {"sw": "nvswitch"}, "links": []}, "topology.nodes: hold no GPU; write for example gpu0: gpu"),
        (
            {"nodes": {"gpu0": "gpux"}, "links": []},
            "topology.nodes.gpu0: must be gpu, nvswitch, nic, pcie_switch, cpu or ib_switch, not 'gpux'",
        ),
        (
            {"nodes": {"gpu0": {"kind": "gpu", "rack": 1}}, "links": []},
            "topology.nodes.gpu0.rack: unknown key 'rack'; known keys: kind, server, tray",
        ),
        ({"links": [{"from": "gpu0", "kind": "nvlink"}]}, "topology.links.0.to: is missing"),
        (
            {"links": [{"from": "gpu0", "to": "swi", "kind": "nvlink"}]},
            "topology.links.0.to: 'swi' is not one of the nodes; did you mean 'sw'? add it",
        ),
        (
            {"links": [{"from": "gpu0", "to": 3, "kind": "nvlink"}]},
            "topology.links.0.to: must be a node or a list of nodes, not 3",
        ),
        ({"links": [{"from": "gpu0", "to": "gpu0", "kind": "upi"}]}, "topology.links.0: joins 'gpu0' with itself"),
        ({"links": [{"from": "gpu0", "to": "sw", "kind": "wire"}]}, f"topology.links.0.kind: {KINDS} 'wire'"),
        ({"links": [{"from": "gpu0", "to": "sw", "kind": "ib5"}]}, f"topology.links.0.kind: {KINDS} 'ib5'"),
        (
            {"links": [{"from": "gpu0", "to": "sw", "kind": "nvlink", "bandwith": 1}]},
            "topology.links.0.bandwith: unknown key 'bandwith'; did you mean 'bandwidth'? "
            "known keys: from, to, kind, bandwidth, latency, count, one_way",
        ),
        (
            {"links": [{"from": "gpu0", "to": "sw", "kind": "nvlink", "bandwidth": "fast"}]},
            "topology.links.0.bandwidth: 'fast' is not a bandwidth; write for example 900 GB/s, 400 Gb/s or 900e9",
        ),
        (
            {"links": [{"from": "gpu0", "to": "sw", "kind": "nvlink", "count": 0}]},
            "topology.links.0.count: must be at least 1, not 0",
        ),
        (
            {"links": [{"from": "gpu0", "to": "sw", "kind": "nvlink"}, {"from": "sw", "to": "gpu0", "kind": "pcie"}]},
            "topology.links.1: sw to gpu0 is linked by links.0 already; give that one a count",
        ),
        ({"gpus": ["gpu0", "sw"]}, "topology.gpus.1: 'sw' is not a node of kind gpu; choose from gpu0, gpu1"),
        ({"gpus": ["gpu0", "gpu0"]}, "topology.gpus.1: gpu0 is there twice"),
        (
            {"nodes": {"gpu0": {"kind": "gpu", "tray": 0}, "gpu1": "gpu", "sw": "nvswitch"}},
            "topology.nodes: gpu1 has no tray, other GPUs have; give all of them one or none",
        ),
        (
            {"nodes": {"gpu0": {"kind": "gpu", "server": 0}, "gpu1": "gpu", "sw": "nvswitch"}},
            "topology.nodes: gpu1 has no server, other GPUs have; give all of them one or none",
        ),
        (
            {"nodes": {f"gpu{i}": {"kind": "gpu", "server": i // 2} for i in range(3)} | {"sw": "nvswitch"}},
            "topology.nodes: servers must have equally many GPUs; leave server out if they have not",
        ),
        (
            {"file": "x.yaml"},
            "topology.nodes: cannot stand beside file, which holds the whole graph; remove nodes and links",
        ),
    ],
)
def test_each_mistake_is_shown_at_its_key(changes, expected):
    assert problems(inline(**changes)) == [expected]


def test_mistakes_of_a_file_are_shown_at_its_lines(tmp_path):
    wrong = BOX.replace("cpu1: cpu", "cpu1: cpux")
    path = write(tmp_path, wrong)
    with pytest.raises(ScenarioError) as caught:
        load_scenario(path)
    file = tmp_path / "boxes" / "mine.yaml"
    kinds = "must be gpu, nvswitch, nic, pcie_switch, cpu or ib_switch, not 'cpux'"
    assert str(caught.value) == f"{file}:9:3: nodes.cpu1: {kinds}"
    write(tmp_path, BOX.replace("to: gpu1, kind", "to: gpu9, kind"))
    with pytest.raises(ScenarioError) as caught:
        load_scenario(path)
    near = "did you mean 'gpu3' or 'gpu2'? add it"
    assert str(caught.value) == f"{file}:12:18: links.0.to: 'gpu9' is not one of the nodes; {near}"


def test_a_file_that_is_absent_or_of_another_kind_says_so(tmp_path):
    assert problems({"kind": "graph", "file": 3}) == [
        "topology.file: must be the path of a file such as my_box.yaml, not 3"
    ]
    assert problems(str(tmp_path / "none.yaml")) == [
        f"{tmp_path / 'none.yaml'}: cannot be read: no such file or directory"
    ]
    (tmp_path / "ring.yaml").write_text("kind: ring\ngpus: 8\n")
    text = "kind: must be graph, not 'ring'; name other machines in the scenario itself"
    assert problems(str(tmp_path / "ring.yaml")) == [f"{tmp_path / 'ring.yaml'}:1:1: {text}"]


def test_a_rate_that_follows_from_nothing_is_asked_for(tmp_path):
    scenario = write(tmp_path, scenario=SCENARIO.replace("h100-sxm", "l40s"))
    with pytest.raises(ScenarioError) as caught:
        load_scenario(scenario)
    text = "topology.links.0.bandwidth: is missing, and l40s has no NVLink; write it, or choose another GPU"
    assert str(caught.value) == f"{scenario}:3:1: {text}"
