"""``shardwise prove`` on a scenario: the table, JSON, and exit codes."""

from __future__ import annotations

import json

import pytest

from sim import load, prove
from sim.cli import app as cli
from sim.cli.app import execute
from sim.render.prove import render_prove
from sim.run import Proofs

KEYS = {
    "tag",
    "strategy",
    "ok",
    "max_relative_error",
    "held_bytes",
    "claimed_held_bytes",
    "sent_bytes",
    "claimed_sent_bytes",
    "duplication_counted",
    "duplication_claimed",
    "difference",
    "ranks",
    "steps",
    "scaling",
}


@pytest.fixture(scope="module")
def proofs():
    return prove(load("qwen3_235b_8xh200"))


def test_every_layout_is_exact_and_the_table_says_so(proofs):
    lines = render_prove(proofs).splitlines()
    rows = [line for line in lines if line.endswith("exact")]
    assert [row.split()[0] for row in rows] == [
        "tp8",
        "dp8-ep8",
        "tp8-dcp2",
        "tpa4-kvp2",
        "kvp2-tp4",
        "dp8-wide_ep8-r32",
    ]
    assert rows[0].split()[-3:-1] == ["2.00x", "2.00x"]
    assert max(map(len, lines)) <= 120
    assert any("layers 94 -> 2" in line for line in lines)


def test_a_layout_that_differs_is_shown_with_its_first_difference(proofs):
    bad = proofs.layouts[0].model_copy(update={"ok": False, "difference": "rank 3 layer 1: one byte too many"})
    text = render_prove(Proofs(scenario="q", version="0", layouts=(bad, proofs.layouts[1])))
    assert "tp8: rank 3 layer 1: one byte too many" in text
    assert "DIFFERS" in text


def test_the_command_prints_json_with_stable_keys_and_returns_zero(capsys):
    assert execute(["prove", "qwen3_235b_8xh200", "--layout", "tp8", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    (layout,) = answer["layouts"]
    assert set(layout) == KEYS
    assert layout["ok"] is True
    assert layout["held_bytes"] == layout["claimed_held_bytes"]


def test_the_command_returns_one_when_anything_differs(capsys, monkeypatch, proofs):
    bad = proofs.layouts[0].model_copy(update={"ok": False, "difference": "one byte too many"})
    answer = Proofs(scenario="q", version="0", layouts=(bad,))
    monkeypatch.setattr("sim.run.prove", lambda scenario, seed: answer)
    assert cli.execute(["prove", "qwen3_235b_8xh200"]) == 1
    assert "one byte too many" in capsys.readouterr().out


def test_an_unknown_layout_is_an_input_error(capsys):
    assert execute(["prove", "qwen3_235b_8xh200", "--layout", "tp9"]) == 2
    assert "no layout has the tag 'tp9'" in capsys.readouterr().err


def test_another_seed_gives_other_numbers_and_the_same_bytes(proofs):
    other = prove(load("qwen3_235b_8xh200"), seed=5)
    assert other.layouts[0].max_relative_error != proofs.layouts[0].max_relative_error
    assert all(p.ok for p in other.layouts)
