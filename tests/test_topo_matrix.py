"""Topology matrices as people paste them: what each says, what is repaired, and what cannot be used.

The texts are in ``data/topo``; ``sources.csv`` there says where each comes from.
"""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest

from sim.errors import TopologyError
from sim.topo.matrix import TopoMatrix, read_matrix

DATA = Path(__file__).parent / "data" / "topo"
CUBE = [(0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)]


def text(number: str) -> str:
    return (DATA / f"{number}.txt").read_bytes().decode()


def read(number: str, which: int | None = None) -> TopoMatrix:
    return read_matrix(text(number), f"{number}.txt", which)


def error(content: str, name: str = "") -> str:
    with pytest.raises(TopologyError) as caught:
        read_matrix(content, name)
    return str(caught.value)


WHOLE = [
    ("02", 8, 0, {"NV1": 8, "NV2": 8, "SYS": 12}),
    ("05", 8, 3, {"NV12": 28}),
    ("08", 8, 9, {"NV18": 28}),
    ("10", 8, 0, {"PIX": 12, "PHB": 16}),
    ("13", 2, 0, {"NV2": 1}),
    ("14", 2, 0, {"PHB": 1}),
    ("15", 8, 0, {"NV12": 28}),
    ("17", 4, 0, {"SYS": 6}),
    ("19", 8, 0, {"NV18": 21, "NODE": 3, "SYS": 4}),
    ("25", 8, 2, {"NV12": 4, "NODE": 8, "SYS": 16}),
    ("26", 4, 0, {"NV12": 1, "NV10": 1, "NODE": 4}),
    ("28", 4, 1, {"NV4": 2, "SYS": 4}),
    ("32", 5, 0, {"PHB": 2, "NODE": 4, "SYS": 4}),
    ("35", 4, 2, {"NODE": 2, "SYS": 4}),
    ("36", 4, 0, {"PIX": 1, "NODE": 5}),
    ("42", 8, 1, {"NV18": 28}),
    ("45", 8, 0, {"XGMI": 28}),
    ("46", 4, 0, {"PCIE": 6}),
]
NO_HEADER = "there is no header; 8 GPUs and 12 NICs are inferred from the rows, the NVLinks and the places of X"
REPAIRED = [
    ("06", 8, 9, {"NV8": 28}, ["missing row GPU7"]),
    (
        "18",
        8,
        12,
        {"NV18": 21, "NODE": 3, "SYS": 4},
        [NO_HEADER, "missing row GPU7", "row GPU6 has 14 of 20 cells"],
    ),
    (
        "20",
        8,
        9,
        {"NV18": 28},
        [
            "missing rows GPU5, GPU6, GPU7",
            "no row says how GPU5-GPU6, GPU5-GPU7, GPU6-GPU7 are linked; taken as NV18, as all others are",
        ],
    ),
    (
        "21",
        8,
        13,
        {"NV18": 28},
        [
            "the header has columns glued together: NIC11NIC12",
            "missing rows GPU4, GPU5, GPU6, GPU7",
            "no row says how GPU4-GPU5, GPU4-GPU6, GPU4-GPU7, GPU5-GPU6, GPU5-GPU7, GPU6-GPU7 are linked; "
            "taken as NV18, as all others are",
        ],
    ),
    ("23", 4, 8, {"NV18": 6}, ["missing rows NIC3, NIC4, NIC5, NIC6, NIC7", "row NIC2 has 0 of 12 cells"]),
    (
        "29",
        4,
        0,
        {"NV12": 1, "PIX": 1, "SYS": 4},
        [f"row GPU{i} ends in words that are not read: '← NUMA {i // 2}'" for i in range(4)],
    ),
    ("38", 4, 8, {"NV18": 6}, ["missing rows NIC5, NIC6, NIC7"]),
]
PASTE = "paste all of what `nvidia-smi topo -m` prints, from the header to the legend"
REFUSED = [
    (
        "03",
        "03.txt:5:1: 8 GPU columns but 4 rows; row GPU3 has 5 of 12 cells; missing rows GPU4, GPU5, GPU6, GPU7; "
        f"nothing says how GPU3 and GPU5 and 8 more pairs are linked: {PASTE}",
    ),
    (
        "40",
        "40.txt:2:1: 8 GPU columns but 1 row; missing rows GPU1, GPU2, GPU3, GPU4, GPU5, GPU6 and 1 more; "
        f"nothing says how GPU1 and GPU2 and 20 more pairs are linked: {PASTE}",
    ),
    (
        "43",
        "43.txt: holds 2 matrices: 1 on line 1 (8 GPUs, SYS 28); 2 on line 21 (8 GPUs, NV18 28); "
        "choose one with --matrix 1 to 2",
    ),
    (
        "48",
        "48.txt:9:1: 12 GPU columns but 4 rows; missing rows GPU4, GPU5, GPU6, GPU7, GPU8, GPU9 and 2 more; "
        f"nothing says how GPU4 and GPU5 and 27 more pairs are linked: {PASTE}",
    ),
]


def counts(matrix: TopoMatrix) -> dict[str, int]:
    kinds = [matrix.kinds[pair] for pair in combinations(matrix.gpus, 2)]
    return {kind: kinds.count(kind) for kind in kinds}


def test_every_matrix_of_the_folder_is_expected_to_be_something():
    numbers = [row[0] for table in (WHOLE, REPAIRED, REFUSED) for row in table]
    assert sorted(numbers) == sorted(path.stem for path in DATA.glob("*.txt"))


@pytest.mark.parametrize(("number", "gpus", "nics", "kinds"), WHOLE)
def test_a_whole_matrix_is_read_without_a_warning(number, gpus, nics, kinds):
    matrix = read(number)
    assert (len(matrix.gpus), len(matrix.nics), counts(matrix), matrix.warnings) == (gpus, nics, kinds, ())
    assert all(matrix.kinds[a, b] == matrix.kinds[b, a] for a, b in matrix.kinds)


@pytest.mark.parametrize(("number", "gpus", "nics", "kinds", "warnings"), REPAIRED)
def test_a_damaged_matrix_is_read_with_warnings_that_name_the_row(number, gpus, nics, kinds, warnings):
    matrix = read(number)
    assert (len(matrix.gpus), len(matrix.nics), counts(matrix)) == (gpus, nics, kinds)
    assert list(matrix.warnings) == warnings


@pytest.mark.parametrize(("number", "message"), REFUSED)
def test_a_matrix_that_says_too_little_is_refused_with_the_row(number, message):
    assert error(text(number), f"{number}.txt") == message


def test_pairs_are_the_right_ones():
    assert [pair for pair in combinations(range(8), 2) if read("02").nvlinks(*map("GPU{}".format, pair)) == 2] == CUBE
    lost = read("19")
    assert {lost.kinds["GPU2", f"GPU{i}"] for i in (0, 1, 3)} == {"NODE"}
    assert {lost.kinds["GPU2", f"GPU{i}"] for i in (4, 5, 6, 7)} == {"SYS"}
    bridged = read("28")
    assert (bridged.kinds["GPU2", "NIC0"], bridged.kinds["NIC0", "GPU3"]) == ("PXB", "PIX")
    assert [bridged.nvlinks(a, "GPU3") for a in ("GPU0", "GPU2")] == [0, 4]
    assert counts(read("43", 1)) == {"SYS": 28}
    assert counts(read("43", 2)) == {"NV18": 28}


def test_numa_nodes_names_and_hops_stand_beside_the_matrix():
    assert list(read("17").numa.values()) == [3, 2, 1, 0]
    assert read("05").numa == {f"GPU{i}": i // 2 for i in range(8)}
    assert read("08").numa["GPU7"] == 1
    assert read("13").numa == {}
    assert read("32").numa == {"GPU0": 1, "GPU1": 0, "GPU2": 0, "GPU3": 0, "GPU4": 0}
    assert read("08").names["NIC8"] == "mlx5_bond_0"
    assert read("46").hops["GPU0", "GPU3"] == 3


def test_blocks_of_columns_are_put_side_by_side():
    matrix = read_matrix(
        "=== Link Type between two GPUs ===\n"
        "     GPU0 GPU1\nGPU0 0    XGMI\nGPU1 XGMI 0\nGPU2 XGMI XGMI\nGPU3 PCIE XGMI\n"
        "     GPU2 GPU3\nGPU0 XGMI PCIE\nGPU1 XGMI XGMI\nGPU2 0    XGMI\nGPU3 XGMI 0\n"
    )
    assert (matrix.gpus, counts(matrix)) == (("GPU0", "GPU1", "GPU2", "GPU3"), {"XGMI": 5, "PCIE": 1})
    assert matrix.kinds["GPU0", "GPU3"] == "PCIE"
    assert matrix.warnings == ()


def test_tables_of_amd_smi_are_read_by_bus_address():
    a, b = "0000:03:00.0", "0000:26:00.0"
    matrix = read_matrix(
        f"ACCESS TABLE:\n   {a} {b}\n{a} ENABLED ENABLED\n{b} ENABLED ENABLED\n\n"
        f"WEIGHT TABLE:\n   {a} {b}\n{a} 0 15\n{b} 15 0\n\n"
        f"HOPS TABLE:\n   {a} {b}\n{a} 0 1\n{b} 1 0\n\n"
        f"LINK TYPE TABLE:\n   {a} {b}\n{a} SELF XGMI\n{b} XGMI SELF\n\n"
        f"NUMA BW TABLE:\n   {a} {b}\n{a} N/A 50000-50000\n{b} 50000-50000 N/A\n"
    )
    assert (matrix.tool, matrix.gpus, counts(matrix)) == ("AMD", (a, b), {"XGMI": 1})
    assert dict(matrix.hops) == {(a, b): 1, (b, a): 1}
    assert matrix.warnings == ()


def test_numa_nodes_of_rocm_smi_are_read():
    lines = "".join(
        f"GPU[{i}]\t\t: (Topology) Numa Node: {i}\nGPU[{i}]\t\t: (Topology) Numa Affinity: 0\n" for i in (0, 1)
    )
    assert read_matrix(f"  GPU0 GPU1\nGPU0 0 PCIE\nGPU1 PCIE 0\n== Numa Nodes ==\n{lines}").numa == {
        "GPU0": 0,
        "GPU1": 1,
    }


def test_links_that_the_tool_does_not_know_stay_unknown():
    matrix = read_matrix("  GPU0 GPU1 GPU2\nGPU0 0 XGMI XXXX\nGPU1 XGMI 0 XGMI\nGPU2 XXXX XGMI 0\n")
    assert matrix.kinds["GPU0", "GPU2"] == "?"
    assert matrix.warnings == ("the tool does not say how GPU0-GPU2 are linked; no direct link is assumed",)
