"""Every shipped scenario runs as it is, says what it asks, and answers it."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import pytest

from sim import compare, load
from sim.catalog.scenarios import scenario_names
from sim.report import Report

FOLDER = Path(__file__).parent.parent / "scenarios"
FILES = sorted(FOLDER.glob("*.yaml"))


@lru_cache(maxsize=16)
def answer(name: str) -> Report:
    """Each scenario is compared once."""
    return compare(load(FOLDER / f"{name}.yaml"))


def by_tag(name: str) -> dict:
    return {layout.tag: layout for layout in answer(name).layouts}


def test_every_file_is_in_the_catalogue():
    assert [path.stem for path in FILES] == scenario_names()
    assert len(FILES) == 18


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_it_says_what_it_asks(path):
    opening = path.read_text("utf-8").split("\nmodel:")[0]
    assert opening.startswith("# ")
    assert "?" in opening
    assert load(path).name != path.stem


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_it_runs_as_it_is(path):
    report, scenario = answer(path.stem), load(path)
    each = [layout.label for layout in scenario.layouts]
    assert len(report.layouts) == len(each) * len(scenario.each)
    if not scenario.variants:
        assert [layout.tag for layout in report.layouts] == each
    assert any(layout.feasible for layout in report.layouts)
    assert report.findings
    assert report.not_modelled
    for layout in report.layouts:
        assert layout.gpus <= scenario.topology.gpu_count
        assert layout.step.seconds >= layout.step.floor_seconds
        assert layout.kv.held_bytes == layout.kv.unique_bytes * layout.kv.duplication
        assert layout.feasible == (layout.memory.total_bytes <= layout.memory.capacity_bytes)


@pytest.mark.parametrize("path", [path for path in FILES if load(path).granularity != "flows"], ids=lambda p: p.stem)
def test_every_rank_by_itself_gives_the_same_answer(path):
    scenario = load(path)
    every = compare(scenario.adjusted(granularity="ranks"))
    for folded, ranks in zip(answer(path.stem).layouts, every.layouts, strict=True):
        assert folded.step.seconds == pytest.approx(ranks.step.seconds, rel=1e-9)
        assert folded.memory == ranks.memory
        assert folded.kv == ranks.kv


COPIES = {
    "qwen3_235b_8xh200": {"tp8": 2, "dp8-ep8": 1, "tp8-dcp2": 1, "tpa4-kvp2": 1, "kvp2-tp4": 1, "dp8-wide_ep8-r32": 1},
    "deepseek_r1_8xh200": {"tp8": 8, "tp8-ep8": 8, "tp4-pp2": 4, "dp8-ep8": 1, "tp8-dcp8": 1, "tpa1-kvp8-ep8": 1},
    "deepseek_r1_1m_nvl72": {"tp64-ep64": 64, "kvp8-tp8": 8, "dp64-wide_ep64": 1, "tpa1-kvp64-ep64": 1},
    "llama_405b_1m_nvl72": {"tp8": 1, "tp16": 2, "tp64": 8, "kvp8-tp8": 1, "tp64-dcp8": 1, "tpa8-kvp8": 1},
    "llama_70b_pcie": {"tp2": 1, "tp8": 1, "tp2x4": 1},
    "llama_70b_hgx": {"tp2": 1, "tp8": 1, "tp2x4": 1},
    "two_node_h100": {"tp8": 1, "tp16": 2, "tpa8-kvp2": 1, "tp16-dcp2": 1},
}


@pytest.mark.parametrize(("name", "copies"), COPIES.items())
def test_how_often_each_layout_stores_the_cache(name, copies):
    assert {tag: by_tag(name)[tag].kv.duplication for tag in copies} == copies


def test_qwen3_plain_tp_serves_half_the_batch():
    layouts = by_tag("qwen3_235b_8xh200")
    assert layouts["tp8"].kv.bytes_per_token_per_rank == layouts["tp8-dcp2"].kv.bytes_per_token_per_rank == 48_128
    assert layouts["tp8"].kv.tokens_per_rank == 2 * layouts["tp8-dcp2"].kv.tokens_per_rank == 64 * 32_768
    assert layouts["tp8"].memory.max_batch * 2 == layouts["tp8-dcp2"].memory.max_batch
    assert all(layout.feasible for layout in layouts.values())


def test_a_million_tokens_for_llama_fit_only_where_tokens_or_sequences_are_shared():
    layouts = by_tag("llama_405b_1m_nvl72")
    assert {tag for tag, layout in layouts.items() if not layout.feasible} == {"tp8", "tp16", "tp64"}
    assert {layouts[tag].kv.bytes_per_token_per_rank for tag in ("tp8", "tp16", "tp64")} == {32_256}
    assert layouts["tp8"].memory.kv_bytes == layouts["tp64"].memory.kv_bytes == 8 * 33_822_867_456
    assert layouts["tpa8-kvp8"].memory.kv_bytes == layouts["tp8"].memory.kv_bytes // 8
    assert layouts["tpa8-kvp8"].step.seconds <= layouts["tpa8-kvp8-no_hopb"].step.seconds


def test_a_million_tokens_for_r1():
    layouts = by_tag("deepseek_r1_1m_nvl72")
    assert not layouts["tp64-ep64"].feasible
    assert layouts["tp64-ep64"].memory.kv_bytes == 64 * layouts["tpa1-kvp64-ep64"].memory.kv_bytes
    assert layouts["tp64-ep64"].step.seconds > 10 * layouts["tpa1-kvp64-ep64"].step.seconds


def test_the_missing_nvlink_costs_more_the_more_ranks_talk():
    pcie, hgx = by_tag("llama_70b_pcie"), by_tag("llama_70b_hgx")
    assert list(pcie) == list(hgx)

    def exposed(layouts, tag):
        return layouts[tag].step.exposed_communication_seconds

    assert exposed(pcie, "tp8") > 3 * exposed(hgx, "tp8")
    assert exposed(pcie, "tp8") > exposed(pcie, "tp4") > exposed(pcie, "tp2")


def test_an_all_reduce_that_crosses_the_network_costs_more_than_one_that_does_not():
    layouts = by_tag("two_node_h100")
    inside, across = (layouts[tag].step.breakdown["ffn.all_reduce"] for tag in ("tp8", "tp16"))
    assert across > 2 * inside
    assert layouts["tp16"].collectives["ffn.all_reduce"] != layouts["tp8"].collectives["ffn.all_reduce"]
    assert layouts["tp16"].memory.kv_bytes == layouts["tp8"].memory.kv_bytes
