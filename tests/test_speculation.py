"""Speculative decoding: tokens a step, what drafting costs in time and memory, and where more drafts stop paying."""

from __future__ import annotations

import pytest

from sim.errors import InputError
from sim.run import compare, simulate
from sim.scenario import parse_scenario
from sim.speculation import Speculation

BASE = {
    "model": "llama-3.1-70b",
    "gpu": "h100-sxm",
    "topology": "hgx-8",
    "precision": {"weights": "fp8", "kv_cache": "fp8"},
    "workload": {"phase": "decode", "batch": 16, "context": 8192},
    "layouts": [{"strategy": "tp", "tp": 8}],
}


def speculating(**fields):
    said = {"draft_tokens": 3, "acceptance": 0.7} | fields
    return parse_scenario(BASE | {"speculation": said})


def report_of(scenario):
    return simulate(scenario, scenario.layouts[0])


def test_tokens_per_step_are_a_geometric_sum_or_a_sum_of_positions():
    rate = Speculation(draft_tokens=3, acceptance=0.5)
    assert [rate.tokens_per_step(d) for d in range(4)] == [1, 1.5, 1.75, 1.875]
    positions = Speculation(draft_tokens=3, acceptance=(0.9, 0.6, 0.3))
    assert positions.tokens_per_step(3) == pytest.approx(2.8)
    assert positions.tokens_per_step(1) == pytest.approx(1.9)
    assert Speculation(draft_tokens=5, acceptance=1.0).tokens_per_step(5) == 6


def test_looked_up_drafts_cost_nothing_but_their_verification():
    report = report_of(speculating())
    s = report.speculation
    assert s.draft_seconds == 0
    assert report.memory.draft_bytes == 0
    assert s.verify_seconds == report.step.seconds > s.plain_seconds
    assert s.tpot_seconds == pytest.approx(s.verify_seconds / (1 + 0.7 + 0.49 + 0.343))
    assert report.tokens_per_s_per_user == pytest.approx(1 / s.tpot_seconds)
    assert s.plain_seconds == report_of(parse_scenario(BASE)).step.seconds


def test_nothing_accepted_never_pays_and_everything_always_does():
    worst, best = (report_of(speculating(acceptance=a)).speculation for a in (0.0, 1.0))
    assert worst.best_draft_tokens == 0
    assert worst.speedup < 1
    assert best.best_draft_tokens >= 8
    assert best.speedup > 2


def test_a_draft_layer_holds_one_layer_and_its_cache():
    report = report_of(speculating(layers=1))
    layer = 8192 * (8192 + 2 * 1024) // 8 + 8192 * 8192 // 8 + 3 * 8192 * 28672 // 8
    norms = 2 * 8192 * 2
    cache = 16 * 8192 * 2 * 128
    final_norm = 8192 * 2
    assert report.memory.draft_bytes - layer - norms - cache in (0, final_norm)
    total = report_of(parse_scenario(BASE | {"workload": BASE["workload"] | {"query_tokens": 4}})).memory.total_bytes
    assert report.memory.total_bytes == total + report.memory.draft_bytes


def test_a_larger_draft_costs_more_and_pays_for_fewer_tokens():
    layer, model, wide = (
        report_of(speculating(**draft)).speculation
        for draft in ({"layers": 1}, {"model": "llama-3.1-8b"}, {"layers": 1, "ffn_width": 57344})
    )
    assert 0 < layer.draft_seconds < wide.draft_seconds < model.draft_seconds
    assert model.best_draft_tokens <= layer.best_draft_tokens


def test_a_draft_may_have_a_layout_of_its_own():
    own = report_of(speculating(model="llama-3.1-8b", layout={"strategy": "tp", "tp": 1}))
    same = report_of(speculating(model="llama-3.1-8b"))
    assert own.memory.draft_bytes > 7 * same.memory.draft_bytes


def test_a_draft_sits_on_the_last_stage():
    scenario = parse_scenario(
        BASE
        | {
            "speculation": {"draft_tokens": 3, "acceptance": 0.7, "layers": 1},
            "layouts": [{"strategy": "tp", "tp": 4, "pp": 2}],
        }
    )
    report = report_of(scenario)
    assert [group.total_bytes > 0 for group in report.ranks] == [True, True]
    assert report.memory.draft_bytes > 0
    assert report.speculation.draft_seconds > 0


def test_findings_say_where_more_drafts_stop_paying():
    lines = compare(speculating(layers=1)).findings
    (line,) = [line for line in lines if "drafts yield" in line]
    assert "3 drafts yield 2.53 tokens a step" in line
    assert "are the most that pay" in line


def test_a_resolved_scenario_reads_back():
    scenario = speculating(model="llama-3.1-8b", layout={"strategy": "tp", "tp": 1})
    assert parse_scenario(scenario.resolved()) == scenario


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"layers": 1, "model": "llama-3.1-8b"}, "exclude each other"),
        ({"acceptance": [0.5, 0.7, 0.2]}, "cannot rise"),
        ({"acceptance": [0.5]}, "lists 1 of 3"),
        ({"ffn_width": 128}, "belongs to draft layers"),
        ({"layout": {"strategy": "tp", "tp": 1}}, "layout belongs to a draft"),
        ({"model": "no-such-model"}, "not in the catalogue"),
    ],
)
def test_what_speculation_cannot_be(fields, message):
    with pytest.raises(InputError, match=message):
        speculating(**fields)


def test_a_draft_that_the_layout_cannot_run_says_so():
    scenario = parse_scenario(
        BASE | {"speculation": {"draft_tokens": 1, "acceptance": 0.5, "model": "qwen2.5-7b-instruct"}}
    )
    with pytest.raises(InputError, match=r"the draft cannot run so: .*give the draft a layout of its own"):
        report_of(scenario)


def test_the_workload_may_not_say_otherwise():
    with pytest.raises(InputError, match="2 differs from the 4 of speculation"):
        parse_scenario(
            BASE
            | {
                "workload": BASE["workload"] | {"query_tokens": 2},
                "speculation": {"draft_tokens": 3, "acceptance": 0.5},
            }
        )
    with pytest.raises(InputError, match="belongs to decode"):
        parse_scenario(
            BASE
            | {
                "workload": {"phase": "prefill", "batch": 1, "context": 100},
                "speculation": {"draft_tokens": 3, "acceptance": 0.5},
            }
        )
