"""Number formats: bits per stored element, scales included, and the matrix rate that a format computes at.

Sizes: OCP Microscaling specification v1.0 (MXFP8, MXFP4: one E8M0 scale per 32 elements); NVIDIA NVFP4
(one E4M3 scale per 16); DeepSeek-V3 technical report (block FP8: one fp32 scale per 128 x 128 weights).
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

from sim.errors import InputError


class NumberFormat(NamedTuple):
    """How elements are stored (``bits`` each, scales included) and at which matrix rate they compute."""

    name: str
    bits: Fraction
    rate: str
    numerator: int
    denominator: int
    """Bytes per element as a fraction of whole numbers."""
    packs: int = 0
    """Elements of the one latent that this layout is for; 0: any number of elements."""

    def bytes(self, elements: int) -> int:
        """Bytes of ``elements`` elements, rounded up to a whole byte."""
        return -(-self.numerator * elements // self.denominator)


def _format(name: str, bits: Fraction, rate: str, packs: int = 0) -> NumberFormat:
    size = bits / 8
    return NumberFormat(name, bits, rate, size.numerator, size.denominator, packs)


_TABLE = (
    _format("fp32", Fraction(32), "tf32"),
    _format("bf16", Fraction(16), "bf16"),
    _format("fp16", Fraction(16), "bf16"),
    _format("fp8", Fraction(8), "fp8"),
    _format("fp8_block", Fraction(4097, 512), "fp8"),
    _format("fp8_group", Fraction(33, 4), "fp8"),
    _format("mxfp8", Fraction(33, 4), "fp8"),
    _format("int8", Fraction(8), "int8"),
    _format("int4", Fraction(4), "bf16"),  # weight-only: dequantised to 16 bit before the product
    _format(
        "int4_g32", Fraction(9, 2), "bf16"
    ),  # with one 16-bit scale per 32 weights (Kimi-K2 Thinking, compressed-tensors)
    _format("fp4", Fraction(4), "fp4"),  # without scales, as the Helix paper counts
    _format("nvfp4", Fraction(9, 2), "fp4"),
    _format("mxfp4", Fraction(17, 4), "fp4"),
    # packed caches of a 512 + 64 latent, vLLM: 512 in fp8 (or NVFP4) with scales, 64 rope elements in 16 bit
    _format("fp8_ds_mla", Fraction(656 * 8, 576), "fp8", 576),
    _format("nvfp4_ds_mla", Fraction(352 * 8, 576), "fp4", 576),
)
FORMATS = {f.name: f for f in _TABLE}


def number_format(name: str) -> NumberFormat:
    """Look a format up. Raises ``InputError`` listing the known ones."""
    try:
        return FORMATS[name]
    except KeyError:
        raise InputError(f"number format {name!r} is not known; choose one of {', '.join(FORMATS)}") from None
