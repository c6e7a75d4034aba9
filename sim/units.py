"""Quantities at the border: ``32k``, ``1 MiB``, ``900 GB/s``, ``400 Gb/s``, ``5 us``.

Inside the simulator everything is in SI base units: seconds, bytes, bytes/s, FLOP/s. Token counts follow
the field's habit (a "128k context" has 131,072 tokens), so a bare ``k``, ``M`` or ``G`` on a *count* is
binary; on bytes, bits, FLOP and rates the prefixes are SI and the binary ones are written ``KiB``, ``MiB``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from sim.errors import UnitError
from sim.explain import show

_QUANTITY = re.compile(r"\s*([+-]?(?:\d[\d_,]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([A-Za-zµμ]*(?:/s)?)\s*")
_SI = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY = {"k": 2**10, "K": 2**10, "M": 2**20, "G": 2**30, "m": 2**20}
_COUNT = {"": 1} | _BINARY | {f"{p}i": f for p, f in _BINARY.items() if p in "KMG"}
_BYTES = {f"{p}B": f for p, f in _SI.items()} | {f"{p}iB": 1024.0**n for n, p in enumerate("KMGT", start=1)}
_RATES = {f"{u}/s": f for u, f in _BYTES.items()} | {
    f"{p}{unit}": f / 8 for p, f in _SI.items() for unit in ("b/s", "bit/s", "bps") if p + unit != "b/s"
}
_TIMES = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ns": 1e-9}


def _parse(value: Any, units: Mapping[str, float], kind: str, example: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise UnitError(f"{show(value)} is not {kind}; write for example {example}")
    if isinstance(value, str):
        match = _QUANTITY.fullmatch(value)
        if not match:
            raise UnitError(f"{show(value)} is not {kind}; write for example {example}")
        number, unit = match.groups()
        if unit and unit not in units:
            known = ", ".join(u for u in units if u)
            raise UnitError(f"{value!r} has the unit {unit!r}, which is not one of {kind} ({known})")
        digits = number.replace("_", "").replace(",", "")
        if unit in ("", *(_COUNT if units is _COUNT else ())) and re.fullmatch(r"[+-]?\d+", digits):
            value = int(digits) * int(units.get(unit, 1))  # stays exact above 2**53
        else:
            value = float(digits) * units.get(unit, 1.0)
    if not math.isfinite(value):
        raise UnitError(f"{value!r} is not a finite number; write for example {example}")
    found: float = value
    return found


def parse_count(value: Any) -> int:
    """Read a count of tokens, sequences or requests: ``4096``, ``32k`` = 32,768, ``1M`` = 1,048,576, ``1e6``.

    Raises
    ------
    UnitError
        If the text is not a count, or is not a whole number.
    """
    number = _parse(value, _COUNT, "a count", "4096, 32k or 1M")
    if number != int(number):
        raise UnitError(f"{value!r} is not a whole number; write for example 4096, 32k or 1M")
    return int(number)


def parse_bytes(value: Any) -> int:
    """Read an amount of memory: ``1 MiB``, ``141 GB``, ``141e9``. Raises ``UnitError``."""
    return round(_parse(value, _BYTES, "an amount of memory", "80 GB, 1 MiB or 80e9"))


def parse_rate(value: Any) -> float:
    """Read a bandwidth in bytes/s: ``900 GB/s``, ``400 Gb/s`` (bits), ``900e9``. Raises ``UnitError``."""
    return float(_parse(value, _RATES, "a bandwidth", "900 GB/s, 400 Gb/s or 900e9"))


def parse_seconds(value: Any) -> float:
    """Read a time in seconds: ``5 us``, ``20 ms``, ``2e-6``. Raises ``UnitError``."""
    return float(_parse(value, _TIMES, "a time", "5 us, 20 ms or 2e-6"))


Count = Annotated[int, BeforeValidator(parse_count), Field(ge=1)]
Bytes = Annotated[int, BeforeValidator(parse_bytes), Field(ge=0)]
Rate = Annotated[float, BeforeValidator(parse_rate), Field(gt=0)]
Seconds = Annotated[float, BeforeValidator(parse_seconds), Field(ge=0)]


def format_bytes(value: float) -> str:
    """Write bytes for people: ``11.8 GiB``, ``512 B``."""
    for factor, unit in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if abs(value) >= factor:
            return f"{value / factor:.3g} {unit}" if value < 1000 * factor else f"{value / factor:,.0f} {unit}"
    return f"{value:.0f} B"


def format_seconds(value: float) -> str:
    """Write a time for people: ``12.3 ms``, ``4.56 us``."""
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if abs(value) >= factor:
            return f"{value / factor:.3g} {unit}" if value < 1000 * factor else f"{value / factor:,.0f} {unit}"
    return f"{value / 1e-9:.3g} ns" if value else "0 s"


def format_count(value: int) -> str:
    """Write a token count for people: ``32k``, ``1M``, ``1,000,003``."""
    for factor, unit in ((2**20, "M"), (2**10, "k")):
        if value >= factor and value % factor == 0:
            return f"{value // factor:,}{unit}"
    return f"{value:,}"
