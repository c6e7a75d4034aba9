"""Plans: bounds that never rule out what works, the cheapest answer found, and the command."""

from __future__ import annotations

import json

import pytest

from sim import parse_scenario, plan, replay
from sim.cli.app import execute
from sim.errors import ScenarioError
from sim.planner.bounds import bound
from sim.planner.candidates import degrees_of, layouts
from sim.planning import Search
from sim.replays.fleet import instance

BASE = {
    "model": "llama-3.1-8b",
    "gpu": "h100-sxm",
    "requests": {"rate": 30, "count": 150, "input": 2000, "output": 60},
    "scheduler": "vllm",
    "slo": {"ttft": "500 ms", "tpot": "30 ms"},
    "plan": {"gpus": 8, "price_per_gpu_hour": 2.0, "answers": 2},
    "layouts": [{"strategy": "tp", "tp": 1}],
}


def scenario(**changes):
    return parse_scenario({**BASE, **changes})


def test_degrees_are_found_by_their_rules():
    assert degrees_of("tp") == ["tp", "ep"]
    assert degrees_of("attention_dp") == ["dp", "tp", "ep"]


def test_every_layout_exists():
    model = scenario().model
    found = [one.label for one in layouts(model, ("tp", "attention_dp"), 8, 1, "decode")]
    assert [tag for tag in found if tag.startswith("tp")] == ["tp1", "tp2", "tp4", "tp8"]
    assert "dp2-tp4" in found
    assert "dp4-tp4" not in found


@pytest.mark.parametrize("preset", ["vllm", "sglang", "trtllm"])
def test_no_replay_beats_the_bound(preset):
    """At any load, requests a second of one instance stay below what the bound allows."""
    for strategy in ({"strategy": "tp", "tp": 1}, {"strategy": "attention_dp", "dp": 2}):
        for output in (2, 60, 400):
            asked = {"concurrency": 300, "count": 600, "input": 2000, "output": output}
            one = scenario(requests=asked, scheduler=preset, layouts=[strategy])
            search = Search(scenario(requests={"rate": 1, **{k: asked[k] for k in ("count", "input", "output")}}))
            made = instance(search.place, one.layouts[0], one.scheduler, 3000)
            most = bound(made, one.scheduler, search.work, search.slo)
            assert replay(one).layouts[0].requests_per_s <= most.rate


def test_the_answer_keeps_the_slo_and_fewer_instances_do_not():
    one = scenario()
    result = plan(one)
    assert result.complete
    assert [d.gpus for d in result.deployments] == sorted(d.gpus for d in result.deployments)
    best = result.deployments[0]
    again = replay(
        one.model_copy(update={"layouts": ()}), parse_scenario({**BASE, "layouts": [best.layout]}).layouts[0]
    )
    assert again.layouts[0].slo_met
    assert again.layouts[0].ttft_s == best.replay.ttft_s
    assert best.cost_per_hour == 2.0 * best.gpus
    fewer = dict(best.layout)
    if fewer.get("replicas", 1) > 1:
        fewer["replicas"] -= 1
        assert not replay(one, parse_scenario({**BASE, "layouts": [fewer]}).layouts[0]).layouts[0].slo_met


def test_pools_are_searched_when_asked():
    result = plan(scenario(plan={"gpus": 4, "disaggregated": True, "answers": 30}))
    assert any(d.prefill and d.ratio for d in result.deployments)


def test_an_slo_that_nothing_keeps_says_why():
    result = plan(scenario(slo={"ttft": "1 ms"}))
    assert result.deployments == ()
    assert "alone takes" in result.reasons[0]
    assert result.ruled_out == result.considered > 0


def test_a_plan_needs_a_rate_and_an_slo():
    with pytest.raises(ScenarioError, match="needs requests and an slo"):
        plan(scenario(slo=None))
    with pytest.raises(ScenarioError, match="needs the rate"):
        plan(scenario(requests={"concurrency": 3, "input": 1, "output": 1}))


def test_interrupting_leaves_what_was_found(monkeypatch):
    calls = []
    original = Search.replay

    def replayed(self, candidate, factor=1.0):
        calls.append(candidate)
        if len(calls) > 12:
            raise KeyboardInterrupt
        return original(self, candidate, factor)

    monkeypatch.setattr(Search, "replay", replayed)
    result = plan(scenario(plan={"gpus": 8, "answers": 50}))
    assert not result.complete
    assert result.deployments


def test_the_command(tmp_path, capsys):
    path = tmp_path / "s.yaml"
    path.write_text(json.dumps({**BASE, "requests": {**BASE["requests"], "count": 40}}))
    assert execute(["plan", str(path)]) == 0
    assert "ruled out without a replay" in capsys.readouterr().out
    assert execute(["plan", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["deployments"]
    assert execute(["plan", str(path), "--csv"]) == 0
    assert "layout.strategy" in capsys.readouterr().out
