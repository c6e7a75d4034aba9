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

from sim.errors import InputError
from sim.kernels import EngineConstants
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
