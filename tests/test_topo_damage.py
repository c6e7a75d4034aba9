"""Damage to a topology matrix, one kind at a time and at random: a warning or an error, never a traceback."""

from __future__ import annotations

from contextlib import suppress
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.errors import TopologyError
from sim.topo.matrix import read_matrix

DATA = Path(__file__).parent / "data" / "topo"
PASTE = "paste all of what `nvidia-smi topo -m` prints, from the header to the legend"


def error(content: str, name: str = "") -> str:
    with pytest.raises(TopologyError) as caught:
        read_matrix(content, name)
    return str(caught.value)


SMALL = """\
        GPU0    GPU1    GPU2    mlx5_0  CPU Affinity    NUMA Affinity
GPU0     X      NV4     SYS     PIX     0-15    0
GPU1    NV4      X      SYS     PHB     0-15    0
GPU2    SYS     SYS      X      SYS     16-31   1
mlx5_0  PIX     PHB     SYS      X
"""
PLAIN = read_matrix(SMALL)


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s.replace("\n", "\r\n"),
        lambda s: "$ nvidia-smi topo -m\n```\n" + s + "```\nLegend:\n  X    = Self\n  NV#  = a bond of # links\n",
        lambda s: s.replace("        GPU0", "\x1b[4mGPU0").replace("NUMA Affinity", "NUMA Affinity\x1b[0m"),
        lambda s: "\n".join(f"> {line}" for line in s.splitlines()),
        lambda s: "\n".join(f"| {line.replace('    ', ' | ')} |" for line in s.splitlines()),
        lambda s: "\ufeff" + s,
        lambda s: "\t".join(s.split(" ")),
        lambda s: s.replace("SYS", "SOC"),
        lambda s: s.lower().replace("gpu", "GPU").replace("cpu", "CPU").replace("numa", "NUMA"),
        lambda s: "GPU0 and GPU1 are bridged:\nGPU0, GPU1\n" + s + "GPU2 stands alone.\n",
    ],
)
def test_what_stands_around_a_matrix_changes_nothing(change):
    matrix = read_matrix(change(SMALL))
    assert (matrix.gpus, matrix.nics, matrix.kinds, matrix.numa) == (PLAIN.gpus, PLAIN.nics, PLAIN.kinds, PLAIN.numa)
    assert matrix.warnings == ()


def test_of_many_matrices_only_the_first_are_described():
    found = error("GPU0 X NV18\nGPU1 NV18 X\n\n" + "GPU0 X NV18\n" * 5000)
    assert "1 on line 1 (2 GPUs, NV18 1)" in found
    assert "more; choose one with --matrix 1 to " in found
    assert len(found) < 500


SPLIT = "row GPU0 has cells glued together; they are split"
SHIFTED = "row GPU1 is shifted (its X stands in column GPU0); it is read from the other rows"
INFERRED = (
    "the header has 3 columns, the rows 4; 3 GPUs and 1 NIC are inferred from the rows, the NVLinks and the places of X"
)
LAST = "GPU2    SYS     SYS      X      SYS     16-31   1\n"


@pytest.mark.parametrize(
    ("old", "new", "warnings"),
    [
        ("SYS     PIX     0-15", "SYSPIX     0-15", [SPLIT]),
        ("PIX     0-15    0", "PIX0-15    0", [SPLIT]),
        ("SYS     PIX     0-15", "SYS\n PIX     0-15", ["row GPU0 is broken over several lines; they are joined"]),
        ("NV4      X ", " X ", ["row GPU1 has 3 of 4 cells", SHIFTED]),
        ("     PHB     0-15    0\n", "\n", ["row GPU1 has 3 of 4 cells"]),
        ("     SYS     PHB     0-15    0\n", "\n", ["row GPU1 has 2 of 4 cells"]),
        ("SYS     PHB     0-15    0\n", "SY\n", ["row GPU1 has 2 of 4 cells"]),
        ("GPU2    SYS     SYS", "GPU2    SYS     N/A", ["only row GPU1 says how GPU1 and GPU2 are linked: SYS"]),
        (LAST, LAST + LAST, ["row GPU2 is there twice (line 5); the first one counts"]),
        (LAST, "", ["missing row GPU2"]),
        ("mlx5_0  PIX", "mlx5_9  PIX", ["rows without a column are left out: mlx5_9", "missing row mlx5_0"]),
        ("mlx5_0  CPU", "CPU", [INFERRED, "rows without a column are left out: mlx5_0", "missing row NIC0"]),
        ("GPU2    mlx5_0", "GPU2mlx5_0", ["the header has columns glued together: GPU2mlx5_0"]),
    ],
)
def test_each_damage_has_its_own_warning_and_changes_no_link_of_a_gpu(old, new, warnings):
    assert old in SMALL
    matrix = read_matrix(SMALL.replace(old, new, 1))
    assert list(matrix.warnings) == warnings
    pairs = list(combinations(PLAIN.gpus, 2))
    assert [matrix.kinds[pair] for pair in pairs] == [PLAIN.kinds[pair] for pair in pairs]


@pytest.mark.parametrize("kind", ["NV2", "SYS"])
def test_a_link_that_two_rows_see_differently_is_the_slower_of_both(kind):
    matrix = read_matrix(SMALL.replace("GPU1    NV4 ", f"GPU1    {kind} "))
    assert matrix.kinds["GPU0", "GPU1"] == matrix.kinds["GPU1", "GPU0"] == kind
    assert matrix.warnings == (f"row GPU0 says NV4 to GPU1, row GPU1 says {kind} to GPU0; {kind}, the slower, is used",)


def test_a_number_that_a_cut_may_have_shortened_is_not_believed_against_the_other_side():
    cut = "    GPU0 GPU1 GPU2\nGPU0  X  NV18 NV18\nGPU1 NV18  X  NV18\nGPU2 NV18 NV1"
    matrix = read_matrix(cut)
    assert matrix.kinds["GPU1", "GPU2"] == "NV18"
    assert matrix.warnings == ("row GPU2 has 2 of 3 cells",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", f"holds no rows such as 'GPU0  X  NV18'; {PASTE}"),
        ("GPU 0: NVIDIA H100 80GB HBM3\n", f"holds no rows such as 'GPU0  X  NV18'; {PASTE}"),
        ("   GPU0 GPU1\n", f"holds no rows such as 'GPU0  X  NV18'; {PASTE}"),
        ("   GPU0 GPU0\nGPU0 X PIX\n", f"line 1: the header names GPU0 twice; {PASTE}"),
        ("   NIC0 NIC1\nNIC0 X PIX\nNIC1 PIX X\n", f"line 1: has no row of a GPU; {PASTE}"),
        ("GPU9999 X PIX\n", "line 1: has more than 1024 devices; is it a matrix?"),
        (
            "   GPU0 GPU1 GPU2\nGPU0 X PIX PHB\n",
            "line 2: 3 GPU columns but 1 row; missing rows GPU1, GPU2; "
            f"nothing says how GPU1 and GPU2 are linked: {PASTE}",
        ),
    ],
)
def test_what_is_no_matrix_says_what_would_be_one(content, message):
    assert error(content) == message


def test_a_text_that_is_too_large_or_has_too_few_matrices_says_so():
    assert error("x" * (2**20 + 1), "big.txt") == "big.txt: is larger than 1,048,576 characters; is it a matrix?"
    with pytest.raises(TopologyError, match="holds 1 matrix, so there is no matrix 2"):
        read_matrix(SMALL, which=2)


TEXTS = [path.read_bytes().decode() for path in sorted(DATA.glob("*.txt"))]
BITS = st.sampled_from(
    ["", "\n", "\t", " ", "X", "NV", "NV1", "GPU3", "NIC7", "SYS", "0", "N/A", "GPU0 X", "\x1b[4m", "XXXX", "²"]
)
EDITS = st.lists(st.tuples(st.floats(0, 1), st.integers(0, 40), BITS), max_size=12)


@given(st.sampled_from(TEXTS), EDITS, st.floats(0, 1))
@settings(max_examples=200)
def test_any_mangled_text_gives_a_matrix_or_an_error(content, edits, length):
    for place, removed, put in edits:
        at = int(place * len(content))
        content = content[:at] + put + content[at + removed :]
    for mangled in (content, content[: int(length * len(content))]):
        with suppress(TopologyError):
            matrix = read_matrix(mangled)
            assert all(pair in matrix.kinds for pair in combinations(matrix.gpus, 2))


@given(st.text(max_size=200))
def test_any_text_at_all_gives_a_matrix_or_an_error(content):
    with suppress(TopologyError):
        read_matrix(content)
