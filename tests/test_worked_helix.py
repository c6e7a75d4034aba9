"""The Helix paper's figure 1 and HOP-B example, and what fits on 64 GPUs, as worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from strategies_for_tests import UnitMachine, evaluate, gqa, lane, model, placement, run_stage

from sim import mixers
from sim.catalog.gpus import load_gpu
from sim.formats import number_format
from sim.hardware import Gpu
from sim.kernels import Kernels, load_constants
from sim.lower import lower
from sim.machine import Machine
from sim.ops_communication import ExchangeShares
from sim.placement import Placement
from sim.workload import Precision, Workload
from strategies.helix import Helix

KNOWN = json.loads((Path(__file__).parent / "data" / "worked_examples.json").read_text("utf-8"))
LLAMA, R1 = "llama-3.1-405b", "deepseek-r1"

# -- figure 1 of the Helix paper -----------------------------------------------------------------------------

FIGURE = KNOWN["helix_fig1"]
FP4 = Precision(weights="fp4", kv_cache="fp4")
BANDWIDTH = 8000e9


def _figure(kind: str, context: int, heads_over: int, **degrees) -> tuple[int, int]:
    """(KV bytes, weight bytes) of a rank as the figure counts them.

    Its formula counts the output projection as the query projection, over the ranks of the attention, although the
    text and the placement cut it over all ranks.
    """
    placed = placement("helix-figure-1", kind, FP4, **degrees)
    kv = placed.kv_bytes(0, lane(placed, Workload(batch=8, context=context)))
    elements = placed.elements(0, 0)
    assert elements["o"] * placed.cut.mesh.size == elements["q"] * heads_over
    names = ("q", "q", "k", "v", "gate_up", "down")
    return kv, number_format("fp4").bytes(sum(elements[name] for name in names))


def _micros(bytes_: int) -> float:
    return bytes_ / BANDWIDTH * 1e6


@pytest.mark.parametrize("case", FIGURE["left_TP_sweep_S=1e6"], ids=lambda c: f"tp{c['TP']}")
def test_figure_1_tensor_parallelism(case):
    kv, weights = _figure("tp", 1_000_000, case["TP"], tp=case["TP"])
    assert (kv, weights) == (case["kv_bytes"], case["w_bytes"])
    assert (_micros(kv), round(_micros(weights), 4)) == (case["kv_us"], case["w_us"])


@pytest.mark.parametrize("case", FIGURE["middle_S_sweep_TP=8"], ids=lambda c: str(c["S"]))
def test_figure_1_context(case):
    kv, weights = _figure("tp", case["S"], 8, tp=8)
    assert (_micros(kv), round(_micros(weights), 4)) == (case["kv_us"], case["w_us"])


@pytest.mark.parametrize("case", FIGURE["right_KVP_sweep_TPA=8_TPF=8*KVP"], ids=lambda c: f"kvp{c['KVP']}")
def test_figure_1_helix(case):
    kv, weights = _figure("helix", 1_000_000, 8, tpa=8, kvp=case["KVP"], ownership="round_robin", block=1)
    assert (kv, weights) == (case["kv_bytes"], case["w_bytes"])
    assert (_micros(kv), round(_micros(weights), 4)) == (case["kv_us"], case["w_us"])


@pytest.mark.parametrize("case", FIGURE["right_alt_TPA=1_TPF=KVP"], ids=lambda c: f"kvp{c['KVP']}")
def test_figure_1_helix_without_head_split(case):
    kv, weights = _figure("helix", 1_000_000, 1, tpa=1, kvp=case["KVP"], ownership="round_robin", block=1)
    assert (_micros(kv), round(_micros(weights), 4)) == (case["kv_us"], case["w_us"])


def test_figure_1_with_a_binary_million():
    assert round(_micros(_figure("tp", 2**20, 8, tp=8)[0]), 4) == KNOWN["helix_fig1_S=2^20_TP8_kv_us"]


@pytest.mark.parametrize(("key", "micros"), KNOWN["blog22_mla_kv_us_single_latent"].items())
def test_figure_1_redrawn_for_one_latent_head(key, micros):
    kvp = int(key.removeprefix("KVP="))
    placed = placement(R1, "helix", Precision(kv_cache="fp8"), tpa=1, kvp=kvp, ownership="round_robin", block=1)
    on = lane(placed, Workload(batch=8, context=1_000_000))
    attention = next(iter(placed.model.kinds)).attention
    assert _micros(on.kv_tokens(None) * on.kv_bytes_per_token(attention)) == micros


# -- HOP-B ---------------------------------------------------------------------------------------------------

EIGHT, LONG = Workload(batch=8, context=64), {"tpa": 1, "kvp": 2, "ownership": "round_robin", "block": 1}
ONE_LAYER = model(gqa(8, 1), layers=1, name="one layer")


def _exchange(placed: Placement) -> ExchangeShares:
    program = lower(placed.model, placed.strategy, "decode")
    ops = next(iter(program.layers.values())).ops
    return next(op for op in ops if isinstance(op, ExchangeShares))


def _toy(strategy: Helix, pieces: int) -> float:
    """Eight requests; each takes 2 to attend and 1.2 to exchange."""
    placed = Placement(ONE_LAYER, strategy, Precision())
    one_request = _exchange(placed).message(lane(placed, Workload(batch=1, context=64))).size
    on = UnitMachine(attention=2.0, per_byte={"all_to_all": 1.2 / one_request})
    folded = run_stage(placed, on, EIGHT, pieces=pieces).critical.seconds
    every = run_stage(placed, on, EIGHT, granularity="ranks", pieces=pieces).critical.seconds
    assert folded == pytest.approx(every, rel=1e-12)
    return folded


def test_hop_b_off_exchanges_after_everything():
    assert _toy(Helix(hop_b=False, **LONG), 1) == pytest.approx(KNOWN["hopb"]["off"], rel=1e-12)


def test_hop_b_on_hides_all_exchanges_but_the_last():
    assert _toy(Helix(hop_b=8, **LONG), 8) == pytest.approx(KNOWN["hopb"]["on"], rel=1e-12)


def test_hop_b_in_the_wrong_order_hides_nothing():
    class MergesAtOnce(Helix):
        kind = "merges_at_once"

        def attention(self, b, x):
            parts = b.split(mixers.query(b, x), b.pieces)
            done = [b.merge(b.exchange_heads(mixers.attend(b, part), statistics=2)) for part in parts]
            return b.all_reduce(mixers.output(b, b.concat(done)))

    assert _toy(MergesAtOnce(hop_b=8, **LONG), 8) == pytest.approx(KNOWN["hopb"]["off"], rel=1e-12)


# -- capacity ------------------------------------------------------------------------------------------------

CAPACITY = {
    "TP64": ("tp", {"tp": 64}),
    "8 replicas of TP8": ("tp", {"tp": 8, "replicas": 8}),
    "ADP8 x TPA8, FFN TP64": ("attention_dp", {"dp": 8, "tp": 8}),
    "DCP8 in TP64": ("dcp", {"tp": 64, "dcp": 8}),
    "Helix TPA8 x KVP8, TPF64": ("helix", {"tpa": 8, "kvp": 8}),
}


def _gpu_of_192_gb() -> Gpu:
    return load_gpu("gb200").model_copy(update={"memory_bytes": 192 * 10**9})


@pytest.mark.parametrize("key", CAPACITY)
def test_sequences_of_a_million_tokens_on_64_gpus(key):
    known, (kind, degrees) = KNOWN["capacity_llama_64gpu_S2^20"][key], CAPACITY[key]
    precision = Precision(weights="nvfp4", kv_cache="fp8")
    placed = placement(LLAMA, kind, precision, **degrees)
    assert sum(placed.weights(0, 0).values()) == known["weight_bytes_rank"]
    assert placed.kv_bytes(0, lane(placed, Workload(batch=1, context=2**20))) == known["kv_bytes_per_seq_rank"]
    groups = placed.cut.sequence_groups * placed.strategy.replicas
    room = 192 * 10**9 * 9 // 10 - known["weight_bytes_rank"]
    assert room // known["kv_bytes_per_seq_rank"] == known["seqs_per_attention_group"]
    # the search agrees, although activations and communication buffers take their part as well
    gpu = _gpu_of_192_gb()
    on = Machine(Kernels(gpu, load_constants(gpu.constants)), evaluate(placed, EIGHT).machine.collectives)
    most = evaluate(placed, Workload(batch=1, context=2**20), on).memory().max_batch
    assert most == known["seqs_total"] == groups * known["seqs_per_attention_group"]
