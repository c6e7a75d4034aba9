"""Prices of operations: rooflines, staircases, chains and padding, each against the closed form that it must have."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies_for_tests import figures, gqa, model, placement

from sim.catalog.gpus import gpu_names, load_gpu
from sim.errors import InputError
from sim.kernels import Device, EngineConstants, KernelConstants, Kernels, constant_names, interval, load_constants
from sim.kernels import Spread as Range
from sim.kernels.constants import FAMILIES, TABLES
from sim.kernels.decode_attention import DecodeFit, decode_attention
from sim.kernels.experts import ExpertsFit, experts
from sim.kernels.fit import Residual
from sim.kernels.gemm import GemmFit, gemm, quantise
from sim.kernels.prefill_attention import PrefillFit, prefill_attention
from sim.program import Work
from sim.shapes import DecodeAttention, Elementwise, Gemm, GroupedGemm, Host, LatentDecode, PrefillAttention
from sim.workload import Workload

GPU = load_gpu("h200-sxm")
FLAT = KernelConstants(source="a test", gemm=(GemmFit(launch=0.0, compute=1.0, memory=1.0, tiles=((1, 1),)),))
PLAIN = Device(peak=1e12, bandwidth=1e9, multiprocessors=100)


def test_the_corner_of_the_roofline_is_where_compute_and_memory_meet():
    """FLOPs / peak = bytes / bandwidth at 206 FLOP a byte on an H200 in 16 bit; there the 3-norm adds a quarter."""
    corner = GPU.peak["bf16"] / GPU.bandwidth
    kernels = Kernels(GPU, FLAT, TABLES)
    rows = 132 * 1000
    for intensity in (corner / 100, corner, 100 * corner):
        flops = 2.0 * rows * 100 * 100
        cost = kernels.cost(Work(Gemm(rows, 100, 100), flops, weight_bytes=flops / intensity))
        by_memory, by_compute = flops / intensity / GPU.bandwidth, flops / GPU.peak["bf16"]
        assert cost.seconds == pytest.approx((by_memory**3 + by_compute**3) ** (1 / 3), rel=1e-12)
        assert cost.floor == pytest.approx(max(by_memory, by_compute), rel=1e-12)
        assert cost.fixed + max(cost.compute, cost.memory) == pytest.approx(cost.seconds, rel=1e-12)
        assert cost.memory / cost.compute == pytest.approx(by_memory / by_compute, rel=1e-12)
    assert corner == pytest.approx(206.04, rel=1e-4)


@pytest.mark.parametrize("format_", ["bf16", "fp8"])
def test_a_gemm_of_a_program_turns_at_its_corner(format_):
    """Rows x 2 FLOPs per weight byte in 16 bit: the weights bind below the corner, the multiplication above it."""
    placed = placement(model(gqa(24, 24, 128), layers=1), "tp", tp=1)
    kernels = Kernels(GPU, FLAT)
    binds = []
    for rows in (1, 32, 10_000):
        o = figures(placed, Workload(batch=rows, context=10))["attention.o"]._replace(format=format_, io_bytes=0)
        assert (o.shape.rows, o.shape.columns * o.shape.depth * 2) == (rows, o.weight_bytes)
        cost = kernels.cost(o)
        binds.append("compute" if cost.compute > cost.memory else "memory")
    assert binds == ["memory", "memory", "compute"]


def test_a_gemm_is_a_staircase_of_waves():
    """100 tiles fit on 100 multiprocessors; the 101st opens a second wave, and k is not cut."""
    fit = GemmFit(launch=1.0, compute=0.5, memory=1.0, tiles=((64, 128),), wave=2.0)
    one = 2 * 64 * 128 * 10 * 100 / 0.5e12 + 2.0
    for columns, waves in ((128, 1), (99 * 128 + 1, 1), (100 * 128, 1), (100 * 128 + 1, 2), (201 * 128, 3)):
        cost = gemm(Work(Gemm(1, columns, 10)), fit, PLAIN)
        assert cost.seconds == pytest.approx(1.0 + waves * one, rel=1e-12)
    assert gemm(Work(Gemm(1, 128, 10, 101)), fit, PLAIN).seconds == pytest.approx(1.0 + 2 * one, rel=1e-12)


def test_few_tiles_are_split_along_k_as_long_as_that_pays():
    fit = GemmFit(launch=0.0, compute=1.0, memory=1.0, tiles=((128, 128),), splits=(1, 2, 4), depth=1.0, partial=1.0)
    whole = gemm(Work(Gemm(1, 128, 100)), fit.model_copy(update={"splits": (1,)}), PLAIN).seconds
    assert whole == pytest.approx(100.0)
    partial = 4 * 128 / 1e9
    assert gemm(Work(Gemm(1, 128, 100)), fit, PLAIN).seconds == pytest.approx(25.0 + 3 * partial, rel=1e-12)
    dear = fit.model_copy(update={"partial": 75.0 / partial})
    assert gemm(Work(Gemm(1, 128, 100)), dear, PLAIN).seconds == pytest.approx(100.0)
    filled = gemm(Work(Gemm(1, 128, 100, 100)), fit, PLAIN).seconds
    assert filled == pytest.approx(100.0)  # no multiprocessor is idle


def test_activations_are_quantised_by_rows_and_by_bytes():
    fit = GemmFit(launch=0.0, compute=1.0, memory=1.0, quantise=1.0, quantise_row=3.0, quantise_bytes=4e9 / 3)
    assert quantise(Gemm(1, 7, 1), fit, PLAIN) == pytest.approx(1.0 + 5.0)
    fits = KernelConstants(source="a test", gemm=(fit.model_copy(update={"format": "fp8"}),))
    engine = EngineConstants(source="a test", quantise=2.0)
    work = Work(Gemm(1, 7, 1), format="fp8")
    fused = Kernels(GPU, fits, engine).cost(work).seconds
    assert fused == pytest.approx(2.0, abs=1e-6)
    assert Kernels(GPU, fits, TABLES).cost(work).seconds > 4.0


def test_query_heads_that_share_a_cache_are_padded_to_a_tile():
    fit = DecodeFit(launch=0.0, compute=0.5, memory=1.0, tile=8)
    for heads, padded in ((8, 8), (9, 16), (16, 16), (1, 8)):
        cost = decode_attention(Work(DecodeAttention(1, heads, 1, 10), flops=1e12 * heads), fit, PLAIN)
        assert cost.seconds == pytest.approx(padded / 0.5, rel=1e-9)


def test_a_chain_is_cut_where_multiprocessors_are_idle():
    """s pieces take token·L/s + merge·(s - 1): the best s is the root of token·L/merge, and no more than fit."""
    fit = DecodeFit(launch=0.0, compute=1.0, memory=1.0, token=1.0, merge=4.0)
    assert decode_attention(Work(DecodeAttention(1, 1, 1, 400)), fit, PLAIN).seconds == pytest.approx(40 + 36)
    assert decode_attention(Work(DecodeAttention(50, 1, 1, 50 * 400)), fit, PLAIN).seconds == pytest.approx(200 + 4)
    assert decode_attention(Work(DecodeAttention(200, 1, 1, 200 * 400)), fit, PLAIN).seconds == pytest.approx(800)


def test_a_warm_cache_helps_only_a_benchmark():
    fit = DecodeFit(launch=0.0, compute=1.0, memory=0.5, cache_bytes=1e6, cache_time=0.25, cache_edge=6.0)
    warm = PLAIN._replace(warm=True)
    for size in (1e4, 1e8):
        work = Work(DecodeAttention(1, 1, 1, 1), kv_bytes=size)
        assert decode_attention(work, fit, PLAIN).seconds == pytest.approx(size / 0.5e9)
        inside = decode_attention(work, fit, warm).seconds
        assert inside == pytest.approx(size * 0.25 / 1e9 if size < 1e6 else size / 0.5e9, rel=1e-5)


def test_a_short_prompt_pays_for_a_whole_tile():
    """One tile of 128 queries meets one block of 128 keys, whatever the prompt needs of it; 256 tokens need three."""
    fit = PrefillFit(launch=0.0, compute=1.0, tile=128, block=128)
    half = 128 * 128 / 2
    pair = 4 * 64 / 1e12
    for length in (1, 100, 128, 256):
        pairs = length * (length + 1) / 2
        work = Work(PrefillAttention(1, 1, 1, 64, length, pairs, length))
        tiles = -(-length // 128)
        assert prefill_attention(work, fit, PLAIN).seconds == pytest.approx((pairs + tiles * half) * pair, rel=1e-12)


def test_packed_heads_fill_a_tile_together():
    fit = PrefillFit(launch=0.0, compute=1.0, tile=128, block=8, tile_start=1.0)
    work = Work(PrefillAttention(1, 16, 2, 64, 16, 0, 16))  # 8 heads x 16 tokens are one tile, 16 heads are two
    idle = 128 * 16 / 2 * 4 * 64 * 100 / 1e12
    packed = prefill_attention(work, fit.model_copy(update={"packed": True}), PLAIN).seconds
    assert packed == pytest.approx(2 * (1.0 + idle) / 100, rel=1e-9)
    assert prefill_attention(work, fit, PLAIN).seconds > 7 * packed


def test_experts_pay_for_being_hit_and_for_their_rows():
    fit = ExpertsFit(launch=1.0, compute=0.5, memory=0.25, half=9.0, expert=0.5, slot=0.125, passes=2.0)
    rows, hit = 16.0, 4.0
    cost = experts(Work(GroupedGemm(rows, hit, 8), 16e12, weight_bytes=1e3, io_bytes=1e9), fit, PLAIN)
    assert cost.fixed == 1.0 + 4 * 0.5 + 8 * 0.125
    assert cost.seconds == pytest.approx(cost.fixed + 2 * (rows**0.5 + (9 * hit) ** 0.5) ** 2 + 2.0, rel=1e-9)
    weights = experts(Work(GroupedGemm(rows, hit, 0), weight_bytes=1e9), fit, PLAIN)
    assert weights.memory == pytest.approx(4.0)


def test_a_rate_without_hardware_runs_at_the_next_wider_one():
    kernels = Kernels(GPU, FLAT, TABLES)
    shape = Gemm(132, 10**4, 10**4)
    floors = {name: kernels.cost(Work(shape, 1979e12, name)).floor for name in ("nvfp4", "fp8", "bf16")}
    assert floors["nvfp4"] == floors["fp8"] == pytest.approx(1.0)
    assert floors["bf16"] == pytest.approx(1979 / 989)
    a100 = Kernels(load_gpu("a100-sxm-80gb"), FLAT, TABLES)
    assert a100.cost(Work(shape, 312e12, "fp8")).floor == pytest.approx(1.0)


def test_the_library_and_the_format_choose_the_fit():
    fits = [
        GemmFit(launch=1.0, compute=1.0, memory=1.0, library="vllm", format="bf16"),
        GemmFit(launch=2.0, compute=1.0, memory=1.0, library="trtllm", format="bf16"),
        GemmFit(launch=3.0, compute=1.0, memory=1.0, library="vllm", format="fp8_block"),
        GemmFit(launch=4.0, compute=1.0, memory=1.0, library="trtllm", format="nvfp4", kernel="a"),
        GemmFit(launch=5.0, compute=1.0, memory=1.0, library="trtllm", format="nvfp4", kernel="b"),
    ]
    constants = KernelConstants(source="a test", gemm=tuple(fits))

    def taken(gpu: str, library: str, number: str) -> list[float]:
        return [fit.launch for fit, _ in Kernels(load_gpu(gpu), constants, TABLES, library).fits("gemm", number)]

    assert taken("h200-sxm", "trtllm", "bf16") == [2.0]
    assert taken("h200-sxm", "vllm", "bf16") == taken("h200-sxm", "vllm", "fp16") == [1.0]
    assert taken("h200-sxm", "trtllm", "fp8") == [3.0]  # the most alike, of another library
    assert taken("b200-sxm", "sglang", "mxfp4") == [4.0, 5.0]
    assert taken("a100-sxm-80gb", "trtllm", "fp8") == [2.0]  # no FP8 in hardware
    work = Work(Gemm(1, 1, 1), format="nvfp4")
    assert Kernels(load_gpu("b200-sxm"), constants, TABLES).cost(work).seconds == pytest.approx(4.0)


def test_an_engine_overlaps_part_of_a_launch():
    constants = KernelConstants(source="a test", gemm=(GemmFit(launch=10.0, compute=1.0, memory=1.0),))
    engine = EngineConstants(source="a test", launch={"gemm": 0.5}, time={"gemm": 2.0})
    cost = Kernels(GPU, constants, engine).cost(Work(Gemm(1, 1, 1), weight_bytes=4.8e12))
    assert (cost.fixed, cost.memory) == (pytest.approx(10.0), pytest.approx(2.0))
    assert cost.seconds == pytest.approx(12.0)
    host = Kernels(GPU, constants, TABLES).cost(Work(Host(5)))
    assert host == (0.0, 0.0, 0.0, 0.0, 0.0)


SHAPES = {
    "gemm": lambda n: Work(Gemm(n, 4096, 1024), 2.0 * n * 4096 * 1024, "fp8", 4096 * 1024, 0, 2 * n * 5120),
    "decode_attention": lambda n: Work(
        DecodeAttention(n, 32, 8, 999 * n), 4.0 * 999 * n * 32 * 128, "bf16", 0, 4 * 999 * n * 8 * 128, 4 * n * 4096
    ),
    "mla_decode": lambda n: Work(
        LatentDecode(n, 128, 1, 999 * n), 2.0 * 999 * n * 128 * 1088, "bf16", 0, 999 * n * 1152, 2 * n * 128 * 1088
    ),
    "prefill_attention": lambda n: Work(
        PrefillAttention(1, 32, 8, 128, n, n * (n + 1) // 2, n), 4.0 * n * (n + 1) / 2 * 32 * 128, io_bytes=4 * n * 5120
    ),
    "experts": lambda n: Work(
        GroupedGemm(n, 64 * (1 - 0.95**n), n), 6.0 * n * 2**22, "fp8", 64 * (1 - 0.95**n) * 3 * 2**22, 0, 6 * n * 4096
    ),
    "elementwise": lambda n: Work(Elementwise(), io_bytes=n),
}


@pytest.mark.parametrize("family", SHAPES)
def test_arrays_are_priced_point_by_point(family):
    kernels = Kernels(GPU, load_constants("h200"))
    sizes = np.array([1, 7, 64, 1000, 12345])
    together = kernels.cost(SHAPES[family](sizes))
    for i, n in enumerate(sizes):
        alone = kernels.cost(SHAPES[family](int(n)))
        for whole, one in zip(together, alone, strict=True):
            assert np.broadcast_to(whole, sizes.shape)[i] == pytest.approx(one, rel=1e-12)


@pytest.mark.parametrize("name", gpu_names())
@pytest.mark.parametrize("family", SHAPES)
@pytest.mark.parametrize("library", ["trtllm", "vllm", "sglang"])
def test_no_kernel_beats_its_data_sheet_and_more_is_never_faster(name, family, library):
    gpu = load_gpu(name)
    kernels = Kernels(gpu, load_constants(gpu.constants), library=library)
    sizes = [1, 2, 3, 5, 8, 13, 33, 64, 65, 100, 129, 1000, 1025, 4096, 5000]
    for number in ("bf16", "fp8", "fp8_block", "nvfp4", "mxfp4", "int4"):
        costs = [kernels.cost(SHAPES[family](n)._replace(format=number)) for n in sizes]
        assert all(cost.seconds >= cost.floor > 0 for cost in costs)
        assert all(b.seconds >= a.seconds * (1 - 1e-12) for a, b in pairwise(costs))
        for cost in costs:
            assert cost.fixed + max(cost.compute, cost.memory) == pytest.approx(cost.seconds, rel=1e-9)


@given(st.sampled_from(sorted(SHAPES)), st.integers(1, 10**5), st.sampled_from(["bandwidth", "peak"]), st.booleans())
@settings(max_examples=60)
def test_a_better_gpu_is_never_slower(family, size, what, blackwell):
    gpu = load_gpu("b200-sxm" if blackwell else "h200-sxm")
    better = (
        {"bandwidth": gpu.bandwidth * 2} if what == "bandwidth" else {"peak": {k: 2 * v for k, v in gpu.peak.items()}}
    )
    work = SHAPES[family](size)
    slow, fast = (Kernels(g, load_constants(gpu.constants)).cost(work) for g in (gpu, gpu.model_copy(update=better)))
    assert fast.seconds <= slow.seconds * (1 + 1e-12)


@pytest.mark.parametrize("name", constant_names())
def test_every_family_has_constants_with_their_residuals(name):
    constants = load_constants(name)
    assert constants.source
    for family in FAMILIES:
        for fit in constants.fits(family):
            assert fit.residual
            assert fit.residual.low <= fit.residual.high
            assert fit.residual.rows >= 40
    assert set(constants.borrowed) <= set(FAMILIES)


def test_what_was_not_measured_comes_from_the_nearest_gpu():
    assert load_constants("h100").borrowed == ("decode_attention",)
    assert load_constants("h100").decode_attention == load_constants("h200").decode_attention
    assert load_constants("h100").gemm != load_constants("h200").gemm


def test_the_interval_of_a_sum_adds_inside_a_fit_and_squares_between_fits():
    a, b = Range("a", 0.9, 1.2), Range("b", 0.8, 1.1)
    assert interval([(10.0, a), (20.0, a)]) == (pytest.approx(27.0), pytest.approx(36.0))
    assert interval([(30.0, a), (20.0, b)]) == (pytest.approx(50 - 5.0), pytest.approx(50 + (36 + 4) ** 0.5))
    assert interval([]) == (0.0, 0.0)
    fit = GemmFit(
        launch=0.0, compute=1.0, memory=1.0, residual=Residual(rows=9, low=0.9, high=1.2, error=0.1, held_out=0)
    )
    kernels = Kernels(GPU, KernelConstants(source="a test", gemm=(fit,)), TABLES)
    assert kernels.spread(Work(Gemm(1, 1, 1))) == ("gemm any bf16", 0.9, 1.2)
    assert kernels.spread(Work(Host(1))) == ("", 1.0, 1.0)


def test_constants_that_do_not_exist_are_refused():
    with pytest.raises(InputError) as error:
        load_constants("abacus")
    assert str(error.value) == "there are no kernel constants called 'abacus'"
