"""What an engine makes of kernels and collectives that were measured alone, and what its scheduler adds.

A kernel's time in a table comes from replaying it alone, over and over, on data that it was given. In an engine it
stands in a captured graph with others (less launch time), activations are quantised inside the kernel before it, tokens
prefer some experts over others, collectives wait for the slowest rank's kernel, and the host does its part of each
step. Constants are data (``sim/data/engines``), refitted by ``bench/engines.py``; none belongs to a model or a GPU.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from pydantic import Field

from sim.collectives import ENGINE, CollectiveCost, Collectives
from sim.constants_fabric import FabricConstants, load_fabric_constants
from sim.errors import InputError
from sim.fabric import Fabric
from sim.hardware import Gpu
from sim.kernels import EngineConstants, Kernels, load_constants
from sim.noun import Noun
from sim.serving import ServingConstants

FOLDER = Path(__file__).parent / "data" / "engines"
ANY = "any"
"""The constants of all engines together."""


class Engine(Noun):
    """Constants of one engine, or of all of them."""

    name: str
    source: str
    kernels: EngineConstants
    collective_latency: float = Field(1.0, ge=0)
    """Factor on the fixed time of a collective."""
    serving: ServingConstants = ServingConstants()

    def library(self, default: str = ENGINE) -> str:
        """Whose kernels and collectives run."""
        return default if self.name == ANY else self.name


def engine_names() -> list[str]:
    """Names of the engines whose constants ship with the package, sorted."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


@cache
def load_engine(name: str) -> Engine:
    """Constants of an engine. Raises ``InputError`` for a name without a file."""
    from ruamel.yaml import YAML

    if name not in engine_names():
        raise InputError(f"engine {name!r} is not known; choose one of {', '.join(engine_names())}")
    return Engine.model_validate(YAML(typ="safe", pure=True).load(FOLDER / f"{name}.yaml"))


class EngineCollectives(Collectives):
    """Collectives as they run inside an engine: between kernels that do not end at the same moment on all ranks."""

    def __init__(self, fabric: Fabric, gpu: Gpu, constants: FabricConstants, library: str, latency: float):
        super().__init__(fabric, gpu, constants, library)
        self.latency = latency

    def cost(self, kind: str, ranks: tuple[int, ...]) -> CollectiveCost:
        """As of the library alone, with a longer fixed part. Raises what ``Collectives.cost`` raises."""
        cost = super().cost(kind, ranks)
        if len(ranks) == 1 or self.latency == 1.0:
            return cost
        pieces = tuple(piece._replace(fixed=self.latency * piece.fixed) for piece in cost.pieces)
        return cost._replace(alpha=self.latency * cost.alpha, pieces=pieces)


def engine_kernels(gpu: Gpu, engine: Engine, library: str = ENGINE) -> Kernels:
    """Kernels of a GPU inside an engine."""
    return Kernels(gpu, load_constants(gpu.constants), engine.kernels, library)


def engine_collectives(fabric: Fabric, gpu: Gpu, engine: Engine, library: str = ENGINE) -> Collectives:
    """Collectives of a machine inside an engine."""
    return EngineCollectives(fabric, gpu, load_fabric_constants(), library, engine.collective_latency)
