"""The simulator against the published measurements that ship with it: errors, what is counted, and what is printed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sim.errors import InputError
from sim.render.validate import render_validate, to_markdown
from sim.validate import validate
from sim.validate.groups import FILES, Rows
from sim.validate.names import SHIPPED


@pytest.fixture(scope="module")
def shipped():
    return validate()


def _group(found, name):
    return next(group for group in found.groups if group.name == name)


@pytest.mark.parametrize(
    ("name", "median", "mean"),
    [
        ("end to end: TPOT, screened", 0.07, 0.10),
        ("end to end: TPOT, all rows", 0.08, 0.16),
        ("end to end: TPOT ratio of two layouts", 0.06, 0.10),
        ("end to end: TTFT, screened", 0.21, 0.29),
        ("memory: KV bytes per token and rank", 0.001, 0.001),
        ("kernels: attention", 0.03, 0.05),
        ("kernels: collectives", 0.06, 0.08),
        ("latency: time per output token", 0.12, 0.18),
    ],
)
def test_published_measurements_are_met_this_closely(shipped, name, median, mean):
    group = _group(shipped, name)
    assert group.median_ape <= median
    assert group.mean_ape <= mean


def test_the_table_of_the_readme_is_what_the_command_prints(shipped):
    readme = (Path(__file__).parent.parent / "README.md").read_text("utf-8")
    assert to_markdown(shipped).strip() in readme


def test_every_cache_that_agrees_with_a_closed_form_is_within_a_third_of_a_percent():
    (agree, *_) = Rows(SHIPPED).memory
    assert len(agree.outcomes) == 45
    assert max(abs(outcome.error) for outcome in agree.outcomes) < 0.0035


def test_every_row_is_predicted_or_counted_with_a_reason(shipped):
    for group in shipped.groups:
        assert group.rows == group.covered + sum(group.failures.values())
        assert all(group.failures)
        errors = [abs(row.error) for row in group.worst]
        assert errors == sorted(errors, reverse=True)
        assert len(group.worst) == min(5, group.covered)
        assert all(row.source for row in group.worst)
    assert _group(shipped, "end to end: TPOT, all rows").covered == 1521
    assert _group(shipped, "end to end: TPOT, screened").rows == 1521 - sum(
        count for rule, count in shipped.screen.items() if not rule.startswith(("labels", "TTFT"))
    )


def test_the_table_has_a_line_per_group_and_fits_the_terminal(shipped):
    lines = to_markdown(shipped).splitlines()
    assert len(lines) == 2 + len(shipped.groups)
    assert "| end to end: TPOT, screened | 1,251 | 1,251 |" in "\n".join(lines)
    text = render_validate(shipped, 120)
    assert max(map(len, text.splitlines())) <= 120
    assert all(group.name in text for group in shipped.groups if len(group.name) < 60)
    assert "not predicted, 1 row: experts are on the host" in text


def test_the_figures_are_json_with_the_names_that_were_promised(shipped):
    found = json.loads(json.dumps(shipped.model_dump(mode="json")))
    for group in found["groups"]:
        assert {"name", "rows", "covered", "median_ape", "mean_ape", "bias"} <= set(group)


def test_a_folder_may_hold_some_of_the_files(tmp_path):
    (tmp_path / "memory.csv").write_bytes((SHIPPED / "memory.csv").read_bytes())
    found = validate(tmp_path)
    assert {group.name.partition(":")[0] for group in found.groups} == {"memory"}
    assert _group(found, "memory: KV bytes per token and rank").covered == 45


def test_a_folder_with_none_of_the_files_is_an_error(tmp_path):
    with pytest.raises(InputError, match=f"has none of {', '.join(FILES)}"):
        validate(tmp_path)
