"""Time of one operation: launch, units and rows, and a roofline whose corner is where bytes and FLOPs meet."""

from __future__ import annotations

import numpy as np
import pytest
from strategies_for_tests import figures, gqa, model, placement

from sim.catalog_gpus import gpu_names, load_gpu
from sim.errors import InputError
from sim.kernels import Family, KernelConstants, Kernels, load_constants
from sim.program import Work
from sim.workload import Workload

GPU = load_gpu("h200-sxm")
IDEAL = Family(launch=0.0)
FLAT = KernelConstants(source="a test", **dict.fromkeys(set(KernelConstants.model_fields) - {"source"}, IDEAL))


def test_the_corner_of_the_roofline_is_where_compute_and_memory_meet():
    """FLOPs / peak = bytes / bandwidth at 206 FLOP a byte on an H200 in 16 bit."""
    corner = GPU.peak["bf16"] / GPU.bandwidth
    kernels = Kernels(GPU, FLAT)
    for intensity, bound in ((corner / 2, "memory"), (corner, "both"), (2 * corner, "compute")):
        cost = kernels.cost(Work("gemm", flops=intensity * 1e9, weight_bytes=1e9))
        by_memory, by_compute = 1e9 / GPU.bandwidth, intensity * 1e9 / GPU.peak["bf16"]
        assert (cost.memory, cost.compute) == (pytest.approx(by_memory), pytest.approx(by_compute))
        assert cost.seconds == pytest.approx(max(by_memory, by_compute), rel=1e-12)
        assert cost.floor == pytest.approx(cost.seconds, rel=1e-12)
        if bound != "both":
            assert (cost.memory > cost.compute) == (bound == "memory")
        else:
            assert cost.memory == pytest.approx(cost.compute, rel=1e-12)
    assert corner == pytest.approx(206.04, rel=1e-4)


@pytest.mark.parametrize("rate", ["bf16", "fp8"])
def test_a_gemm_of_a_program_turns_at_its_corner(rate):
    """Rows x 2 FLOPs per weight byte in 16 bit: the weights bind below the corner, the multiplication above it."""
    placed = placement(model(gqa(24, 24, 128), layers=1), "tp", tp=1)
    kernels = Kernels(GPU, FLAT)
    binds = []
    for rows in (1, 32, 10_000):
        o = figures(placed, Workload(batch=rows, context=10))["attention.o"]._replace(rate=rate, io_bytes=0)
        cost = kernels.cost(o)
        binds.append("compute" if cost.compute > cost.memory else "memory")
    assert binds == ["memory", "memory", "compute"]


def test_fixed_parts_are_added_to_the_roofline():
    family = Family(launch=1.0, per_unit=0.5, per_row=0.25, quantise=2.0, compute={"bf16": 0.5}, memory={"bf16": 0.25})
    kernels = Kernels(GPU, FLAT.model_copy(update={"experts": family}))
    cost = kernels.cost(Work("experts", weight_bytes=4.8e12, units=4, rows=8))
    assert cost.fixed == 1.0 + 4 * 0.5 + 8 * 0.25
    assert cost.memory == pytest.approx(4.0)  # one second at full bandwidth
    assert cost.seconds == pytest.approx(5.0 + 4.0)
    assert cost.floor == pytest.approx(1.0)
    assert kernels.cost(Work("experts", rate="fp8")).seconds == 1.0 + 2.0
    compute = kernels.cost(Work("experts", flops=989e12))
    assert compute.compute == pytest.approx(2.0)


def test_a_rate_without_hardware_runs_at_the_next_wider_one():
    kernels = Kernels(GPU, FLAT)
    times = {rate: kernels.cost(Work("gemm", flops=1979e12, rate=rate)).seconds for rate in ("fp4", "fp8", "bf16")}
    assert times["fp4"] == times["fp8"] == pytest.approx(1.0)
    assert times["bf16"] == pytest.approx(1979 / 989)
    a100 = Kernels(load_gpu("a100-sxm-80gb"), FLAT)
    assert a100.cost(Work("gemm", flops=312e12, rate="fp8")).seconds == pytest.approx(1.0)


def test_arrays_are_priced_point_by_point():
    kernels = Kernels(GPU, load_constants("h200"))
    flops, bytes_ = np.array([1e9, 1e12, 1e15]), np.array([1e9, 1e9, 1e9])
    together = kernels.cost(Work("gemm", flops=flops, weight_bytes=bytes_))
    for i in range(3):
        alone = kernels.cost(Work("gemm", flops=float(flops[i]), weight_bytes=float(bytes_[i])))
        assert together.seconds[i] == alone.seconds
        assert together.floor[i] == alone.floor


@pytest.mark.parametrize("name", gpu_names())
def test_no_kernel_beats_its_data_sheet(name):
    gpu = load_gpu(name)
    constants = load_constants(gpu.constants)
    kernels = Kernels(gpu, constants)
    for family in set(KernelConstants.model_fields) - {"source"}:
        for rate in ("bf16", "fp8", "fp4"):
            cost = kernels.cost(Work(family, flops=1e12, rate=rate, weight_bytes=1e9, units=3, rows=5))
            assert cost.seconds >= cost.floor > 0
    assert constants.source


def test_constants_that_do_not_exist_are_refused():
    with pytest.raises(InputError) as error:
        load_constants("abacus")
    assert str(error.value) == "there are no kernel constants called 'abacus'"
