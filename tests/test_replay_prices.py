"""Step prices: the table against the sweep, sums of steps against each step, and capacity against the memory report."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.catalog.gpus import load_gpu
from sim.catalog.models import load_model
from sim.catalog.topologies import parse_topology
from sim.errors import InputError
from sim.placement import Placement
from sim.replays.fleet import KvTransfer, NoRoomError, Place, instance
from sim.replays.scheduler import parse_scheduler, preset_names
from sim.replays.series import Row
from sim.replays.step_prices import BOUND, StepPrices
from sim.run import machine
from sim.sweep import sweep
from sim.timing import Timing
from sim.workload import Precision, Workload
from strategies.attention_dp import AttentionDataParallel
from strategies.dcp import DecodeContextParallel
from strategies.tp import TensorParallel

MODEL = load_model("llama-3.1-70b")
ON = machine(load_gpu("h200-sxm"), parse_topology("hgx-8", None))
PRECISION = Precision(weights="fp8", kv_cache="fp8").resolve(MODEL)
PLACE = Place(MODEL, ON, PRECISION, 0.9)
VLLM = parse_scheduler("vllm")


def prices(layout, longest=40_000):
    return StepPrices(Placement(MODEL, layout, PRECISION), ON, longest, VLLM.sizes())


@pytest.mark.parametrize("layout", [TensorParallel(tp=4), AttentionDataParallel(dp=4, tp=2)])
def test_a_decode_step_is_that_of_the_sweep(layout):
    made = prices(layout)
    contexts = np.unique(np.random.default_rng(0).integers(1, 40_000, 200))
    for batch in (1, 8, 200, 600):
        true = sweep(made.placement, ON, batch * made.groups, contexts).seconds
        row = made.decode(batch)
        table = np.array([row.at(float(c)) for c in contexts])
        assert np.abs(table / true - 1).max() < 2 * BOUND
    assert made.bound <= BOUND


def test_a_prompt_is_that_of_the_sweep_exactly():
    made = prices(TensorParallel(tp=4))
    for tokens in (1, 17, 4096, 4097, 9000):
        assert made.prompt(tokens) == sweep(made.placement, ON, 1, tokens, phase="prefill").seconds[0]
    assert made.mixed(0, 0.0, [(0, 900)], 900) == made.prompt(900)


def test_mixed_steps_cost_more_with_everything_more():
    made = prices(TensorParallel(tp=4))
    base = made.mixed(64, 4000.0, [(0, 2048)], 2048)
    assert base > max(made.prompt(2048), made.decode(64).at(4000.0))
    assert made.mixed(64, 8000.0, [(0, 2048)], 2048) > base
    assert made.mixed(64, 4000.0, [(2048, 2048)], 2048) > base
    assert made.mixed(64, 4000.0, [(0, 4096)], 4096) > base


@pytest.mark.parametrize("layout", [TensorParallel(tp=8), AttentionDataParallel(dp=8, tp=1)])
@pytest.mark.parametrize(("batch", "context", "cached", "new"), [
    (32, 4000, 0, 2048), (128, 4000, 0, 512), (8, 20_000, 0, 8000), (64, 4000, 8192, 2048),
])  # fmt: skip
def test_a_mixed_step_is_close_to_that_of_the_engine(layout, batch, context, cached, new):
    made = prices(layout)
    prompts = [{"batch": made.groups, "context": cached + new, "cached": cached}]
    work = Workload(phase="mixed", batch=batch * made.groups, context=context, prompts=prompts)
    true = Timing(made.placement, ON, work).best.seconds
    assert made.mixed(batch, float(context), [(cached, new)], new) == pytest.approx(true, rel=0.05)


def test_chunks_of_a_prompt_cost_as_much_attention_as_the_whole():
    made = prices(TensorParallel(tp=4))
    whole = made.prompt(16384)
    chunks = sum(made.mixed(0, 0.0, [(n * 4096, 4096)], 4096) for n in range(4))
    assert chunks == pytest.approx(whole, rel=0.05)


@given(
    st.floats(0.5, 4000), st.floats(0.05, 1), st.integers(1, 3000),
    st.lists(st.floats(0, 1e-5), min_size=3, max_size=3), st.floats(1e-3, 1),
)  # fmt: skip
def test_a_sum_of_steps_is_the_sum_of_each_step(context, growth, steps, slopes, share):
    values = np.cumsum([8e-3, *(s * w for s, w in zip(slopes, (99, 900, 2000), strict=True))])
    row = Row([1.0, 100.0, 1000.0, 3000.0], values.tolist())
    each = [row.at(context + growth * k) for k in range(1, steps + 1)]
    total = row.total(context, growth, steps)
    assert total == pytest.approx(sum(each), rel=1e-11)
    sums = np.cumsum(each)
    wanted = share * total
    found = row.steps_until(context, growth, steps, wanted)
    assert sums[found - 1] >= wanted * (1 - 1e-9)
    assert found == 1 or sums[found - 2] < wanted * (1 + 1e-9)


def test_a_group_holds_as_much_as_its_memory_says():
    one = instance(PLACE, TensorParallel(tp=2), VLLM, 8000)
    two = instance(PLACE, AttentionDataParallel(dp=2, tp=2), VLLM, 8000)
    each = 80 * 2 * 8 * 128 / 2  # fp8 bytes of a token on each of two ranks
    assert one.blocks * 16 * each < 0.9 * ON.kernels.gpu.memory_bytes - one.placement.unique_weight_bytes / 2
    assert one.blocks * 16 * each > 0.8 * ON.kernels.gpu.memory_bytes - one.placement.unique_weight_bytes / 2
    assert two.groups == 2
    assert two.blocks > one.blocks  # half of the FFN


def test_weights_beyond_memory_are_a_result():
    with pytest.raises(NoRoomError, match="tp1: needs 1"):
        instance(PLACE._replace(precision=Precision(weights="bf16").resolve(MODEL)), TensorParallel(tp=1), VLLM, 8000)


def test_a_layout_that_only_decodes_says_what_to_do():
    with pytest.raises(InputError, match="disaggregation"):
        prices(DecodeContextParallel(tp=8, dcp=2)).prompt(10)


def test_a_transfer_moves_one_copy_of_the_cache():
    one = instance(PLACE, TensorParallel(tp=2), VLLM, 8000)
    wire = KvTransfer(PLACE, one, one, layerwise=True)
    seconds = wire.seconds(1000)
    assert wire.sent == 80 * 2 * 8 * 128 * 1000
    assert seconds == ON.collectives.seconds("send", (2, 0), wire.sent / 2)
    assert wire.layers == 80


@pytest.mark.parametrize("name", preset_names())
def test_presets_have_a_source(name):
    assert len(parse_scheduler(name).source) > 40
    assert parse_scheduler({"preset": name, "max_tokens": "2k"}).max_tokens == 2048
