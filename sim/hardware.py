"""GPUs: what a data sheet says, each figure with its source. Efficiencies and latencies are not here but in
the fitted constants (``kernels``), because a peak is a fact and an efficiency is a measurement.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator

from sim.errors import InputError
from sim.noun import Noun
from sim.units import Bytes, Rate

RATES = ("tf32", "bf16", "fp8", "int8", "fp4")


class NvLink(Noun):
    """NVLink of one GPU: its generation, how many links, and bytes/s per link and direction."""

    generation: str
    links: int = Field(ge=1, le=64)
    link_bandwidth: Rate

    @property
    def bandwidth(self) -> float:
        """Bytes/s out of the GPU over all links, one direction."""
        return self.links * self.link_bandwidth


class Gpu(Noun):
    """One GPU: capacity in bytes, bandwidth in bytes/s, dense peaks in FLOP/s, all per GPU and data sheet."""

    name: str
    architecture: str
    memory_bytes: Bytes
    """What the driver shows to a process."""
    bandwidth: Rate
    """HBM (or GDDR), bytes/s."""
    peak: dict[str, Annotated[float, Field(gt=0)]]
    """Dense matrix rate in FLOP/s by the formats of ``RATES``; a rate that is absent is not in hardware."""
    multiprocessors: int = Field(132, ge=1, le=1024)
    """Streaming multiprocessors, over which kernels spread their tiles; those of an H100 unless said."""
    nvlink: NvLink | None = None
    pcie_bandwidth: Rate
    """Bytes/s in one direction over the slot."""
    constants: str = Field(pattern=r"[a-z0-9_-]+")
    """Name of the fitted kernel constants: its own, or those of the nearest GPU that has been measured."""
    sources: dict[str, str]
    notes: tuple[str, ...] = ()

    @field_validator("peak")
    @classmethod
    def _known_rates(cls, peak: dict[str, float]) -> dict[str, float]:
        if unknown := sorted(set(peak) - set(RATES)):
            raise ValueError(f"matrix rate {unknown[0]!r} is not known; choose from {', '.join(RATES)}")
        if "bf16" not in peak:
            raise ValueError("must say the rate of bf16, to which every other format falls back")
        return peak

    def matrix_rate(self, rate: str) -> float:
        """Dense FLOP/s at ``rate``, or at the next wider format that this GPU multiplies in hardware.

        Raises ``InputError`` when the rate is unknown.
        """
        if rate not in RATES:
            raise InputError(f"matrix rate {rate!r} is not known; choose one of {', '.join(RATES)}")
        wider = {"fp4": "fp8", "int8": "bf16", "fp8": "bf16", "tf32": "bf16", "bf16": "bf16"}
        while rate not in self.peak and rate != "bf16":
            rate = wider[rate]
        return self.peak[rate]
