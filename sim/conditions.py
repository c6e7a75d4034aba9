"""What a machine is up against in a scenario: parts that are broken or slow, traffic of others, and which kernels move
the messages.

A fault or a transfer has a time in the step; from the start (``at: 0``) it holds for any granularity, later ones and
all traffic of others need ``flows``, where messages and time are followed one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StrictInt, field_validator, model_validator

from sim.errors import Problem
from sim.explain import one_of, show, suggest
from sim.network.collectives import KINDS
from sim.network.constants import load_fabric_constants
from sim.noun import Noun
from sim.units import Bytes, Seconds, format_bytes, format_seconds


def _known_engine(name: str) -> str:
    engines = load_fabric_constants().engines
    if name not in engines:
        raise ValueError(f"must be {one_of(engines)}, not {show(name)}")
    return name


EngineName = Annotated[str, AfterValidator(_known_engine)]
"""An engine of ``sim/data/collectives.yaml``, as it is now or with the version up to which it was otherwise."""
Source = Literal["fitted", "measured"]
Moment = Annotated[Seconds, Field(le=3600)]
SLOWEST = 1e-6
"""What is slower is broken, and a step that waits for it says nothing."""


class Fault(Noun):
    """A part that is gone or slow: a ``node`` of the topology (switch chip, NIC, PCIe switch), a ``link`` between two
    nodes (both directions), or a ``gpu`` by number, whose computing is slowed."""

    node: str | None = None
    link: tuple[str, str] | None = None
    gpu: StrictInt | None = Field(None, ge=0)
    speed: float = Field(0.0, ge=0, lt=1)
    """What is left of the bandwidth of a link, or of all links of a node, or of the speed of a GPU: at least a
    millionth, or 0: it is gone."""
    at: Moment = 0.0
    """Seconds after the step has begun."""
    until: Annotated[Moment, Field(gt=0)] | None = None
    """When it is repaired; left out: never."""

    @model_validator(mode="after")
    def _one_part(self) -> Fault:
        named = [key for key in ("node", "link", "gpu") if getattr(self, key) is not None]
        if len(named) != 1:
            raise ValueError(f"must name one of node, link or gpu, not {' and '.join(named) or 'none'}")
        if self.gpu is not None and not self.speed:
            raise ValueError(
                "a GPU that is gone runs no rank; give it a speed such as 0.8, or leave it out with rank_order"
            )
        if 0 < self.speed < SLOWEST:
            raise ValueError(f"has a speed of {self.speed:g}; give at least {SLOWEST:g}, or 0 for what is gone")
        if self.until is not None and self.until <= self.at:
            raise ValueError(f"ends at {format_seconds(self.until)}, but begins at {format_seconds(self.at)}")
        return self

    def __str__(self) -> str:
        part = f"link {'–'.join(self.link)}" if self.link else self.node or f"GPU {self.gpu}"
        state = f"at {100 * self.speed:.3g} % speed" if self.speed else "gone"
        since = f" after {format_seconds(self.at)}" if self.at else ""
        return f"{part} {state}{since}" + (f" until {format_seconds(self.until)}" if self.until else "")


class Traffic(Noun):
    """A message of somebody else on the same fabric: another job's collective, or a KV transfer during decode."""

    kind: str = "send"
    gpus: tuple[Annotated[StrictInt, Field(ge=0)], ...] = Field(min_length=2)
    """GPUs by number; a ``send`` goes from the first to the second."""
    size: Annotated[Bytes, Field(gt=0)]
    """Bytes of the message, as ``sim.network.collectives`` counts them for its kind."""
    at: Moment = 0.0
    """Seconds after the step has begun."""
    repeat: bool = False
    """Whether the next one starts whenever one is through, as long as the step takes."""

    @field_validator("kind")
    @classmethod
    def _known(cls, kind: str) -> str:
        if kind not in KINDS:
            raise ValueError(
                f"{show(kind)} is not a collective; {suggest(kind, KINDS)}choose one of {', '.join(KINDS)}"
            )
        return kind

    @model_validator(mode="after")
    def _distinct(self) -> Traffic:
        if len(set(self.gpus)) < len(self.gpus):
            raise ValueError("lists a GPU twice")
        if self.kind == "send" and len(self.gpus) > 2:
            raise ValueError(f"send goes from one GPU to one other, not among {len(self.gpus)}")
        return self

    def __str__(self) -> str:
        gpus = ", ".join(map(str, self.gpus[:8])) + ", …" * (len(self.gpus) > 8)
        again = ", again and again" if self.repeat else ""
        since = f" after {format_seconds(self.at)}" if self.at else ""
        return f"{self.kind} of {format_bytes(self.size)} on GPUs {gpus}{since}{again}"


class Conditions(Noun):
    """Everything about a machine that a scenario says beside its GPU and topology."""

    engine: EngineName = "trtllm"
    """Whose kernels run."""
    kernels: Source = "fitted"
    """Where the times of compute kernels come from."""
    collectives: dict[str, str | tuple[str, ...]] = Field(default_factory=dict)
    """Forced algorithm, kernel or library by kind of collective."""
    faults: tuple[Fault, ...] = ()
    background: tuple[Traffic, ...] = ()

    @property
    def library(self) -> str:
        """Whose compute kernels run: the engine's, whatever its version."""
        return self.engine.partition("-")[0]

    def words(self) -> Iterator[str]:
        """Yield what a reader of results must know."""
        for kind, wanted in self.collectives.items():
            yield f"{kind} forced to {wanted if isinstance(wanted, str) else ' or '.join(wanted)}"
        yield from map(str, self.faults)
        yield from map(str, self.background)

    def problems(self, gpus: int) -> Iterator[Problem]:
        """Yield what cannot be on a machine of so many GPUs."""
        names = load_fabric_constants().names if self.collectives else ()
        for kind, wanted in self.collectives.items():
            if kind not in KINDS:
                text = f"is not a collective; {suggest(kind, KINDS)}choose one of {', '.join(KINDS)}"
                yield Problem(text, f"collectives.{kind}")
            elif unknown := [n for n in ((wanted,) if isinstance(wanted, str) else wanted) if n not in names]:
                hint = suggest(unknown[0], names) or "choose for example ring, tree, one_shot or nccl"
                text = f"{show(unknown[0])} is no algorithm, kernel or library of collectives; {hint}"
                yield Problem(text.rstrip(), f"collectives.{kind}")
            elif not wanted:
                yield Problem(
                    "names nothing; leave it out, or name an algorithm, kernel or library", f"collectives.{kind}"
                )
        numbered = [(f"faults.{i}.gpu", fault.gpu) for i, fault in enumerate(self.faults) if fault.gpu is not None]
        numbered += [(f"background.{i}.gpus", max(traffic.gpus)) for i, traffic in enumerate(self.background)]
        for key, number in numbered:
            if number >= gpus:
                yield Problem(f"there is no GPU {number}: the topology has 0 to {gpus - 1}", key)

    def needs_flows(self) -> Iterator[Problem]:
        """Yield what only granularity ``flows`` can follow."""
        hint = "needs granularity: flows, which follows messages and time one by one"
        for i, fault in enumerate(self.faults):
            for key in ("at", "until"):
                if getattr(fault, key):
                    yield Problem(f"a fault that comes or goes during the step {hint}", f"faults.{i}.{key}")
        if self.background:
            yield Problem(f"traffic of others {hint}", "background")
