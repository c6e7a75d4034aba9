"""Bytes of stored elements, scales included, and the rate they multiply at."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.errors import InputError
from sim.formats import FORMATS, number_format


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
