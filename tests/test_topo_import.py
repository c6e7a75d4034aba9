"""From a matrix to a graph: what is a switch, what is a direct link, and that nothing is lost on the way back."""

from __future__ import annotations

from contextlib import suppress
from itertools import combinations, pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.catalog.gpus import load_gpu
from sim.catalog.topologies import parse_topology
from sim.errors import TopologyError
from sim.fabric import Fabric
from sim.hardware import Gpu
from sim.network.collectives import Collectives
from sim.network.constants import load_fabric_constants
from sim.topo.matrix import read_matrix
from sim.topo.reader import graph_text, to_graph
from topologies.graph import Graph

DATA = Path(__file__).parent / "data" / "topo"
NAMES = ("v100-sxm2-32gb", "a100-sxm-80gb", "h100-sxm", "h100-pcie", "l40s", "b200-sxm", "gb200")
GPU = {name: load_gpu(name) for name in NAMES}
REFUSED = ("03", "40", "43", "48")


def text(number: str) -> str:
    return (DATA / f"{number}.txt").read_bytes().decode()


def drawn(content: str, folder: Path, gpu: Gpu | None, name: str = "box") -> tuple[Graph, str]:
    """The graph of a matrix, read back from its file, and the file."""
    matrix = read_matrix(content)
    written = graph_text(to_graph(matrix, name, gpu), matrix.warnings)
    (folder / "box.yaml").write_text(written)
    graph = parse_topology("box.yaml", folder)
    assert isinstance(graph, Graph)
    return graph, written


def nvlinks(fabric: Fabric, gpu: Gpu, a: str, b: str) -> int:
    """Links of the narrower end over switches that both have, or between the two."""
    edges = fabric.graph
    if edges.has_edge(a, b) and edges.edges[a, b]["kind"].startswith("nvlink"):
        bandwidth = edges.edges[a, b]["bandwidth"]
    else:
        chips = [n for n in edges.adj[a] if n in edges.adj[b] and edges.nodes[n]["kind"] == "nvswitch"]
        bandwidth = sum(min(edges.edges[a, n]["bandwidth"], edges.edges[b, n]["bandwidth"]) for n in chips)
    return round(bandwidth / gpu.nvlink.link_bandwidth) if gpu.nvlink else 0


def pcie(fabric: Fabric, a: str, b: str) -> str:
    """What nvidia-smi calls the shortest way over PCIe."""
    import networkx as nx

    slow = [(u, v) for u, v, d in fabric.graph.edges(data=True) if d["kind"].startswith(("pcie", "upi"))]
    ways = nx.DiGraph(slow)
    if a not in ways or b not in ways:
        return "SYS"
    way = nx.shortest_path(ways, a, b)
    kinds = [fabric.graph.nodes[n]["kind"] for n in way]
    if any(fabric.graph.edges[pair]["kind"] == "upi" for pair in pairwise(way)):
        return "SYS"
    if kinds.count("cpu"):
        return "PHB" if kinds.count("cpu") == 1 else "NODE"
    return "PIX" if kinds.count("pcie_switch") == 1 else "PXB"


def rows(fabric: Fabric, gpu: Gpu) -> list[list[str]]:
    def cell(a: str, b: str) -> str:
        if a == b:
            return "X"
        count = nvlinks(fabric, gpu, a, b)
        return f"NV{count}" if count else pcie(fabric, a, b)

    return [[cell(a, b) for b in fabric.gpus] for a in fabric.gpus]


def printed(fabric: Fabric, gpu: Gpu) -> str:
    """The matrix that nvidia-smi would print of a fabric."""
    names = [f"GPU{i}" for i in range(len(fabric))]
    lines = ["\t".join(["", *names, "CPU Affinity", "NUMA Affinity"])]
    lines += ["\t".join([name, *row, "0-63", "N/A"]) for name, row in zip(names, rows(fabric, gpu), strict=True)]
    return "\n".join(lines) + "\n"


BOXES = [
    ("hgx-8", "h100-sxm"),
    ("hgx-8", "a100-sxm-80gb"),
    ("hgx-8", "b200-sxm"),
    ("hgx-16", "a100-sxm-80gb"),
    ("hgx-3", "h100-sxm"),
    ("hgx-2", "h100-sxm"),
    ("nvl72-36", "gb200"),
    ("dgx1", "v100-sxm2-32gb"),
    ("fully_connected-4", "a100-sxm-80gb"),
    ("ring-6", "h100-sxm"),
    ("nvlink_pairs-8", "h100-pcie"),
    ("nvlink_pairs-5", "a100-sxm-80gb"),
    ("pcie-8", "l40s"),
    ("pcie-3", "l40s"),
    ({"kind": "pcie", "gpus": 8, "gpus_per_switch": 2}, "l40s"),
    ({"kind": "pcie", "gpus": 8, "gpus_per_switch": 4, "sockets": 4}, "l40s"),
    ({"kind": "nvlink_pairs", "gpus": 8, "gpus_per_switch": 4}, "h100-pcie"),
]


@pytest.mark.parametrize(("spec", "name"), BOXES)
@pytest.mark.parametrize("said", [True, False])
def test_a_built_in_box_survives_being_printed_and_imported(spec, name, said, tmp_path):
    gpu = GPU[name]
    box = parse_topology(spec).build(gpu)
    graph, _ = drawn(printed(box, gpu), tmp_path, gpu if said else None)
    back = graph.build(gpu)
    assert rows(back, gpu) == rows(box, gpu)
    assert [back.egress(g) for g in back.gpus if len(back.domain(g)) > 1] == pytest.approx(
        [box.egress(g) for g in box.gpus if len(box.domain(g)) > 1]
    )


@pytest.mark.parametrize(("spec", "name"), [BOXES[i] for i in (0, 1, 2, 3, 5, 7, 8)])
def test_what_is_imported_costs_what_the_box_costs(spec, name, tmp_path):
    gpu = GPU[name]
    box = parse_topology(spec).build(gpu)
    back = drawn(printed(box, gpu), tmp_path, gpu)[0].build(gpu)
    everyone = tuple(range(len(box)))
    for kind in ("all_reduce", "all_to_all"):
        costs = [Collectives(f, gpu, load_fabric_constants()).cost(kind, everyone).seconds(2**26) for f in (box, back)]
        assert costs[1] == pytest.approx(costs[0], rel=1e-9)


@pytest.mark.parametrize("number", [p.stem for p in sorted(DATA.glob("*.txt")) if p.stem not in REFUSED])
def test_every_matrix_that_can_be_read_becomes_a_graph_with_the_same_links(number, tmp_path):
    matrix = read_matrix(text(number))
    gpu = GPU["h100-sxm"]
    box = drawn(text(number), tmp_path, None)[0].build(gpu)
    assert len(box) == len(matrix.gpus)
    assert len(box.domain(box.gpus[0])) >= 1
    wanted = [matrix.kinds[pair] for pair in combinations(matrix.gpus, 2)]
    got = [row for i, row in enumerate(rows(box, gpu)) for row in row[i + 1 :]]
    known = [(a, b) for a, b in zip(wanted, got, strict=True) if a not in ("XGMI", "PCIE")]
    assert [b for _, b in known] == [a for a, _ in known]


def test_an_imported_rack_keeps_its_trays(tmp_path):
    gpu = GPU["gb200"]
    box = parse_topology("nvl72-36").build(gpu)
    graph, written = drawn(printed(box, gpu), tmp_path, gpu)
    back = graph.build(gpu)
    assert [back.graph.nodes[g]["tray"] for g in back.gpus] == [box.graph.nodes[g]["tray"] for g in box.gpus]
    assert "GPUs of a rack: 4 to a tray, in their order" in written
    machines = [Collectives(f, gpu, load_fabric_constants()) for f in (box, back)]
    for ranks in ((0, 1, 2, 3), (2, 3, 4, 5), tuple(range(36))):
        for size in (2**12, 2**20):
            here, there = (m.cost("all_reduce", ranks) for m in machines)
            assert there.algorithm_for(size) == here.algorithm_for(size)
            assert there.seconds(size) == pytest.approx(here.seconds(size), rel=1e-9)
    tray, _ = drawn(text("23"), tmp_path, gpu)
    assert {node.tray for node in tray.nodes.values()} == {None}  # one tray is one server


def test_an_nvswitch_box_gets_the_chips_of_its_gpu(tmp_path):
    def chips(number: str, gpu: str | None) -> list[int]:
        graph, _ = drawn(text(number), tmp_path, GPU[gpu] if gpu else None)
        return [link.count for link in graph.links if "nvswitch" in link.target[0]]

    assert chips("08", "h100-sxm") == [5, 4, 4, 5]
    assert chips("08", None) == [18]
    assert chips("05", "a100-sxm-80gb") == [2] * 6
    assert chips("20", "b200-sxm") == [9, 9]
    assert chips("23", "gb200") == [1] * 18
    assert chips("06", "a100-sxm-80gb") == [2, 1, 1, 1, 1, 2]
    assert chips("26", None) == chips("02", "v100-sxm2-32gb") == []


def test_what_one_should_know_of_the_machine_is_noted():
    def notes(number: str, gpu: str | None = None) -> list[str]:
        return to_graph(read_matrix(text(number)), "box", GPU[gpu] if gpu else None).notes

    assert notes("08", "h100-sxm") == []
    assert notes("19") == ["GPU2 has no NVLink while 7 others have; a group with it runs over PCIe"]
    assert notes("26") == ["GPU2-GPU3 has 10 NVLinks, another pair 12; some may be down"]
    assert notes("06", "a100-sxm-80gb") == [
        "all pairs have NV8, the GPU has 12 NVLinks; the others are taken as not connected"
    ]
    assert notes("08", "a100-sxm-80gb") == ["GPU0 has NV18, a100-sxm-80gb has 12 NVLinks; is it this GPU?"]
    with pytest.raises(TopologyError, match="NVLinks, which l40s lacks"):
        notes("08", "l40s")


def test_the_file_holds_warnings_and_notes_as_comments(tmp_path):
    _, written = drawn(text("18"), tmp_path, GPU["b200-sxm"], name='a "box": 1')
    assert written.splitlines()[1:6] == [
        "# missing row GPU7",
        "# row GPU6 has 14 of 20 cells",
        "# note: GPU2 has no NVLink while 7 others have; a group with it runs over PCIe",
        "kind: graph",
        'name: "a \\"box\\": 1"',
    ]


def test_adapters_keep_their_names_where_these_can_be_nodes(tmp_path):
    graph, _ = drawn(text("08") + "  NIC0: gpu0\n", tmp_path, None)
    assert [n for n, node in graph.nodes.items() if node.kind == "nic"][::8] == ["mlx5_10", "mlx5_bond_0"]
    odd, _ = drawn(text("28") + "NIC0: null\n", tmp_path, None)
    assert [n for n, node in odd.nodes.items() if node.kind == "nic"] == ["nic-4"]


TEXTS = [text(p.stem) for p in sorted(DATA.glob("*.txt")) if p.stem not in REFUSED]
CELLS = ["X", "NV1", "NV18", "PIX", "PXB", "PHB", "NODE", "SYS", "XGMI", "PCIE", "XXXX", "0"]
SWAPS = st.lists(st.tuples(st.sampled_from(CELLS), st.sampled_from(CELLS), st.integers(1, 9)), min_size=1, max_size=6)


@given(st.sampled_from(TEXTS), SWAPS)
def test_whatever_can_be_read_can_be_imported_and_built(content, swaps):
    for old, new, times in swaps:
        content = content.replace(f" {old} ", f" {new} ", times)
    with suppress(TopologyError):
        matrix = read_matrix(content)
        parse_topology(to_graph(matrix, "box").data).build(GPU["h100-sxm"])
