"""What an engine makes of kernels and collectives that were measured alone, and what its scheduler adds.

A kernel's time in a table comes from replaying it alone, over and over, on data that it was given. In an engine it
stands in a captured graph with others, activations are quantised inside the kernel before it, tokens prefer some
experts over others, and small kernels that no table times stand between the large ones. Constants are data
(``sim/data/engines``), refitted by ``bench/engines.py``; none belongs to a model or a GPU. An engine's own file holds
only what sets it apart: everything else is that of ``any``.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from pydantic import Field

from sim.conditions import Conditions
from sim.errors import InputError
from sim.kernels import EngineConstants
from sim.kernels.fit import Residual
from sim.network.constants import load_fabric_constants
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
    ttft: Residual | None = None
    """How far measured times to the first token lie from the predicted ones."""


def engine_names() -> list[str]:
    """Names of the engines whose constants ship with the package, sorted."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def library(engine: str) -> str:
    """Whose kernels run under an engine by this name; those of TensorRT-LLM where it has none of its own."""
    return engine if engine in load_fabric_constants().engines else Conditions().engine


def read_engine(name: str) -> dict[str, Any]:
    """What an engine's own file says. Raises ``InputError`` for a name without a file."""
    from ruamel.yaml import YAML

    if name not in engine_names():
        raise InputError(f"engine {name!r} is not known; choose one of {', '.join(engine_names())}")
    found: dict[str, Any] = YAML(typ="safe", pure=True).load(FOLDER / f"{name}.yaml")
    return found


def combined(common: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """The common constants with an engine's own ones in their place."""
    merged = {
        key: combined(common[key], value) if isinstance(value, dict) and key in common else value
        for key, value in own.items()
    }
    return common | merged


@cache
def load_engine(name: str) -> Engine:
    """Constants of an engine. Raises ``InputError`` for a name without a file."""
    own = read_engine(name)
    return Engine.model_validate(own if name == ANY else combined(read_engine(ANY), own))
