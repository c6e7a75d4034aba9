"""The roofline view: sums, ridge points and sides in closed form."""

from __future__ import annotations

import csv
import io
import json

import pytest

from sim.cli.app import execute
from sim.run import evaluate, rooflines
from sim.scenario import parse_scenario

BASE = {
    "model": "qwen3-32b",
    "gpu": "h200-sxm",
    "topology": "hgx-8",
    "precision": {"weights": "fp8", "kv_cache": "fp8"},
    "workload": {"phase": "decode", "batch": 64, "context": 32768},
    "layouts": [{"strategy": "tp", "tp": 4}],
}
LAYERS, HIDDEN, HEADS, KV_HEADS, DIM = 64, 5120, 64, 8, 128


def rows_of(**changes):
    (layout,) = rooflines(parse_scenario(BASE | changes)).layouts
    return {row.name: row for row in layout.rows}


def test_a_product_and_attention_have_their_textbook_figures():
    rows = rows_of()
    o, core = rows["attention.o"], rows["attention.core"]
    depth = HEADS // 4 * DIM
    assert o.flops == LAYERS * 2 * 64 * depth * HIDDEN
    assert o.weight_bytes == LAYERS * depth * HIDDEN
    assert core.kv_bytes == LAYERS * 64 * 32768 * 2 * KV_HEADS // 4 * DIM
    assert core.flops == LAYERS * 4 * 64 * 32768 * HEADS // 4 * DIM
    assert core.kv_intensity == 2 * HEADS / KV_HEADS


def test_ridge_is_peak_over_bandwidth_of_the_format():
    scenario = parse_scenario(BASE)
    rows = rows_of()
    assert rows["attention.o"].ridge == pytest.approx(scenario.gpu.peak["fp8"] / scenario.gpu.bandwidth)
    assert rows["logits.lm_head"].ridge == pytest.approx(scenario.gpu.peak["bf16"] / scenario.gpu.bandwidth)


def test_blocks_and_the_step_are_sums():
    rows = rows_of()
    for figure in ("flops", "weight_bytes", "kv_bytes", "io_bytes", "floor_seconds", "seconds"):
        by_level = [
            sum(getattr(r, figure) for r in rows.values() if r.level == level)
            for level in ("operation", "block", "step")
        ]
        assert by_level[0] == pytest.approx(by_level[1]) == pytest.approx(by_level[2])
    assert rows["step"].bound == "memory"


def test_the_step_has_the_time_that_it_computes():
    scenario = parse_scenario(BASE | {"layouts": [{"strategy": "tp", "tp": 1}]})
    (layout,) = rooflines(scenario).layouts
    step = evaluate(scenario, scenario.layouts[0]).step()
    assert layout.rows[-1].seconds == pytest.approx(step.seconds - step.causes["host"])


@pytest.mark.parametrize(("batch", "bound"), [(16, "memory"), (8192, "compute")])
def test_more_rows_move_a_product_over_the_ridge(batch, bound):
    rows = rows_of(workload={"phase": "decode", "batch": batch, "context": 128})
    assert rows["ffn.gate_up"].bound == bound


def test_stages_and_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.yaml").write_text(json.dumps(BASE | {"layouts": [{"strategy": "tp", "tp": 2, "pp": 2}]}))
    assert execute(["roofline", "s.yaml", "--csv"]) == 0
    table = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    core = next(row for row in table if row["name"] == "attention.core")
    assert float(core["kv_bytes"]) == LAYERS * 32 * 32768 * 2 * KV_HEADS // 2 * DIM  # a micro-batch has half the batch
    assert execute(["roofline", "s.yaml", "--layout", "tp2-pp2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["layouts"][0]["rows"][-1]["name"] == "step"
    assert execute(["roofline", "s.yaml"]) == 0
    assert "bound by" in capsys.readouterr().out
    assert execute(["roofline", "s.yaml", "--json", "--csv"]) == 2
