"""Fitted constants of kernels as they lie in ``sim/data/kernels``, one file per GPU that was measured, and what an
engine makes of kernels (``sim/data/engines``).

A family that a GPU has no table for is taken from the file that its own names as ``nearest``: constants are fractions
of the data sheet, seconds of one multiprocessor and launch times, so they carry over to a GPU of the same make.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from pydantic import Field

from sim.errors import InputError
from sim.kernels.decode_attention import DecodeFit
from sim.kernels.experts import ExpertsFit
from sim.kernels.fit import Fit, Residual
from sim.kernels.gemm import GemmFit
from sim.kernels.prefill_attention import PrefillFit
from sim.kernels.routing import Routing
from sim.kernels.simple import ElementwiseFit, HostTime
from sim.noun import Noun

FAMILIES = ("gemm", "decode_attention", "mla_decode", "prefill_attention", "mla_prefill", "experts")
"""Families with fitted constants."""


class KernelConstants(Noun):
    """Fits of all families on one GPU; a family may have several, by library, format and kernel."""

    source: str
    nearest: str | None = None
    """Whose fits stand in for a family that was not measured on this GPU."""
    gemm: tuple[GemmFit, ...] = ()
    decode_attention: tuple[DecodeFit, ...] = ()
    mla_decode: tuple[DecodeFit, ...] = ()
    prefill_attention: tuple[PrefillFit, ...] = ()
    mla_prefill: tuple[PrefillFit, ...] = ()
    experts: tuple[ExpertsFit, ...] = ()
    borrowed: tuple[str, ...] = ()
    """Families that come from ``nearest``, as ``load_constants`` notes."""

    def fits(self, family: str) -> tuple[Fit, ...]:
        """All fits of a family."""
        found: tuple[Fit, ...] = getattr(self, family)
        return found


class EngineConstants(Noun):
    """What an engine makes of the times of kernels, found by comparing whole steps with their sum."""

    source: str
    launch: dict[str, float] = Field({})
    """Factor on the launch time of a family: part of it overlaps with the kernel before."""
    time: dict[str, float] = Field({})
    """Factor on the whole time of a family."""
    quantise: float | None = Field(None, ge=0)
    """Seconds to quantise activations in a kernel that does it beside its own work; without it, the tables' own."""
    elementwise: ElementwiseFit = ElementwiseFit(launch=0.0, memory=1.0)
    recurrence: ElementwiseFit = ElementwiseFit(launch=0.0, memory=1.0)
    """The kernels around a state of linear attention, which no table times."""
    index: ElementwiseFit = ElementwiseFit(launch=0.0, memory=1.0)
    """The kernels that score and pick tokens for sparse attention, which no table times."""
    host: HostTime = HostTime(step=0.0, sequence=0.0)
    routing: Routing = Routing()
    residual: Residual | None = None
    """How far measured times per token lie from those predicted with these constants."""


TABLES = EngineConstants(source="kernels alone, as the tables time them")
"""No engine: what the tables measured."""


def _data() -> Traversable:
    return files("sim") / "data"


def _read(path: Traversable) -> Any:
    from ruamel.yaml import YAML

    return YAML(typ="safe", pure=True).load(path.read_text("utf-8"))


def constant_names() -> list[str]:
    """GPUs with fitted constants, sorted."""
    return sorted(p.name.removesuffix(".yaml") for p in (_data() / "kernels").iterdir() if p.name.endswith(".yaml"))


@lru_cache(maxsize=16)
def load_constants(name: str) -> KernelConstants:
    """Constants by name, with those of the nearest GPU where there are none. Raises ``InputError`` for an unknown one.

    A family that one library was measured with and another was not keeps what it has.
    """
    path = _data() / "kernels" / f"{name}.yaml"
    if not path.is_file():
        raise InputError(f"there are no kernel constants called {name!r}")
    own = KernelConstants.model_validate(_read(path))
    missing = tuple(family for family in FAMILIES if not own.fits(family))
    if not own.nearest or not missing:
        return own
    near = load_constants(own.nearest)
    return own.model_copy(update={**{family: near.fits(family) for family in missing}, "borrowed": missing})
