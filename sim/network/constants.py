"""Measured constants of collective kernels: ``sim/data/collectives.yaml`` says which kernels exist, what they run
and where the numbers come from, ``sim/data/collectives/fitted.yaml`` holds what ``bench/collectives.py --fit``
made of the measurements. Data-sheet bandwidths are not here but on the fabric's links.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache, cached_property
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field, model_validator

from sim.errors import InputError
from sim.network.routes import tier
from sim.noun import Noun

DATA = Path(__file__).parent.parent / "data"


class Fit(NamedTuple):
    """One kernel on links of one kind.

    ``launch`` and ``step`` are seconds, once and per step; ``efficiency`` is a fraction of the data-sheet rate; ``own``
    is seconds per byte that a rank moves inside its memory, or through one multiprocessor where ``Kernel.sms`` says
    how many there are; ``hidden`` seconds of moving that the fixed time covers; ``cap`` the most bytes that go to one
    peer in one step before the library takes another kernel (``None``: any); ``expert`` seconds for each of
    ``Kernel.experts``.
    """

    launch: float
    step: float
    efficiency: float
    own: float
    hidden: float
    cap: float | None
    source: str
    expert: float = 0.0


CARRIER = Fit(0.0, 0.0, 1.0, 0.0, 0.0, None, "")


def plain(algorithm: str) -> str:
    """The name without a count: several rings are rings."""
    return "ring" if algorithm.endswith(" rings") else algorithm


class Kernel(Noun):
    """A kernel of a library: the collectives and algorithms it runs, and its fit on each kind of link."""

    name: str
    library: str
    kinds: tuple[str, ...] = Field(min_length=1)
    algorithms: tuple[str, ...] = Field(min_length=1)
    limits: dict[int, float] = Field(default_factory=dict)
    """Largest message in bytes for up to so many ranks; more ranks than the last are not served."""
    links: dict[str, Fit] = Field(default_factory=dict)
    sms: int | None = Field(default=None, ge=1)
    """Streaming multiprocessors through which all that it sends and keeps must pass, if their number is chosen; ``own``
    is then seconds per byte of one of them."""
    experts: int | None = Field(default=None, ge=1)
    """Experts of the model, if every rank announces what it sends to each of them."""

    @property
    def most_ranks(self) -> float:
        """Ranks of the largest group that it serves."""
        return max(self.limits, default=inf)

    def limit(self, ranks: int) -> float:
        """Bytes of the largest message among ``ranks``."""
        return self.limits[min(n for n in self.limits if n >= ranks)] if self.limits else inf

    def runs(self, algorithm: str) -> bool:
        """Whether it can run an algorithm."""
        return plain(algorithm) in self.algorithms


class FabricConstants(Noun):
    """Kernels by name, the libraries that each engine loads, and what links beside the main ones lose."""

    kernels: dict[str, Kernel]
    engines: dict[str, tuple[str, ...]]
    residuals: dict[str, dict[str, tuple[float, float]]] = Field(default_factory=dict)
    """By kernel and kind of link: measured over predicted, a tenth of all rows below and above."""
    carriers: dict[str, float]
    """Efficiency of links that only carry what another kind of link sends: NIC slots and CPU links."""
    overlap: float = Field(ge=1)
    """How far copies at home run beside what the links carry: the norm that adds their times, 1 for one after the
    other, more the more they overlap."""
    sources: dict[str, str] = Field(min_length=1)

    @model_validator(mode="after")
    def _every_number_has_its_source(self) -> FabricConstants:
        fits = [fit for kernel in self.kernels.values() for fit in kernel.links.values()]
        if missing := sorted({fit.source for fit in fits} - set(self.sources)):
            raise ValueError(f"sources are not spelled out: {', '.join(missing)}")
        if bad := [e for e in [*self.carriers.values(), *(fit.efficiency for fit in fits)] if not 0 < e <= 1]:
            raise ValueError(f"an efficiency lies in (0, 1], not {bad}")
        if any(
            min(fit.launch, fit.step, fit.own, fit.hidden, fit.cap or 0.0, fit.expert) < 0 or fit.cap == 0
            for fit in fits
        ):
            raise ValueError("times of a kernel are not negative, and its cap is positive")
        return self

    def together(self, on_links: float, at_home: float) -> float:
        """Seconds per byte of links and a rank's own memory, working side by side as far as ``overlap`` says."""
        longer = max(on_links, at_home)
        shorter = min(on_links, at_home) / longer
        more: float = (1.0 + shorter**self.overlap) ** (1.0 / self.overlap)
        return longer * more

    def kernels_for(self, kind: str, libraries: Iterable[str]) -> list[Kernel]:
        """Kernels of ``libraries`` that run collective ``kind``, in the order of the file."""
        wanted = set(libraries)
        return [k for k in self.kernels.values() if kind in k.kinds and k.library in wanted]

    @cached_property
    def names(self) -> frozenset[str]:
        """Everything that a collective can be forced to somewhere: algorithms, kernels and libraries."""
        kernels = self.kernels.values()
        algorithms = (name for kernel in kernels for name in kernel.algorithms)
        return frozenset(self.kernels) | {kernel.library for kernel in kernels} | set(algorithms)

    def with_chosen(self, **chosen: int) -> FabricConstants:
        """Return the same with other numbers, ``sms`` or ``experts``, for the kernels that have them."""
        kernels = {}
        for name, kernel in self.kernels.items():
            update = {field: n for field, n in chosen.items() if getattr(kernel, field) is not None}
            kernels[name] = kernel.model_copy(update=update)
        return self.model_copy(update={"kernels": kernels})

    def libraries(self, engine: str) -> Sequence[str]:
        """Libraries of an engine. Raises ``InputError`` if it is not known."""
        if engine not in self.engines:
            raise InputError(f"engine {engine!r} is not known; choose one of {', '.join(self.engines)}")
        return self.engines[engine]

    def fit(self, kernel: Kernel, link_kind: str) -> Fit | None:
        """The fit of a kernel on a kind of link, its nearest relative's, or ``None``.

        ``nvlink4-bridge`` falls back to ``nvlink4``, ``pcie5`` to ``pcie``, ``ib`` to ``network``, and any kind to
        ``other``, where the kernel has them; ``pcie5-nic`` and ``upi`` only carry.
        """
        names = relatives(link_kind)
        for name in names:
            if name in self.carriers:
                return CARRIER._replace(efficiency=self.carriers[name])
        return next((kernel.links[name] for name in (*names, "other") if name in kernel.links), None)

    def residual(self, kernel: str, link_kind: str) -> tuple[float, float]:
        """The residuals of a kernel on a kind of link, else on the others together, else 1 and 1."""
        of = self.residuals.get(kernel, {})
        if found := next((of[name] for name in relatives(link_kind) if name in of), None):
            return found
        return (min(low for low, _ in of.values()), max(high for _, high in of.values())) if of else (1.0, 1.0)


@cache
def relatives(link_kind: str) -> tuple[str, ...]:
    """Names under which a fit for a kind of link may stand, the nearest first."""
    family, dash, variant = link_kind.partition("-")
    plain = family.rstrip("0123456789")
    return (link_kind, plain + dash + variant) if variant == "nic" else (link_kind, family, plain, tier(link_kind))


def read_constants(raw: Mapping[str, Any], fitted: Mapping[str, Any]) -> FabricConstants:
    """Put the fitted numbers ``{kernel: {link: [launch, step, ...]}}`` into the description of the kernels."""
    kernels = {
        name: {**kernel, "name": name, "links": {**fitted.get(name, {}), **kernel.get("links", {})}}
        for name, kernel in raw["kernels"].items()
    }
    return FabricConstants.model_validate({**raw, "kernels": kernels})


@cache
def load_fabric_constants() -> FabricConstants:
    """Read the constants that ship with the simulator (immutable, so reading once is enough)."""
    from ruamel.yaml import YAML

    yaml = YAML(typ="safe", pure=True)
    raw, fitted, residuals = (
        yaml.load(DATA / path) or {}
        for path in ("collectives.yaml", "collectives/fitted.yaml", "collectives/residuals.yaml")
    )
    return read_constants({**raw, "residuals": residuals}, fitted)
