"""Bytes of stored elements, scales included, and the rate they multiply at."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies_for_tests import figures, layout, placement

from sim.catalog.models import load_model
from sim.errors import InputError
from sim.formats import FORMATS, number_format
from sim.proof import prove
from sim.workload import Precision, Workload


@pytest.mark.parametrize(
    ("name", "elements", "size"),
    [
        ("bf16", 3, 6),
        ("fp32", 3, 12),
        ("fp8", 7168, 7168),
        ("fp8_block", 128 * 128, 128 * 128 + 4),
        ("fp8_group", 128, 128 + 4),
        ("mxfp8", 32, 32 + 1),
        ("nvfp4", 16, 8 + 1),
        ("mxfp4", 32, 16 + 1),
        ("fp4", 1, 1),
        ("int4", 5, 3),
        ("bf16", 0, 0),
    ],
)
def test_bytes(name, elements, size):
    assert number_format(name).bytes(elements) == size


@given(st.sampled_from(sorted(FORMATS)), st.integers(0, 10**15))
def test_bytes_are_the_bits_rounded_up(name, elements):
    found, exact = number_format(name).bytes(elements), FORMATS[name].bits * elements / 8
    assert exact <= found < exact + 1


def test_rates():
    assert {f.name: f.rate for f in FORMATS.values()} == {
        "fp32": "tf32",
        "bf16": "bf16",
        "fp16": "bf16",
        "fp8": "fp8",
        "fp8_block": "fp8",
        "fp8_group": "fp8",
        "mxfp8": "fp8",
        "int8": "int8",
        "int4": "bf16",
        "int4_g32": "bf16",
        "fp4": "fp4",
        "nvfp4": "fp4",
        "mxfp4": "fp4",
        "fp8_ds_mla": "fp8",
        "nvfp4_ds_mla": "fp4",
    }


def test_half_a_byte_without_scales_and_a_sixteenth_more_with_them():
    assert FORMATS["fp4"].bits == 4
    assert FORMATS["nvfp4"].bits - FORMATS["fp4"].bits == Fraction(8, 16)


def test_an_unknown_format_lists_the_known_ones():
    with pytest.raises(InputError) as error:
        number_format("fp6")
    known = "fp32, bf16, fp16, fp8, fp8_block, fp8_group, mxfp8, int8, int4, int4_g32, fp4, nvfp4, mxfp4, "
    known += "fp8_ds_mla, nvfp4_ds_mla"
    assert str(error.value) == f"number format 'fp6' is not known; choose one of {known}"


def test_packed_caches_have_the_bytes_of_their_kernels_and_are_for_one_latent_only():
    assert number_format("fp8_ds_mla").bytes(576) == 512 + 4 * 4 + 64 * 2 == 656
    assert number_format("nvfp4_ds_mla").bytes(576) == 512 // 2 + 64 + 32 == 352
    r1, llama = load_model("deepseek-r1"), load_model("llama-3.1-8b")
    assert Precision(kv_cache="fp8_ds_mla").resolve(r1).kv_cache == "fp8_ds_mla"
    with pytest.raises(InputError, match=r"kv_cache: fp8_ds_mla packs a latent of 576 elements, which llama-3\.1-8b"):
        Precision(kv_cache="fp8_ds_mla").resolve(llama)


@pytest.mark.parametrize("kv", ["fp8_ds_mla", "nvfp4_ds_mla", "nvfp4", "fp8", "bf16"])
def test_a_cache_in_any_format_is_accounted_to_the_byte(kv):
    proof = prove(load_model("deepseek-v3.2"), layout("dcp", tp=4, dcp=4), Precision(kv_cache=kv))
    assert proof.ok, proof.difference


@pytest.mark.parametrize(
    ("kv", "said", "arithmetic"),
    [
        ("bf16", None, "bf16"),
        ("fp8", None, "fp8"),
        ("nvfp4", None, "fp8"),
        ("int8", None, "bf16"),
        ("fp8", "bf16", "bf16"),
    ],
)
def test_attention_computes_in_the_format_of_its_cache_unless_told_otherwise(kv, said, arithmetic):
    precision = Precision(kv_cache=kv, attention=said)
    assert precision.attention_arithmetic == arithmetic
    placed = placement("llama-3.1-8b", "tp", precision, tp=1)
    work = figures(placed, Workload(batch=1, context=1024))["attention.core"]
    assert work.format == precision.attention_arithmetic
