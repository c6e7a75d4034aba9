"""Constants of engines, and the closed forms of a serving run that they go into."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim import compare, parse_scenario, replay
from sim.catalog.gpus import load_gpu
from sim.catalog.topologies import parse_topology
from sim.conditions import Conditions
from sim.engines import ANY, combined, engine_names, library, load_engine
from sim.errors import InputError
from sim.kernels import Kernels, load_constants
from sim.kernels.fit import Residual
from sim.machine import assemble
from sim.program import Work
from sim.serving import ServingConstants, running, time_per_token, time_to_first_token
from sim.shapes import GroupedGemm
from sim.uncertainty import Share, interval

H200 = load_gpu("h200-sxm")
SIMPLE = ServingConstants(
    interference=0.5,
    interference_lockstep=0.25,
    front_end=0.1,
    client=0.05,
    front_end_per_token=1e-5,
    first_steps=2,
    burst=0.2,
    wait_lockstep=0.3,
)


def test_an_engine_has_the_constants_of_all_but_for_its_own():
    common = load_engine(ANY)
    for name in ("trtllm", "vllm", "sglang"):
        own = load_engine(name)
        assert own.name == name
        assert own.source.startswith("least squares")
        assert own.kernels.routing == common.kernels.routing
        assert own.kernels.time == common.kernels.time
        assert own.collective_latency == common.collective_latency
        assert own.serving.front_end != common.serving.front_end
    assert load_engine("vllm").kernels.launch["experts"] > 1.5 * common.kernels.launch["experts"]
    assert load_engine("trtllm").serving.reserved == 1  # GUARANTEED_NO_EVICT


def test_own_constants_replace_common_ones_at_any_depth():
    common = {"a": 1, "b": {"c": 2, "d": {"e": 3, "f": 4}}}
    assert combined(common, {"b": {"d": {"e": 5}}, "g": {"h": 6}}) == {
        "a": 1,
        "b": {"c": 2, "d": {"e": 5, "f": 4}},
        "g": {"h": 6},
    }
    assert common["b"]["d"]["e"] == 3


def test_an_unknown_engine_is_refused_and_borrows_kernels_where_a_row_names_it():
    with pytest.raises(InputError, match=f"engine 'mii' is not known; choose one of {', '.join(engine_names())}"):
        load_engine("mii")
    assert [library(name) for name in ("vllm", "sglang", "mii")] == ["vllm", "sglang", "trtllm"]


def test_a_machine_has_the_constants_of_the_engine_whose_kernels_it_runs():
    fabric = parse_topology("hgx-8").build(H200)
    for name in ("trtllm", "vllm", "sglang"):
        built = assemble(H200, fabric, Conditions(engine=name))
        assert built.kernels.engine == load_engine(name).kernels
        assert built.serving == load_engine(name).serving


@pytest.mark.parametrize("name", ["trtllm", "vllm", "sglang"])
def test_a_first_token_waits_for_the_front_end_of_the_engine_that_serves_it(name):
    base = {"model": "llama-3.1-8b", "gpu": "h100-sxm", "engine": name, "layouts": [{"strategy": "tp", "tp": 1}]}
    serving = load_engine(name).serving
    front = serving.front_end + 1024 * serving.front_end_per_token
    prefill = {"workload": {"phase": "prefill", "batch": 1, "context": 1024}}
    (report,) = compare(parse_scenario(base | prefill)).layouts
    assert report.first_token.parts["front end"] == pytest.approx(front, rel=1e-12)
    one = {"requests": {"rate": 1, "count": 1, "input": 1024, "output": 8}, "scheduler": name}
    (replayed,) = replay(parse_scenario(base | one)).layouts
    assert front < replayed.ttft_s.p50 < front + 0.2


def test_the_module_of_experts_starts_slower_in_engines_of_many_kernels():
    work = Work(GroupedGemm(64, 50, 64, 4096, 1536, 128, 128, 8), 1e9, "fp8", 5e8, 0, 1e6)
    seconds = {}
    for name in ("trtllm", "vllm"):
        kernels = Kernels(H200, load_constants("h200"), load_engine(name).kernels, name)
        seconds[name] = kernels.cost(work).seconds
        launch = kernels.fits("experts", "fp8")[0][0].launch
    factors = [load_engine(name).kernels.launch["experts"] for name in ("trtllm", "vllm")]
    assert seconds["vllm"] - seconds["trtllm"] == pytest.approx(launch * (factors[1] - factors[0]), rel=1e-9)


def test_a_lone_request_waits_for_nobody():
    assert time_per_token(0.01, 0.5, 1, 100, False, SIMPLE) == 0.01
    expected = 0.1 + 1000 * 1e-5 + 0.5 + 2 * 0.01
    assert time_to_first_token(0.01, 0.5, 1, 1000, 100, False, 0, SIMPLE) == pytest.approx(expected, rel=1e-12)


def test_tokens_wait_for_their_share_of_other_prompts():
    assert time_per_token(0.01, 0.5, 11, 100, False, SIMPLE) == pytest.approx(0.01 + 0.5 * 10 / 100 * 0.5)
    assert time_per_token(0.01, 0.5, 11, 100, True, SIMPLE) == pytest.approx(0.01 + 0.25 * 10 / 100 * 0.5)


def test_first_tokens_wait_for_the_first_wave_for_the_client_and_for_room():
    alone = time_to_first_token(0.01, 0.5, 1, 1000, 100, False, 0, SIMPLE)
    crowd = time_to_first_token(0.01, 0.5, 11, 1000, 100, False, 0, SIMPLE)
    assert crowd - alone == pytest.approx(0.5 * 10 * 0.2 / 2)
    together = time_to_first_token(0.01, 0.5, 11, 1000, 100, True, 0, SIMPLE, spread=False)
    assert together - alone == pytest.approx(0.05 + 0.5 * 10 * 0.3)
    queue = time_to_first_token(0.01, 0.5, 11, 1000, 100, False, 22, SIMPLE)
    assert queue - crowd == pytest.approx(2 * 100 * time_per_token(0.01, 0.5, 11, 100, False, SIMPLE))


@given(st.integers(1, 500), st.integers(1, 500))
def test_no_more_sequences_run_than_there_are_or_fit(concurrency, capacity):
    assert running(concurrency, capacity) == min(concurrency, capacity)
    assert running(concurrency, 0) == 1


def test_a_step_is_no_surer_than_whole_steps_were_predicted():
    shares = {"a": Share(10, 0.9, 1.2)}
    assert interval(shares, Residual(rows=9, low=0.8, high=1.1, error=0.1, held_out=0.1)) == pytest.approx((8, 12))
    assert interval(shares, Residual(rows=9, low=0.95, high=1.3, error=0.1, held_out=0.1)) == pytest.approx((9, 13))


def test_the_residual_of_the_engines_is_that_of_models_left_out():
    residual = load_engine(ANY).kernels.residual
    assert residual.rows == 1251
    assert 0.8 < residual.low < 0.9 < 1.1 < residual.high < 1.2
    assert residual.error < residual.held_out < 0.115
