"""Rows of measurements: what is refused and where, labels that are repaired, and runs that are screened out."""

from __future__ import annotations

import csv
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sim.errors import InputError
from sim.validate import validate
from sim.validate.csv_rows import NEEDED, NUMBERS, read_rows
from sim.validate.names import SHIPPED
from sim.validate.runs import Run, read_runs
from sim.validate.screen import screen
from sim.validate.suite import tolerance

NAME = "end_to_end.csv"
with (SHIPPED / NAME).open(newline="") as _file:
    SAMPLE = list(islice(csv.DictReader(_file), 6))


def _write(folder: Path, rows: list[dict[str, str]], columns: list[str] | None = None) -> Path:
    path = folder / NAME
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns or list(SAMPLE[0]), extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    return path


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    at=st.integers(0, len(SAMPLE) - 1),
    column=st.sampled_from([*NEEDED[NAME], *NUMBERS[NAME]]),
    bad=st.sampled_from(["nan", "inf", "-inf", "-1", "-0.5", "many", "1,5", "0x10", "1e999"]),
)
def test_a_row_with_a_bad_number_is_refused_by_file_and_line_and_the_others_are_kept(tmp_path, at, column, bad):
    rows = [row | {column: bad} if i == at else row for i, row in enumerate(SAMPLE)]
    found = read_rows(_write(tmp_path, rows))
    (refused,) = found.refused
    assert refused.where == f"{NAME}:{at + 2}"
    assert refused.why.startswith(f"{column} is {bad!r}, not a")
    assert [row["line"] for row in found.good] == [str(i + 2) for i in range(len(SAMPLE)) if i != at]


@pytest.mark.parametrize("column", NEEDED[NAME])
@pytest.mark.parametrize("empty", ["", "0"])
def test_what_every_row_needs_may_not_be_missing(tmp_path, column, empty):
    found = read_rows(_write(tmp_path, [SAMPLE[0] | {column: empty}]))
    assert found.refused[0].why == f"{column} is {empty!r}, not a positive number"


@pytest.mark.parametrize("column", list(SAMPLE[0]))
def test_a_file_without_a_column_is_refused_as_a_whole(tmp_path, column):
    path = _write(tmp_path, SAMPLE, [name for name in SAMPLE[0] if name != column])
    with pytest.raises(InputError, match=rf"{NAME}:1: there is no column {column}$"):
        read_rows(path)


def test_rows_that_cannot_be_read_or_simulated_are_failures_with_their_reason(tmp_path):
    odd = [
        SAMPLE[0] | {"model_path": "nobody/Knows-1B"},
        SAMPLE[1] | {"system": "abacus"},
        SAMPLE[2] | {"silicon_tpot_ms": "nan"},
        SAMPLE[3],
    ]
    _write(tmp_path, odd)
    groups = {group.name: group for group in validate(tmp_path).groups}
    every = groups["end to end: TPOT, all rows"]
    assert (every.rows, every.covered) == (3, 1)
    assert every.failures == {
        "the catalogue has no model of the shape of 'nobody/Knows-1B'": 1,
        "the catalogue does not have the GPU 'abacus'": 1,
    }
    lost = groups[f"{NAME}: cannot be read"]
    assert lost.failures == {f"{NAME}:4: silicon_tpot_ms is 'nan', not a positive number": 1}


# -- labels and the screen


def _read(**changes: str) -> Run:
    row = SAMPLE[3] | {"concurrency": "16", "batch_size": "16"} | changes
    (run,) = read_runs([{**row, "line": "2"}])
    return run


def test_ranks_that_were_counted_twice_are_read_once():
    run = _read(tp_size="16", attention_dp_size="1", moe_tp_size="4", moe_ep_size="4")
    assert (run.tp, run.dp, run.moe_tp, run.moe_ep) == (4, 1, 1, 4)
    assert run.repaired.startswith("4 ranks counted twice")
    assert not run.unusable


def test_a_missing_number_of_replicas_follows_from_the_group_of_the_experts():
    run = _read(tp_size="1", attention_dp_size="", moe_tp_size="1", moe_ep_size="8", batch_size="2")
    assert (run.tp, run.dp, run.gpus) == (1, 8, 8)
    assert run.repaired
    assert not run.unusable


def test_a_layout_that_does_not_multiply_out_is_unusable():
    assert _read(tp_size="8", moe_tp_size="4", moe_ep_size="1").unusable == "moe_tp 4 x moe_ep 1 is not tp 8 x dp 1"
    assert _read(tp_size="8", moe_tp_size="8", batch_size="3").unusable == "concurrency 16 is not batch 3 x dp 1"
    assert _read(concurrency="").unusable == "no concurrency"


def _run(name: str, **changes: object) -> Run:
    base = _read()
    tpot = changes.get("tpot", base.tpot)
    return base._replace(**{"name": name, "ttft": 0.2, "tpot": tpot, "repaired": "", "unusable": "", **changes})


def _screen(runs: list[Run], floors: dict[str, float] | None = None, drafts: str = "") -> dict[str, str]:
    found = screen(runs, floors or {}, lambda run: drafts)
    return {**dict.fromkeys(found.copies, "copy"), **found.reasons, **found.ttft}


def test_copies_are_recognised_by_three_digits():
    runs = [_run("a", tpot=0.010001), _run("b", tpot=0.010004, model="another"), _run("c", tpot=0.0102)]
    assert _screen(runs)["b"] == "copy"
    assert "a" not in _screen(runs)


def test_a_run_faster_than_the_data_sheet_goes_and_with_a_third_of_it_the_campaign():
    runs = [_run(str(i), concurrency=2**i, tpot=0.01 + i / 1000) for i in range(4)]
    assert _screen(runs, {"0": 0.02}).keys() == {"0"}
    assert _screen(runs, {"0": 0.02, "1": 0.02}).keys() == {"0", "1", "2", "3"}


def test_more_load_never_makes_a_token_faster():
    runs = [
        _run("a", concurrency=4, tpot=0.010),
        _run("b", concurrency=8, tpot=0.0096),
        _run("c", concurrency=16, tpot=0.0098),
    ]
    assert _screen(runs) == {"b": "faster under more load"}


def test_a_series_far_below_another_on_equal_gpus_drafts_tokens_if_the_model_can():
    slow = [_run(f"s{c}", engine="one", concurrency=c, tpot=0.010 + c / 1e4) for c in (4, 8)]
    fast = [_run(f"f{c}", engine="two", concurrency=c, tpot=0.007 + c / 1e4) for c in (4, 8)]
    assert _screen(slow + fast, drafts="with a head").keys() == {"f4", "f8"}
    assert not _screen(slow + fast)


def test_a_jump_of_the_first_token_is_a_queue_and_so_is_all_above_it():
    times = {4: 0.2, 8: 0.3, 16: 1.5, 32: 1.7}
    runs = [_run(str(c), concurrency=c, ttft=t, tpot=0.01 + c / 1e4) for c, t in times.items()]
    assert _screen(runs) == dict.fromkeys(("16", "32"), "TTFT jumps with the load")


def test_the_first_percentage_of_a_tolerance_counts():
    assert [tolerance(text) for text in ("15 %", "25 % abs, 10 % on the ratio", "exact ratio 6.575")] == [
        0.15,
        0.25,
        0.001,
    ]
