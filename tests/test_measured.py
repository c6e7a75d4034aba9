"""Kernels from measured tables: the measured time where there is one, proportion in between, elsewhere the model."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from sim import compare, parse_scenario
from sim.catalog.gpus import load_gpu
from sim.errors import InputError
from sim.kernels import Kernels, load_constants
from sim.kernels.constants import TABLES
from sim.kernels.measured import MeasuredKernels
from sim.kernels.tables import read_tables, routed
from sim.program import Work
from sim.shapes import Gemm, GroupedGemm
from sim.validate.table_rows import table_groups

H200 = load_gpu("h200-sxm")
CONSTANTS = load_constants("h200")
FITTED = Kernels(H200, CONSTANTS, TABLES)
N, K = 16384, 16384
"""A product whose 512 MiB of weights no cache holds: the time in a step is that of a benchmark."""
FACTOR = 1.3


def _gemm(m: int) -> Work:
    return Work(Gemm(m, N, K), 2.0 * m * N * K, "bf16", 2 * N * K, io_bytes=2 * m * (N + K))


def _write(folder: Path, name: str, rows: list[dict[str, object]]) -> None:
    with (folder / f"{name}.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


@pytest.fixture
def folder(tmp_path):
    """A table of one product that takes 1.3 times what the fitted model says, at 8, 64 and 512 rows."""
    by = {"system": "h200_sxm", "backend_fw": "trtllm", "fw_version": "1.0", "kernel_source": "torch_flow"}
    _write(
        tmp_path,
        "gemm",
        [
            by
            | {"gemm_dtype": "bfloat16", "m": m, "n": N, "k": K}
            | {"latency_us": 1e6 * FACTOR * float(FITTED.cost(_gemm(m)).seconds)}
            for m in (8, 64, 512)
        ],
    )
    return tmp_path


def test_what_was_measured_is_returned_and_what_lies_between_is_in_proportion(folder):
    kernels = MeasuredKernels(H200, CONSTANTS, folder=folder)
    for m in (8, 64, 512, 20, 100):
        assert kernels.cost(_gemm(m)).seconds == pytest.approx(FACTOR * FITTED.cost(_gemm(m)).seconds, rel=0.02)
    assert kernels.looked_up["gemm"] == 5
    assert not kernels.modelled.total()


def test_outside_of_what_was_measured_the_model_answers_and_a_note_says_so(folder):
    kernels = MeasuredKernels(H200, CONSTANTS, folder=folder)
    for m in (4, 1024):
        assert kernels.cost(_gemm(m)) == FITTED.cost(_gemm(m))
    other = Work(Gemm(64, 5000, K), 2.0 * 64 * 5000 * K, "bf16", 2 * 5000 * K)
    experts = Work(GroupedGemm(64, 50, 64, 4096, 1536, 128, 128, 8), 1e9, "bf16", 5e8, 0, 1e6)
    assert kernels.cost(other) == FITTED.cost(other)
    assert kernels.cost(experts) == FITTED.cost(experts)
    kernels.cost(_gemm(64))
    assert kernels.notes() == [
        "experts: 1 of 1 shapes are not in the measured tables and come from the fitted model",
        "gemm: 3 of 4 shapes are not in the measured tables and come from the fitted model",
    ]


def test_tables_that_are_not_there_are_an_error_that_says_what_to_do(tmp_path):
    with pytest.raises(InputError, match=r"^measured kernels need tables: there is no folder .*SHARDWISE_TABLES"):
        MeasuredKernels(H200, CONSTANTS, folder=tmp_path / "nowhere")


def test_a_scenario_is_answered_from_tables_and_says_what_they_lack(folder, monkeypatch):
    monkeypatch.setenv("SHARDWISE_TABLES", str(folder))
    said = {
        "model": "qwen3-235b-a22b",
        "gpu": "h200-sxm",
        "workload": {"batch": 64, "context": "8k"},
        "layouts": [{"strategy": "tp", "tp": 8}],
    }
    fitted, measured = (compare(parse_scenario(said | {"kernels": source})) for source in ("fitted", "measured"))
    seconds = [found.layouts[0].step.seconds for found in (fitted, measured)]
    assert seconds[0] == pytest.approx(seconds[1], rel=1e-9)  # none of its shapes is in the table
    assert any(
        "decode attention: 1 of 1 shapes are not in the measured tables" in line for line in measured.not_modelled
    )
    assert not any("measured tables" in line for line in fitted.not_modelled)


def test_only_the_newest_version_of_a_library_counts(folder):
    (table,) = read_tables(folder, "gemm")
    with (folder / "gemm.csv").open("a") as file:
        file.write(f"h200_sxm,trtllm,1.10.0rc2,torch_flow,bfloat16,16,{N},{K},99\n")
        file.write(f"h200_sxm,trtllm,1.9.0,torch_flow,bfloat16,32,{N},{K},99\n")
    (newest,) = read_tables(folder, "gemm")
    assert len(table.seconds) == 3
    assert newest.version == "1.10.0rc2"
    assert newest.columns["m"].tolist() == [16]


def test_a_table_of_ones_own_is_a_group_of_the_validation(folder):
    (group,) = table_groups(folder)
    assert group.name == "table: GEMM bf16, h200-sxm"
    assert [round(outcome.error, 2) for outcome in group.outcomes] == [round(1 / FACTOR - 1, 2)] * 3
    assert group.outcomes[0].what == f"m 8 n {N} k {K}"


def test_a_row_that_beats_the_data_sheet_counts_as_a_failure(folder):
    with (folder / "gemm.csv").open("a") as file:
        file.writelines(
            f"h200_sxm,trtllm,1.0,torch_flow,bfloat16,{m},{N},{K},{us}\n"
            for m, us in [(m, 1e6 * float(FITTED.cost(_gemm(m)).seconds)) for m in range(100, 120)] + [(700, 1.0)]
        )
    (group,) = table_groups(folder)
    lost = [outcome for outcome in group.outcomes if outcome.predicted is None]
    assert [outcome.why for outcome in lost] == ["faster than the data sheet allows"]
    assert len(group.outcomes) == 24


def test_skewed_routing_hits_fewer_experts_and_fills_one_rank_more():
    for ranks in (1, 8):
        rows, hit = routed(64, 128, 8, ranks, "balanced")
        skewed_rows, skewed_hit = routed(64, 128, 8, ranks, "power_law_1.2")
        assert rows == 64 * 8 / ranks
        assert hit == 128 / ranks
        assert skewed_hit < hit
        assert skewed_rows > rows if ranks > 1 else skewed_rows == pytest.approx(rows, rel=0.02)
    assert routed(64, 128, 8, 8, "power_law_1.2") == routed(64, 128, 8, 8, "power_law_1.2")
