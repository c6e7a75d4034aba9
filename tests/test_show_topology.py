"""``shardwise show topology`` and ``import-topology``, as a user meets them."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from sim.catalog.gpus import load_gpu
from sim.catalog.topologies import parse_topology
from sim.cli.app import execute
from sim.network.report import SIZES, report

DATA = Path(__file__).parent / "data" / "topo"
H100 = load_gpu("h100-sxm")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert execute(["show", "topology", *arguments]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


@pytest.mark.parametrize(
    "name",
    ["hgx-8", "hgx-16", "hgx-1", "nvl72-18", "dgx1", "ring-6", "pcie-8", "{kind: cluster, nodes: 3, node: hgx-8}"],
)
def test_every_machine_fits_in_120_columns(name, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    out = shown(capsys, name)
    assert max(map(len, out.splitlines())) <= 120


def test_a_box_is_drawn_with_its_figures(capsys):
    lines = shown(capsys, "hgx-8", "--gpu", "h200-sxm").splitlines()
    assert lines[0] == "hgx-8"
    assert lines[3:8] == [
        "• h200-sxm: 8 GPUs, 4 NVSwitch chips",
        "• egress per GPU, over its fastest links, one direction: 450 GB/s",
        "• degree per GPU, in neighbours: 4",
        "• diameter: 2 links on the longest route",
        "• bisection: 1,800 GB/s from ranks 0 to 3 to the others, one direction",
    ]
    assert "   7  gpu7  NV18  NV18  NV18  NV18  NV18  NV18  NV18     X" in lines
    assert any(line.split()[:4] == ["NV18", "28", "450", "GB/s"] for line in lines)
    for kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "gather", "send"):
        assert any(line.startswith(f"{kind} ") for line in lines)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        (
            "{kind: cluster, nodes: 2, node: nvl72-36, rails: false}",
            "• gb200: 72 GPUs, 36 NVSwitch chips, 72 NICs, 1 network switch in 2 servers",
        ),
        ("pcie-1", "• l40s: 1 GPU, 1 CPU or root complex"),
    ],
)
def test_machines_are_shown_with_the_gpu_that_they_come_with(name, line, capsys):
    assert line in shown(capsys, name).splitlines()


def test_json_says_the_same_with_units_in_its_keys(capsys):
    found = json.loads(shown(capsys, "dgx1", "--json"))
    assert (found["gpu"], found["gpus"], found["diameter"]) == ("v100-sxm2-32gb", 8, 2)
    assert found["bisection_bytes_per_s"] == 150e9
    assert set(found["egress_bytes_per_s"].values()) == {150e9}
    assert found["matrix"][0] == ["X", "NV1", "NV1", "NV2", "NV2", "relay", "relay", "relay"]
    assert {(p["kind"], p["pairs"]) for p in found["pairs"]} == {("NV1", 8), ("NV2", 8), ("relay", 12)}
    reduce = found["collectives"]["all_reduce"]
    assert [price["bytes"] for price in reduce] == list(SIZES)
    assert all(price["algorithm"] and price["seconds"] > 0 for price in reduce)


def test_kinds_of_pairs_are_called_as_nvidia_smi_calls_them():
    def kinds(spec: object, gpu: str) -> set[str]:
        fabric = parse_topology(spec).build(load_gpu(gpu))  # type: ignore[arg-type]
        return {pair.kind for pair in report(fabric, load_gpu(gpu)).pairs}

    assert kinds("nvlink_pairs-8", "h100-pcie") == {"NV12", "PHB", "SYS"}
    assert kinds({"kind": "pcie", "gpus": 8, "gpus_per_switch": 2}, "l40s") == {"PIX", "PHB", "SYS"}
    assert kinds({"kind": "cluster", "nodes": 2, "node": "hgx-2"}, "h100-sxm") == {"NV18", "NET"}
    nodes = {"a": "gpu", "b": "gpu", "c": "gpu", "d": "gpu", "s": "pcie_switch", "t": "pcie_switch"}
    links = [{"from": ["a", "b"], "to": "s", "kind": "pcie"}, {"from": "s", "to": ["t"], "kind": "pcie"}]
    links += [{"from": "t", "to": "c", "kind": "pcie"}]
    assert kinds({"kind": "graph", "nodes": nodes, "links": links}, "l40s") == {"PIX", "PXB", "none"}


def test_bus_bandwidth_is_counted_as_nccl_tests_counts_it():
    prices = report(parse_topology("hgx-8").build(H100), H100).collectives
    for kind, factor in {"all_reduce": 1.75, "all_gather": 0.875, "all_to_all": 0.875, "broadcast": 1.0}.items():
        price = prices[kind][-1]
        assert price.bus_bytes_per_s == pytest.approx(factor * 2**30 / price.seconds)
        assert price.bus_bytes_per_s < 500e9


def test_larger_machines_are_shown_by_two_servers_and_exchanges_are_left_out():
    found = report(parse_topology({"kind": "cluster", "nodes": 40, "node": "hgx-8"}).build(H100), H100)
    assert (found.matrix, found.all_pairs, found.servers) == (None, False, 40)
    inside = sum(pair.pairs for pair in found.pairs if pair.where == "inside a server")
    between = sum(pair.pairs for pair in found.pairs if pair.where == "between servers")
    assert (inside, between) == (28, 64)
    assert "all_reduce" in found.collectives
    assert "all_to_all" not in found.collectives
    assert found.remarks == ("not priced on more than 256 GPUs: all_to_all, dispatch, combine",)


def test_gpus_that_are_not_connected_are_shown_and_said(folder, capsys):
    (folder / "box.yaml").write_text(
        "nodes: {gpu0: gpu, gpu1: gpu, gpu2: gpu}\nlinks:\n  - {from: gpu0, to: gpu1, kind: nvlink}\n"
    )
    out = shown(capsys, "box.yaml")
    assert "   2  gpu2  none  none     X" in out
    assert "box: nothing connects 'gpu0' and 'gpu2'; 'gpu0' reaches gpu1" in " ".join(out.split())
    assert any(line.startswith("send ") for line in out.splitlines())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["hgxx"], "topology: 'hgxx' is not installed; did you mean 'hgx'? known: "),
        (["none.yaml"], "none.yaml: cannot be read: no such file or directory\n"),
        (["hgx-8", "--gpu", "h100"], "GPU 'h100' is not in the catalogue; did you mean "),
        (["hgx-8", "--gpu", "l40s"], "hgx needs NVLink, which l40s lacks; use pcie\n"),
        (["{kind: hgx, gpus: 99}"], "topology.gpus: must be at most 16, not 99\n"),
        (["{kind: hgx"], "NAME:1:11: a bracket is not closed, or a comma is missing\n"),
    ],
)
def test_what_cannot_be_shown_says_why(arguments, message, folder, capsys):
    assert execute(["show", "topology", *arguments]) == 2
    assert capsys.readouterr().err.startswith(message)


def test_a_matrix_becomes_a_file_that_a_scenario_runs_on(folder, capsys):
    assert execute(["import-topology", str(DATA / "18.txt"), "-o", "mine.yaml", "--gpu", "b200-sxm"]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    warnings = [
        "warning: there is no header; 8 GPUs and 12 NICs are inferred from the rows, the NVLinks and the places of X",
        "warning: missing row GPU7",
        "warning: row GPU6 has 14 of 20 cells",
        "note: GPU2 has no NVLink while 7 others have; a group with it runs over PCIe",
    ]
    assert captured.err.splitlines() == [*warnings, "wrote mine.yaml"]
    lines = (folder / "mine.yaml").read_text().splitlines()
    assert lines[:7] == [
        "# imported from 18.txt, b200-sxm",
        *(f"# {w}" for w in warnings),
        "kind: graph",
        'name: "mine"',
    ]
    (folder / "s.yaml").write_text(
        "model: llama-3.1-8b\ngpu: b200-sxm\ntopology: {kind: graph, file: mine.yaml}\n"
        "workload: {batch: 8, context: 4k}\nlayouts:\n  - {strategy: tp, tp: 2}\n  - {strategy: tp, tp: 4}\n"
    )
    assert execute(["compare", "s.yaml", "--json"]) == 0
    pair, four = json.loads(capsys.readouterr().out)["layouts"]
    assert "GPU2" in warnings[3]
    assert four["step"]["exposed_communication_seconds"] > 2 * pair["step"]["exposed_communication_seconds"]


def test_the_file_is_written_to_stdout_and_read_from_stdin(folder, capsys, monkeypatch):
    content = (DATA / "28.txt").read_bytes()
    for encoded in (content, content.decode().replace("\n", "\r\n").encode("utf-16")):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(encoded)))
        assert execute(["import-topology", "-", "--name", "my box"]) == 0
        captured = capsys.readouterr()
        assert captured.out.startswith('# imported from stdin\nkind: graph\nname: "my box"\n')
        assert captured.err == ""


def test_one_of_several_matrices_is_chosen(folder, capsys):
    file = str(DATA / "43.txt")
    assert execute(["import-topology", file]) == 2
    assert "choose one with --matrix 1 to 2" in capsys.readouterr().err
    assert execute(["import-topology", file, "--matrix", "2"]) == 0
    assert "to: nvswitch0, kind: nvlink, count: 18}" in capsys.readouterr().out
    assert execute(["import-topology", file, "--matrix", "3"]) == 2
    assert "holds 2 matrices, so there is no matrix 3" in capsys.readouterr().err


def test_an_existing_file_is_kept_unless_forced(folder, capsys):
    (folder / "mine.yaml").write_text("mine\n")
    arguments = ["import-topology", str(DATA / "13.txt"), "-o", "mine.yaml"]
    assert execute(arguments) == 2
    assert "mine.yaml: exists already; choose another name or add --force" in capsys.readouterr().err
    assert (folder / "mine.yaml").read_text() == "mine\n"
    assert execute([*arguments, "--force"]) == 0
    assert "kind: graph" in (folder / "mine.yaml").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.txt"], "none.txt: cannot be read: no such file or directory\n"),
        (["03.txt"], "03.txt:5:1: 8 GPU columns but 4 rows; row GPU3 has 5 of 12 cells; "),
        (["13.txt", "--gpu", "l40s"], "the matrix has NVLinks, which l40s lacks; give the GPU of this machine\n"),
        (["13.txt", "--name", "a\nb"], "--name: must be printable text on one line of at most 100 characters\n"),
    ],
)
def test_what_cannot_be_imported_says_why(arguments, message, folder, capsys, monkeypatch):
    for number in ("03", "13"):
        (folder / f"{number}.txt").write_bytes((DATA / f"{number}.txt").read_bytes())
    assert execute(["import-topology", *arguments]) == 2
    assert capsys.readouterr().err.startswith(message)
