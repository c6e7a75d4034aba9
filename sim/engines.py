"""What an engine makes of kernels that were measured alone: constants of vLLM, SGLang and TensorRT-LLM.

A kernel's time in a table comes from replaying it alone, over and over, on data that it was given. In an engine it
stands in a captured graph with others (less launch time), activations are quantised inside the kernel before it, tokens
prefer some experts over others, collectives wait for the slowest rank's kernel, and the host does its part of each
step. Constants are data (``sim/data/engines``), refitted by ``bench/engines.py``; none belongs to a model or a GPU.
"""

from __future__ import annotations

from functools import cache
from math import log, sqrt
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from sim.collectives import CollectiveCost, Collectives
from sim.errors import InputError
from sim.kernels import Cost, Kernels
from sim.noun import Noun
from sim.program import Work
from sim.serving import ServingConstants
from sim.workload import Number, smaller

FOLDER = Path(__file__).parent / "data" / "engines"
ANY = "any"
"""The constants of all engines together."""


class Engine(Noun):
    """Constants of one engine. Scales are factors on what tables say of a kernel alone."""

    name: str
    source: str
    launch: dict[str, float] = Field(default_factory=dict)
    """Factor on the fixed time of a kernel, by family; a family that is not named keeps it."""
    speed: dict[str, float] = Field(default_factory=dict)
    """Factor on the time that grows with the work, by family."""
    skew: float = Field(1.0, gt=0, le=1)
    """T tokens reach as many distinct experts as T^skew tokens would that choose evenly."""
    uneven: float = Field(0.0, ge=0)
    """How far the fullest expert rank lies above the mean: standard deviations of a Poisson count, times sqrt(2 ln EP)."""
    collective_latency: float = Field(1.0, ge=0)
    """Factor on the fixed time of a collective."""
    serving: ServingConstants = ServingConstants()


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


class EngineKernels(Kernels):
    """Kernels as they run inside an engine."""

    def __init__(self, kernels: Kernels, engine: Engine):
        self.gpu = kernels.gpu
        self.alone, self.engine = kernels, engine

    def cost(self, work: Work) -> Cost:
        """Seconds of one operation; also with arrays in ``work``."""
        if work.routing is not None:
            work = self._routed(work)
        launch = self.engine.launch.get(work.family, 1.0)
        speed = self.engine.speed.get(work.family, 1.0)
        cost = self.alone.cost(work)
        if launch == speed == 1.0:
            return cost
        fixed = launch * cost.fixed
        seconds = fixed + speed * (cost.seconds - cost.fixed)
        return cost._replace(
            seconds=np.maximum(seconds, cost.floor) if isinstance(seconds, np.ndarray) else max(seconds, cost.floor),
            fixed=fixed,
            compute=speed * cost.compute,
            memory=speed * cost.memory,
        )

    def _routed(self, work: Work) -> Work:
        """Fewer distinct experts than under even routing, on the expert rank that has most of them."""
        assert work.routing
        tokens, slots, ranks = work.routing
        if not slots:
            return work
        even = work.units
        rows = work.rows * tokens ** (self.engine.skew - 1)
        if ranks > 1 and self.engine.uneven:
            rows = rows * (1 + self.engine.uneven * sqrt(2 * log(ranks)) / _root(work.rows))
        hit = smaller(slots * (1 - (1 - 1 / slots) ** rows), smaller(even, rows))
        share = hit / even
        return work._replace(weight_bytes=work.weight_bytes * share, units=hit)


def _root(rows: Number) -> Number:
    return np.sqrt(np.maximum(rows, 1.0)) if isinstance(rows, np.ndarray) else sqrt(max(rows, 1.0))


class EngineCollectives(Collectives):
    """Collectives as they run inside an engine: between kernels that do not end at the same moment on all ranks."""

    def __init__(self, fabric: Any, gpu: Any, constants: Any, engine: Engine):
        super().__init__(fabric, gpu, constants, engine.name if engine.name in constants.engines else "trtllm")
        self.scale = engine.collective_latency

    def cost(self, kind: str, ranks: tuple[int, ...]) -> CollectiveCost:
        """As of the library alone, with a longer fixed part. Raises what ``Collectives.cost`` raises."""
        cost = super().cost(kind, ranks)
        if len(ranks) == 1 or self.scale == 1.0:
            return cost
        pieces = tuple(piece._replace(fixed=self.scale * piece.fixed) for piece in cost.pieces)
        return cost._replace(alpha=self.scale * cost.alpha, pieces=pieces)
