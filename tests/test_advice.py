"""Advice: each rule of the trade is said where it is broken, with its figure, and nowhere else."""

from __future__ import annotations

import pytest

from sim.advice import head_dimension, rules
from sim.run import compare
from sim.scenario import parse_scenario

BASE = {
    "model": "llama-3.1-70b",
    "gpu": "h200-sxm",
    "topology": "hgx-8",
    "precision": {"weights": "fp8", "kv_cache": "bf16"},
    "workload": {"phase": "decode", "batch": 32, "context": 65536},
    "layouts": [{"strategy": "tp", "tp": 4}, {"strategy": "tp", "tp": 8}],
}


def said(**changes):
    return compare(parse_scenario(BASE | changes)).advice


def test_head_dimensions():
    assert list(head_dimension([64])) == ["Head dimension 64 pays for a tile of 128: 50 % of it is idle"]
    assert list(head_dimension([128])) == list(head_dimension([256])) == []
    assert "above 256" in next(head_dimension([512]))


def test_every_rule_has_a_source():
    assert set(rules().sources) == set(type(rules()).model_fields) - {"sources"}


def test_half_of_the_kv_reads():
    (line,) = [line for line in said() if "halving KV reads" in line]
    assert "an fp8 cache or a window in half of the 80 full layers" in line
    assert "(and 1 more)" in line
    short = said(workload={"phase": "decode", "batch": 32, "context": 128})
    assert not any("KV reads would" in line for line in short)


@pytest.mark.parametrize(("batch", "expected"), [(8, True), (4096, False)])
def test_rows_below_the_tile(batch, expected):
    lines = said(workload={"phase": "decode", "batch": batch, "context": 128})
    assert any("GEMM M is 8 rows" in line for line in lines) == expected


def test_dimensions_that_do_not_fill_tiles():
    odd = {"model.ffn.width": [28672 + 8 * 16]}
    (line,) = [line for line in said(vary=odd) if "no multiple of 128" in line]
    assert "ffn.down has K = " in line or "ffn.gate_up has N = " in line
    assert not any("no multiple" in line for line in said())


def test_groups_so_large_that_reading_the_cache_no_longer_counts():
    grouped = {"model.attention.group_size": [64]}
    work = {"phase": "decode", "batch": 1, "context": 2**20}
    alone = {"precision": {"weights": "fp8", "kv_cache": "fp8"}, "layouts": [{"strategy": "tp", "tp": 1}]}
    (line,) = [line for line in said(workload=work, vary=grouped, **alone) if "attention reads its cache" in line]
    assert "a larger group size" in line
    assert not any("attention reads its cache" in line for line in said())
