"""Measured latencies and link efficiencies of collectives: ``sim/data/collectives.yaml``, every number with
its source. Data-sheet bandwidths are not here but on the fabric's links.
"""

from __future__ import annotations

from functools import cache
from math import log2
from pathlib import Path
from typing import NamedTuple

from pydantic import Field, model_validator

from sim.noun import Noun


class Alpha(NamedTuple):
    """Fixed seconds of a collective: ``base + doubling x log2(ranks)``."""

    base: float
    doubling: float
    source: str


class Efficiency(NamedTuple):
    """Fraction of a link's data-sheet bandwidth that a collective reaches."""

    fraction: float
    source: str


class FabricConstants(Noun):
    """Latency by tier, GPU constants and collective; efficiency by link kind and collective."""

    alpha: dict[str, dict[str, dict[str, Alpha]]]
    same_as: dict[str, str]
    efficiency: dict[str, dict[str, Efficiency]]
    sources: dict[str, str] = Field(min_length=1)

    @model_validator(mode="after")
    def _every_number_has_its_source(self) -> FabricConstants:
        used = {a.source for tier in self.alpha.values() for gpu in tier.values() for a in gpu.values()}
        used |= {e.source for link in self.efficiency.values() for e in link.values()}
        if missing := sorted(used - set(self.sources)):
            raise ValueError(f"sources are not spelled out: {', '.join(missing)}")
        if bad := [e.fraction for link in self.efficiency.values() for e in link.values() if not 0 < e.fraction <= 1]:
            raise ValueError(f"an efficiency lies in (0, 1], not {bad}")
        return self

    def alpha_seconds(self, tier: str, gpu_constants: str, kind: str, ranks: int) -> float:
        """Seconds before the first byte counts, on ``tier`` (nvlink, pcie, network), without route
        latency."""
        by_gpu = self.alpha[tier]
        by_kind = by_gpu.get(gpu_constants) or by_gpu.get("default") or next(iter(by_gpu.values()))
        entry = by_kind[self.same_as.get(kind, kind)]
        return entry.base + entry.doubling * log2(ranks)

    def link_efficiency(self, link_kind: str, kind: str) -> float:
        """Fraction of the data-sheet rate that collective ``kind`` reaches on a link of ``link_kind``.

        ``nvlink4-bridge`` falls back to ``nvlink4``, ``pcie5-nic`` to ``pcie-nic``, ``pcie5`` to ``pcie``, an
        unknown kind to ``other``.
        """
        family, dash, variant = link_kind.partition("-")
        plain = family.rstrip("0123456789")
        names = (link_kind, plain + dash + variant, family, plain, "other")
        by_kind = next(self.efficiency[name] for name in names if name in self.efficiency)
        entry = by_kind.get(kind) or by_kind.get(self.same_as.get(kind, kind)) or by_kind["default"]
        return entry.fraction


@cache
def load_fabric_constants() -> FabricConstants:
    """Read the constants that ship with the simulator (immutable, so reading once is enough)."""
    from ruamel.yaml import YAML

    path = Path(__file__).parent / "data" / "collectives.yaml"
    return FabricConstants.model_validate(YAML(typ="safe", pure=True).load(path))
