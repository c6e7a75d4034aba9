"""The GPU catalogue: every file validates, every figure has its source, and a typo gets an answer."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from sim.catalog.gpus import gpu_names, load_gpu
from sim.errors import InputError
from sim.hardware import Gpu, NvLink
from sim.kernels import constant_names

FITTED = set(constant_names())


@pytest.mark.parametrize("name", gpu_names())
def test_every_figure_of_every_gpu_has_a_source(name: str) -> None:
    gpu = load_gpu(name)
    figures = {"memory_bytes", "bandwidth", "peak", "multiprocessors", "pcie_bandwidth"} | (
        {"nvlink"} if gpu.nvlink else set()
    )
    assert gpu.name == name
    assert figures <= set(gpu.sources)
    assert gpu.constants in FITTED
    assert 60 <= gpu.multiprocessors <= 200


@pytest.mark.parametrize("name", gpu_names())
def test_narrower_formats_are_never_slower(name: str) -> None:
    gpu = load_gpu(name)
    rates = [gpu.matrix_rate(r) for r in ("tf32", "bf16", "fp8", "fp4")]
    assert rates[1:] == sorted(rates[1:])


@pytest.mark.parametrize("name", sorted(FITTED))
def test_borrowed_constants_are_said_in_the_notes(name: str) -> None:
    own = next(n for n in (f"{name}-sxm", f"{name}-sxm-80gb", name) if n in gpu_names())
    borrowers = [load_gpu(n) for n in gpu_names() if load_gpu(n).constants == name and n != own]
    for gpu in borrowers:
        assert gpu.name == "h100-pcie" or any(name.upper() in note for note in gpu.notes)


def test_figures_of_the_data_sheets() -> None:
    h200 = load_gpu("h200-sxm")
    assert h200.bandwidth == 4.8e12
    assert h200.nvlink
    assert h200.nvlink.bandwidth == 450e9
    gb200 = load_gpu("gb200")
    assert gb200.nvlink
    assert 2 * gb200.nvlink.bandwidth == 1.8e12  # both directions, as NVIDIA counts
    assert load_gpu("l40s").nvlink is None


def test_upper_case_and_underscores_are_forgiven() -> None:
    assert load_gpu(" H200_SXM") is not None
    assert load_gpu("H200 SXM") == load_gpu("h200-sxm")


def test_an_unknown_gpu_is_refused_with_close_names_and_the_list() -> None:
    with pytest.raises(InputError, match="did you mean 'h100-sxm' or 'h100-pcie'") as error:
        load_gpu("h100")
    assert all(name in str(error.value) for name in gpu_names())
    with pytest.raises(InputError, match="known:"):
        load_gpu("../gpus/h20")


def test_a_rate_missing_in_hardware_falls_to_the_next_wider() -> None:
    assert load_gpu("h100-sxm").matrix_rate("fp4") == load_gpu("h100-sxm").matrix_rate("fp8")
    assert load_gpu("v100-sxm2-32gb").matrix_rate("fp8") == 125e12
    with pytest.raises(InputError, match="choose one of"):
        load_gpu("l40s").matrix_rate("fp6")


def test_gpus_are_frozen_hashable_and_strict() -> None:
    gpu = load_gpu("h20")
    with pytest.raises(ValidationError):
        gpu.name = "other"  # type: ignore[misc]
    with pytest.raises(ValidationError, match="extra"):
        Gpu.model_validate({**gpu.model_dump(), "memory": 1})
    with pytest.raises(ValidationError):
        NvLink(generation="nvlink4", links=18, link_bandwidth=float("nan"))
