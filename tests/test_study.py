"""Studies: what they hold, how they are priced, kept, resumed and read."""

from __future__ import annotations

import sys
from concurrent.futures import Executor, Future, ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim import load, parse_scenario
from sim.catalog.models import load_model
from sim.catalog.scenarios import find_study, study_names
from sim.catalog.strategies import load_strategy, strategy_names
from sim.cli.app import execute
from sim.errors import InputError, LostPartsError, ScenarioError
from sim.placement import Placement
from sim.run import evaluate, machine
from sim.study.constraints import parse_condition
from sim.study.definition import Study, load_study
from sim.study.layouts import AllLayouts
from sim.sweep import sweep
from sim.workload import Workload

BASE = {
    "model": "qwen3-32b",
    "gpu": "h100-sxm",
    "topology": "hgx-8",
    "workload": {"phase": "decode", "batch": 8, "context": "8k"},
}


def small(**changes):
    fields = {
        "base": BASE,
        "vary": {"workload.batch": [1, 64, 4096]},
        "all_layouts": AllLayouts(up_to=4, strategies=("tp", "helix")),
    }
    return Study(**{**fields, **changes})


# -- layouts -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama-3.1-405b", "deepseek-r1"])
def test_the_search_finds_exactly_the_valid_layouts(name):
    model, most = load_model(name), 8
    found = list(AllLayouts(up_to=most, degrees={"pp": (1, 2)}).find(model))
    assert len(set(found)) == len(found)
    assert {layout.kind for layout in found} <= set(strategy_names())
    for layout in found:
        assert layout.check(model) == []
        assert layout.gpus(model) <= most
    helix = {(x.tpa, x.kvp, x.dp, x.ep, x.pp) for x in found if x.kind == "helix"}
    sizes = (1, 2, 4, 8)
    every = [(a, k, d, e, p) for a in sizes for k in sizes for d in sizes for e in sizes for p in (1, 2)]
    cls = load_strategy("helix")
    for a, k, d, e, p in every:
        layout = cls(tpa=a, kvp=k, dp=d, ep=e, pp=p)
        valid = not layout.reasons(model) and layout.gpus(model) <= most and not layout.check(model)
        assert ((a, k, d, e, p) in helix) == valid


def test_options_are_tried_and_unknown_ones_refused():
    model = load_model("llama-3.1-405b")
    both = AllLayouts(up_to=8, strategies=("helix",), options={"helix": {"hop_b": (True, False)}})
    assert len(list(both.find(model))) == 2 * len(list(AllLayouts(up_to=8, strategies=("helix",)).find(model)))
    with pytest.raises(InputError, match=r"options\.helix\.hopb"):
        list(AllLayouts(up_to=8, options={"helix": {"hopb": (True,)}}).find(model))
    with pytest.raises(InputError, match="no strategy has the degree 'tpp'"):
        list(AllLayouts(up_to=8, degrees={"tpp": (1,)}).find(model))


# -- memory of a sweep ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama_405b_1m_nvl72", "deepseek_r1_1m_nvl72"])
def test_a_sweep_holds_what_the_evaluation_holds(name):
    scenario = load(name)
    at = machine(scenario.gpu, scenario.topology, scenario.conditions)
    layouts = list(AllLayouts(up_to=16).find(scenario.model))[::37]
    batch, context = [1, 7, 300], [1000, 2**20, 70_001]
    for layout in layouts:
        placement = Placement(scenario.model, layout, scenario.precision.resolve(scenario.model))
        found = sweep(placement, at, batch, context, usable_memory=scenario.usable_memory)
        for i, (b, c) in enumerate(zip(batch, context, strict=True)):
            one = evaluate(scenario.model_copy(update={"workload": Workload(batch=b, context=c)}), layout)
            assert found.total_bytes[i] == one.fullest.total(one.replica)
            assert found.pieces[i] == one.best.pieces
            assert found.seconds[i] == pytest.approx(one.best.seconds, rel=1e-9)


# -- definition ----------------------------------------------------------------------------------------------


def test_parts_hold_every_layout_of_every_scenario_once():
    study = small(vary={"gpu": ["h100-sxm", "h200-sxm"], "workload.batch": [1, 2]})
    each = len(study.layouts(study.scenario(next(study.tasks()).change)))
    parts, layouts, points = study.count()
    assert (layouts, points) == (2 * each, 4 * each)
    places = [(t.change, i) for part in study.parts() for t in part for i in range(t.first, t.last)]
    assert len(set(places)) == len(places) == layouts
    assert parts == len(list(study.parts()))


def test_shipped_studies_can_be_read():
    assert study_names()
    for name in study_names():
        assert load_study(name).count()[2] > 0
        assert find_study(name).read_text().startswith("# ")


def test_problems_of_a_study_file_have_their_line(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text(
        "base: qwen3_235b_8xh200\nvary:\n  workload.batch: 3\n"
        "constraints: [TPOT under 3]\nobjectives: [speed]\nfoo: 1\n"
    )
    with pytest.raises(ScenarioError) as caught:
        load_study(path)
    assert f"{path}:6:1: foo: unknown key" in str(caught.value)
    path.write_text(path.read_text().replace("foo: 1\n", ""))
    with pytest.raises(ScenarioError, match=f"{path}:3:3: vary.workload.batch: must be a list"):
        load_study(path)
    path.write_text("base: qwen3_235b_8xh200\nconstraints: [TPOT under 3]\nobjectives: [speed]\n")
    with pytest.raises(ScenarioError, match="is not a condition") as caught:
        load_study(path)
    assert "s.yaml:3:14: objectives.0: 'speed > 0': no column is called 'speed'" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "column", "value"),
    [
        ("fits", "feasible", True),
        ("TPOT <= 20 ms", "tpot_seconds", 0.02),
        ("GPUs <= 32", "gpus", 32),
        ("context>=1M", "context", 2**20),
    ],
)
def test_conditions(text, column, value):
    found = parse_condition(text, ["feasible", "tpot_seconds", "gpus", "context"])
    assert (found.column, found.value) == (column, value)


# -- pricing -------------------------------------------------------------------------------------------------


def test_rows_say_what_the_simulator_says():
    from sim.study.price import price

    study = small(constraints=("fits", "TPOT <= 20 ms"))
    (part,) = list(study.parts())
    rows = price(study, part)
    scenario = parse_scenario({**BASE, "layouts": [{"strategy": "tp", "tp": 1}]})
    layouts = {layout.label: layout for layout in study.layouts(scenario)}
    for i in range(0, len(rows["layout"]), 5):
        work = Workload(batch=rows["batch"][i], context=8192)
        one = evaluate(scenario.model_copy(update={"workload": work}), layouts[rows["layout"][i]]).report()
        assert rows["step_seconds"][i] == pytest.approx(one.step.seconds, rel=1e-9)
        assert rows["output_tokens_per_s_per_gpu"][i] == pytest.approx(one.output_tokens_per_s_per_gpu, rel=1e-9)
        assert rows["feasible"][i] == one.feasible
        assert bool(rows["reason"][i]) == (not one.feasible)
        assert rows["meets"][i] == (one.feasible and one.step.seconds <= 0.02)


def test_what_cannot_be_is_a_row_with_the_reason():
    from sim.study.price import price

    study = small(
        base={**BASE, "layouts": [{"strategy": "tp", "tp": 2}]},
        all_layouts=None,
        vary={"layouts.0.tp": [1, 3, 16, 8], "workload.batch": [1, 2]},
    )
    rows = [price(study, part) for part in study.parts()]
    reasons = [text for part in rows for text in part["reason"]]
    assert len(reasons) == study.count()[2] == 8
    assert sum("do not divide" in text for text in reasons) == 2
    assert sum("needs 16 GPUs" in text for text in reasons) == 2


def test_an_error_of_one_layout_leaves_the_others(monkeypatch):
    from sim.study import price as pricing

    study = small()
    swept = pricing._swept

    def broken(scenario, layout, gpus, points):
        if layout.label == "tp2":
            raise ZeroDivisionError("a bug")
        return swept(scenario, layout, gpus, points)

    monkeypatch.setattr(pricing, "_swept", broken)
    (part,) = list(study.parts())
    rows = pricing.price(study, part)
    errors = {(layout, error) for layout, error in zip(rows["layout"], rows["error"], strict=True) if error}
    assert errors == {("tp2", "ZeroDivisionError: a bug")}


# -- keeping -------------------------------------------------------------------------------------------------


def content(folder):
    return {p.relative_to(folder): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def spread():
    """Several small parts."""
    return small(
        vary={"workload.batch": [1, 8], "usable_memory": [0.8, 0.85, 0.9, 0.95]}, all_layouts=AllLayouts(up_to=4)
    )


def test_a_run_that_was_stopped_ends_in_the_same_bytes(tmp_path):
    from sim.study.execute import run

    study = spread()
    assert study.count()[0] > 3
    run(study, tmp_path / "whole", workers=1)

    class StopError(Exception):
        pass

    def stop(now):
        if now.done == 2:
            raise StopError

    with pytest.raises(StopError):
        run(study, tmp_path / "again", workers=1, report=stop)
    assert len(list((tmp_path / "again" / "parts").iterdir())) == 2
    (tmp_path / "again" / "parts" / ".part-killed").write_bytes(b"half")
    run(study, tmp_path / "again", workers=1)
    assert content(tmp_path / "again") == content(tmp_path / "whole")


def test_shards_two_runs_and_other_executors_write_the_same_bytes(tmp_path):
    from sim.study.execute import run

    study = spread()
    run(study, tmp_path / "whole", workers=1)
    for i in (1, 2, 3):
        run(study, tmp_path / "shards", workers=1, shard=(i, 3))
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(run, study, tmp_path / "both", workers=1) for _ in range(2)]
        assert all(one.result() for one in both)
    assert content(tmp_path / "shards") == content(tmp_path / "both") == content(tmp_path / "whole")


def test_a_lost_part_is_priced_again_and_counted_once(tmp_path):
    from sim.study.execute import InProcess, run

    class Flaky(InProcess):
        calls = 0

        def submit(self, fn, /, *args, **kwargs):
            self.calls += 1
            if self.calls % 3 == 1:
                return super().submit(lambda: 1 / 0)
            return super().submit(fn, *args, **kwargs)

    study = spread()
    progress = []
    run(study, tmp_path / "whole", workers=1)
    run(study, tmp_path / "flaky", Flaky(), report=progress.append)
    assert content(tmp_path / "flaky") == content(tmp_path / "whole")
    assert progress[-1].retried > 0
    assert progress[-1].points == study.count()[2]


class Broken(Executor):
    """Every call ends in the same error."""

    def __init__(self, error):
        self.error, self.calls = error, 0

    def submit(self, fn, /, *args, **kwargs):
        self.calls += 1
        future = Future()
        future.set_exception(self.error)
        return future


def test_parts_that_are_lost_again_and_again_end_in_one_line_with_the_cause(tmp_path, monkeypatch, capsys):
    from sim.study import execute as module

    gone = Broken(MemoryError("no room"))
    with pytest.raises(LostPartsError, match=f"{spread().count()[0]} parts .* The last one: MemoryError: no room"):
        module.run(spread(), tmp_path / "gone", gone)
    assert gone.calls == module.TRIES * spread().count()[0]
    lacking = Broken(InputError("pyarrow is not here"))
    with pytest.raises(InputError, match="pyarrow is not here"):
        module.run(spread(), tmp_path / "lacking", lacking)
    monkeypatch.setattr(module, "InProcess", lambda: gone)
    assert execute(["study", "qwen3_32b_32xh200", "--workers", "1", "--out", str(tmp_path / "cli")]) == 1
    assert capsys.readouterr().err.splitlines()[-1].endswith("The last one: MemoryError: no room")


def test_what_is_not_installed_is_said_before_anything_runs(tmp_path, monkeypatch):
    from sim.study.execute import run

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    idle = Broken(MemoryError())
    with pytest.raises(InputError, match=r"pip install 'shardwise\[study\]', or in a checkout -e '.\[study\]'"):
        run(spread(), tmp_path / "nothing", idle)
    assert idle.calls == 0


def test_another_study_does_not_mix_with_a_folder(tmp_path):
    from sim.study.execute import run

    run(small(), tmp_path, workers=1)
    with pytest.raises(InputError, match="holds another study"):
        run(small(constraints=("fits",)), tmp_path, workers=1)


# -- reading -------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=30))
def test_a_front_is_what_nothing_beats(points):
    from sim.study.results import front

    x, y = np.array([p[0] for p in points], float), np.array([p[1] for p in points], float)
    found = {points[i] for i in front(x, y)}
    beaten = {p for p in points if any(q != p and q[0] >= p[0] and q[1] >= p[1] for q in points)}
    assert found == set(points) - beaten
    assert len(front(x, y)) == len(found)


def test_results_filter_rank_and_leave_the_folder(tmp_path):
    from sim.study.execute import run
    from sim.study.results import Results, difference

    study = small(constraints=("fits",))
    run(study, tmp_path / "a", workers=1)
    every, kept = Results.open(tmp_path / "a", every=True), Results.open(tmp_path / "a")
    assert len(every) == study.count()[2] > len(kept) > 0
    two = Results.open(tmp_path / "a", ["gpus <= 2", "strategy == tp"])
    assert set(two.column("gpus")) <= {1, 2}
    assert set(two.column("strategy")) == {"tp"}
    best = kept.top("tpot_seconds", 1)
    assert best.column("tpot_seconds")[0] == min(kept.column("tpot_seconds"))
    front = kept.pareto("tokens_per_s_per_user", "output_tokens_per_s_per_gpu")
    assert front.column("tokens_per_s_per_user")[0] == max(kept.column("tokens_per_s_per_user"))
    assert np.all(np.diff(front.column("output_tokens_per_s_per_gpu")) > 0)
    front.write(tmp_path / "front.csv")
    assert len((tmp_path / "front.csv").read_text().splitlines()) == len(front) + 1
    assert all(row["moved"] == 0 for row in difference(kept, kept, "output_tokens_per_s_per_gpu"))
    with pytest.raises(InputError, match="no column is called 'speed'"):
        kept.top("speed")
