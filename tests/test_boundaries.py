"""Where folding, sweeps and limits meet odd machines and layouts: one answer, whichever way it is asked."""

from __future__ import annotations

import pytest

from sim import InputError, parse_scenario, simulate
from sim.catalog.gpus import load_gpu
from sim.catalog.models import load_model
from sim.catalog.topologies import parse_topology
from sim.errors import LayoutError, ProgramError
from sim.evaluate import Evaluation
from sim.placement import Placement
from sim.run import assumptions, evaluate, machine
from sim.sweep import sweep
from sim.testing import SAMPLE_MODELS, sample_machine
from sim.workload import Precision, Workload
from strategies.attention_dp import AttentionDataParallel
from strategies.dcp import DecodeContextParallel
from strategies.helix import Helix
from strategies.kvp import KvParallel
from strategies.tp import TensorParallel
from strategies.wide_ep import WideExpertParallel

TWO_BOXES = {"kind": "cluster", "nodes": 2, "node": "hgx-8", "nic": "400 Gb/s"}
FP8 = Precision(weights="fp8")


def on(gpu, topology):
    return machine(load_gpu(gpu), parse_topology(topology))


@pytest.mark.parametrize(
    "strategy", [WideExpertParallel(dp=4, tp=3), AttentionDataParallel(dp=4, tp=3, ep=12)], ids=lambda s: s.label
)
def test_a_sweep_sees_groups_that_straddle_two_boxes(strategy):
    placed = Placement(load_model("minimax-m2.7"), strategy, FP8)
    here = on("h100-sxm", TWO_BOXES)
    point = sweep(placed, here, 64, 8192).seconds[0]
    for granularity in ("folded", "ranks"):
        step = Evaluation(placed, here, Workload(batch=64, context=8192), granularity=granularity).step()
        assert point == pytest.approx(step.seconds, rel=1e-9)


@pytest.mark.parametrize("strategy", [TensorParallel(tp=4, pp=2), TensorParallel(tp=2, pp=4)], ids=lambda s: s.label)
@pytest.mark.parametrize(("gpu", "topology"), [("v100-sxm2-32gb", "dgx1"), ("l40s", "pcie-8")])
def test_stages_on_unequal_links_fold_to_the_same_step(strategy, gpu, topology):
    placed = Placement(load_model("llama-3.3-70b"), strategy, FP8)
    work = Workload(batch=8, context=8192)
    one, every = (Evaluation(placed, on(gpu, topology), work, granularity=g).step() for g in ("folded", "ranks"))
    assert one.seconds == pytest.approx(every.seconds, rel=1e-9)


@pytest.mark.parametrize("context", [16, 300, 5000])
@pytest.mark.parametrize("rule", ["contiguous", "round_robin", "prompt_decode"])
@pytest.mark.parametrize("name", ["windowed", "gqa"])
def test_limits_are_those_of_the_rank_that_is_fullest_at_the_limit(context, rule, name):
    strategy = Helix(tpa=2, kvp=4, ownership=rule, block=8)
    placed, here = Placement(SAMPLE_MODELS[name], strategy, Precision()), sample_machine(8)
    work = Workload(batch=64, context=context)
    folded, ranks = (Evaluation(placed, here, work, granularity=g).memory() for g in ("folded", "ranks"))
    assert folded == ranks


def test_a_sweep_refuses_what_64_bits_cannot_hold_and_what_is_no_whole_number():
    placed, here = Placement(SAMPLE_MODELS["gqa"], TensorParallel(tp=2), Precision()), sample_machine(2)
    with pytest.raises(InputError, match="too large for 64-bit arithmetic"):
        sweep(placed, here, 10**9, 2**40)
    for bad in (1.5, float("nan"), "8", [1, 2.5], 2**80):
        with pytest.raises(InputError, match="whole numbers"):
            sweep(placed, here, bad, 1024)
    assert sweep(placed, here, [1.0, 2.0], 1024).seconds.shape == (2,)


def test_halves_of_a_batch_need_whole_tokens():
    layout = Helix(dp=2, tpa=1, kvp=4, ep=8, two_batch_overlap=True)
    (problem,) = layout.check(load_model("deepseek-r1"))
    assert problem.key == "two_batch_overlap"
    assert "sliced over kvp" in problem.message
    assert not Helix(tpa=1, kvp=8, ep=8, two_batch_overlap=True).check(load_model("deepseek-r1"))


def test_no_expert_rank_can_get_more_than_every_token():
    model = load_model("mixtral-8x7b-v0.1")  # one expert a rank, two per token: at most every token, 4 x the mean
    assert not WideExpertParallel(dp=8, imbalance=4).check(model)
    (problem,) = WideExpertParallel(dp=8, imbalance=4.01).check(model)
    assert problem.message == "4.01 is more than all tokens on one rank; at most 4 is possible"


def test_engines_rules_are_said_once_and_in_one_order():
    notes = DecodeContextParallel(tp=8, dcp=2).engine_notes(load_model("gpt-oss-120b"))
    assert len(notes) == len(set(notes)) == 2
    assert notes[1] == "vLLM refuses dcp on sliding-window layers"


@pytest.fixture
def scenario():
    return parse_scenario(
        {
            "model": "deepseek-r1",
            "gpu": "h200-sxm",
            "topology": "hgx-8",
            "workload": {"batch": 8, "context": "1M"},
            "layouts": [{"strategy": "tp", "tp": 8}],
        }
    )


@pytest.mark.parametrize(
    "layout",
    [
        TensorParallel(tp=8, ep=3),
        DecodeContextParallel(tp=8, dcp=3),
        KvParallel(kvp=1, tp=1, ep=2),
        TensorParallel(tp=3),
        TensorParallel(tp=65536),
        TensorParallel(tp=16),
        Helix(kvp=65536, tpa=64),
    ],
    ids=lambda s: s.label,
)
def test_python_users_get_the_reasons_too(scenario, layout):
    with pytest.raises(LayoutError):
        simulate(scenario, layout)


class HoldsHalf(TensorParallel):
    """A plug-in whose cache has half of the tokens nowhere."""

    kind = "holds_half"

    def cut(self, model):
        from dataclasses import replace

        from sim.ownership import Ownership

        class Half(Ownership):
            def held(self, context, ranks, rank, generated=0, below=None):
                return (context if below is None else below) // 2

        return replace(super().cut(model), ownership=Half())


def test_less_than_one_copy_of_the_cache_is_a_bug_of_the_strategy(scenario):
    with pytest.raises(ProgramError, match="one copy is"):
        simulate(scenario, HoldsHalf(tp=1))


def test_assumptions_say_at_which_rate_attention_and_products_run(scenario):
    fp8 = scenario.model_copy(update={"precision": Precision(weights="mxfp4", kv_cache="fp8")})
    said = assumptions(fp8)
    assert said["attention arithmetic"] == "at the fp8 rate, because the cache is fp8"
    assert said["matrix rate"] == "h200-sxm does not multiply fp4: the next wider rate it has is taken"


def test_a_context_beyond_the_checkpoint_is_said(scenario):
    from sim import compare

    assert any("beyond the 163,840 positions" in line for line in compare(scenario).not_modelled)


def test_prefill_counts_prompt_tokens_per_user(scenario):
    work = Workload(phase="prefill", batch=4, context=1000)
    report = simulate(scenario.model_copy(update={"workload": work}), TensorParallel(tp=8))
    assert report.tokens_per_s_per_user == pytest.approx(1000 / report.step.seconds)


def test_hop_b_says_what_it_chose():
    from sim.findings import pieces

    scenario = parse_scenario(
        {
            "model": "llama-3.1-405b",
            "gpu": "gb200",
            "topology": "nvl72",
            "workload": {"batch": 8, "context": "128k"},
            "layouts": [{"strategy": "helix", "tpa": 8, "kvp": 8}],
        }
    )
    evaluation = evaluate(scenario, scenario.layouts[0])
    line = pieces(evaluation, evaluation.report())
    assert line.startswith("tpa8-kvp8: ")
    assert "HOP-B" in line
