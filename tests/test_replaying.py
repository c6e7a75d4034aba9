"""A scenario's requests on its layouts: what is drawn, what comes out, and the command."""

from __future__ import annotations

import json

import numpy as np
import pytest

from sim import load, parse_scenario, replay
from sim.cli.app import execute
from sim.errors import ScenarioError
from sim.replays.requests import Requests, build

BASE = {
    "model": "llama-3.1-8b",
    "gpu": "h100-sxm",
    "requests": {"rate": 8, "count": 60, "input": {"uniform": [100, 3000]}, "output": {"lognormal": [80, 0.5]}},
    "scheduler": "vllm",
    "slo": {"ttft": "500 ms", "tpot": "20 ms"},
    "layouts": [{"strategy": "tp", "tp": 1, "replicas": 2}, {"strategy": "attention_dp", "dp": 2}],
}


def scenario(**changes):
    return parse_scenario({**BASE, **changes})


def drawn(**fields):
    return build(Requests(**{"count": 4000, "input": 100, "output": 10, "seed": 1, **fields}))


def test_arrivals_keep_their_rate():
    for kind in ("poisson", "gamma", "constant", "burst"):
        times = np.array(drawn(rate=5, arrivals=kind, burstiness=0.5).stream.arrivals)
        assert (np.diff(times) >= 0).all()
        assert len(times) / times[-1] == pytest.approx(5, rel=0.1)
    gaps = np.diff(drawn(rate=5, arrivals="gamma", burstiness=0.25).stream.arrivals)
    assert gaps.var() / gaps.mean() ** 2 == pytest.approx(4, rel=0.2)
    ramp = np.array(drawn(rate=1, rate_end=9, arrivals="ramp").stream.arrivals)
    assert 400 / ramp[400] < 2 < 6 < 400 / (ramp[-1] - ramp[-401])


def test_lengths_have_their_distributions():
    work = drawn(rate=1, input={"uniform": [10, 30]}, output={"lognormal": [200, 0.7], "most": 900})
    prompts, outputs = np.array(work.stream.prompts), np.array(work.stream.outputs)
    assert (prompts.min(), prompts.max()) == (10, 30)
    assert np.median(outputs) == pytest.approx(200, rel=0.05)
    assert outputs.max() == 900
    assert set(drawn(rate=1, input={"values": [7, 9]}).stream.prompts) == {7, 9}


def test_turns_hold_all_that_was_said():
    work = drawn(rate=1, count=30, turns=3, input=1000, output=100, shared_prefix=1024)
    stream = work.stream
    first = [i for i, t in enumerate(stream.arrivals) if not np.isnan(t)]
    assert len(first) == 10
    second, _ = stream.follows[first[0]]
    assert stream.prompts[second] == 1000 + 100 + 1000
    assert stream.hashes
    assert stream.hashes(second)[: len(stream.hashes(first[0]))] == stream.hashes(first[0])
    assert stream.hashes(first[1])[0] == stream.hashes(first[0])[0]


def test_a_replay_is_the_same_every_time_and_step_by_step():
    once, again = replay(scenario()), replay(scenario())
    slow = replay(scenario(), stepwise=True)
    for a, b, c in zip(once.layouts, again.layouts, slow.layouts, strict=True):
        assert a.model_dump(exclude={"wall_s"}) == b.model_dump(exclude={"wall_s"})
        assert list(a.rows()) == list(b.rows())
        times = [[row[key] for row in x.rows() for key in ("ttft_s", "e2e_s")] for x in (a, c)]
        assert times[0] == pytest.approx(times[1], rel=1e-9)


def test_figures_agree_with_the_requests():
    report = replay(scenario(), "tp1x2").layouts[0]
    rows = list(report.rows())
    ends = [row["arrival_s"] + row["e2e_s"] for row in rows]
    span = max(ends) - min(row["arrival_s"] for row in rows)
    assert report.requests == len(rows) == 60
    assert report.duration_s == pytest.approx(span)
    assert report.output_tokens_per_s == pytest.approx(sum(row["output_tokens"] for row in rows) / span)
    assert report.output_tokens_per_s_per_gpu == pytest.approx(report.output_tokens_per_s / 2)
    assert report.ttft_s.p90 == pytest.approx(np.percentile([row["ttft_s"] for row in rows], 90))
    good = [row for row in rows if row["ttft_s"] <= 0.5 and (row["tpot_s"] or 0) <= 0.02]
    assert report.goodput == pytest.approx(len(good) / span)
    assert report.itl_s.mean == pytest.approx(
        sum((r["tpot_s"] or 0) * (r["output_tokens"] - 1) for r in rows) / sum(r["output_tokens"] - 1 for r in rows),
        rel=0.01,
    )
    assert report.in_system * max(ends) == pytest.approx(sum(row["e2e_s"] for row in rows), rel=1e-6)


def test_more_load_never_shortens_the_wait():
    waits = []
    for rate in (2, 8, 32, 128):
        asked = {**BASE["requests"], "rate": rate}
        waits.append(replay(scenario(requests=asked), "tp1x2").layouts[0].e2e_s.mean)
    assert waits == sorted(waits)


def test_pools_send_caches_and_keep_their_gpus():
    pools = {"prefill": {"strategy": "tp", "tp": 1, "replicas": 2}, "transfer": "whole"}
    report = replay(scenario(disaggregation=pools), "tp1x2").layouts[0]
    assert report.gpus == 4
    tokens = sum(row["input_tokens"] for row in report.rows() if row["output_tokens"] > 1)
    assert report.transferred_bytes == tokens * 32 * 2 * 8 * 128 * 2
    layerwise = replay(scenario(disaggregation={**pools, "transfer": "layerwise"}), "tp1x2").layouts[0]
    assert layerwise.e2e_s.mean < report.e2e_s.mean


def test_a_stopped_run_says_what_it_had():
    report = replay(scenario(), "tp1x2", until=3.0).layouts[0]
    assert report.stopped
    assert report.requests + report.unfinished == sum(1 for _ in report.rows())
    assert report.unfinished > 0


def test_a_layout_without_room_is_a_row_with_a_reason():
    result = replay(scenario(model="llama-3.1-70b", layouts=[{"strategy": "tp", "tp": 1}, {"strategy": "tp", "tp": 4}]))
    assert [one.feasible for one in result.layouts] == [False, True]
    assert "needs 1" in result.layouts[0].reasons[0]


def test_what_is_missing_is_said():
    with pytest.raises(ScenarioError, match="says no requests"):
        replay(load("llama_70b_hgx"))
    for asked, said in (
        ({"rate": 1, "concurrency": 2, "input": 1, "output": 1}, "keep one of them"),
        ({"input": 1, "output": 1}, "needs concurrency, rate or trace"),
        ({"rate": 1, "input": 1}, "needs the lengths input and output"),
        ({"rate": 1, "input": {"uniform": [5, 2]}, "output": 1}, "requests.input"),
        ({"rate": 1, "input": 1, "output": 1, "format": "x"}, "choose one of mooncake"),
    ):
        with pytest.raises(ScenarioError, match=said):
            scenario(requests=asked)
    with pytest.raises(ScenarioError, match="did you mean 'vllm'"):
        scenario(scheduler="vlm")
    with pytest.raises(ScenarioError, match=r"disaggregation.prefill.tp: 7"):
        scenario(disaggregation={"prefill": {"strategy": "tp", "tp": 7}})


def test_a_scenario_with_requests_reads_back():
    one = scenario(disaggregation={"prefill": {"strategy": "tp", "tp": 2}}, plan={"gpus": 8})
    assert parse_scenario(one.resolved()).resolved() == one.resolved()


def test_a_trace_beside_the_scenario(tmp_path, capsys):
    (tmp_path / "trace.csv").write_text("arrival,input,output\n0,100,5\n0.5,200,6\n")
    text = "model: llama-3.1-8b\ngpu: h100-sxm\nrequests: {trace: trace.csv, format: lengths}\n"
    (tmp_path / "s.yaml").write_text(text + "layouts: [{strategy: tp, tp: 1}]\n")
    assert execute(["replay", str(tmp_path / "s.yaml"), "--jsonl"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(r["arrival_s"], r["input_tokens"], r["output_tokens"]) for r in rows] == [(0, 100, 5), (0.5, 200, 6)]


def test_the_command_prints_a_table_json_and_csv(tmp_path, capsys):
    (tmp_path / "s.yaml").write_text(
        "model: llama-3.1-8b\ngpu: h100-sxm\nrequests: {concurrency: 4, count: 12, input: 500, output: 20}\n"
        "slo: {ttft: 1 s}\nlayouts: [{strategy: tp, tp: 1}]\n"
    )
    assert execute(["replay", str(tmp_path / "s.yaml")]) == 0
    shown = capsys.readouterr().out
    assert "12 requests · 4 at once · input 500 · output 20" in shown
    assert "Most output per GPU within the SLO: tp1" in shown
    assert execute(["replay", str(tmp_path / "s.yaml"), "--json"]) == 0
    row = json.loads(capsys.readouterr().out)["layouts"][0]
    keys = (
        "requests duration_s ttft_s tpot_s output_tokens_per_s output_tokens_per_s_per_gpu goodput preemptions wall_s"
    )
    assert set(keys.split()) <= row.keys()
    assert {"p50", "p90", "p99"} <= row["ttft_s"].keys()
    assert execute(["replay", str(tmp_path / "s.yaml"), "--csv"]) == 0
    assert capsys.readouterr().out.startswith("tag,gpus,feasible")
    assert execute(["replay", str(tmp_path / "s.yaml"), "--csv", "--json"]) == 2


def test_accepted_drafts_make_answers_faster_and_cost_their_draft():
    plain = replay(scenario(), "tp1x2").layouts[0]
    free = {"draft_tokens": 3, "acceptance": 0.8}
    looked_up = replay(scenario(speculation=free), "tp1x2").layouts[0]
    head = replay(scenario(speculation={**free, "layers": 1}), "tp1x2").layouts[0]
    assert looked_up.tpot_s.mean < head.tpot_s.mean < plain.tpot_s.mean
    assert looked_up.steps < plain.steps
