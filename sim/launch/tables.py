"""The tables of flags, names and policies under ``sim/data/launch``."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any, Literal

from pydantic import Field

from sim.errors import InputError
from sim.noun import Noun

ENGINES = ("vllm", "sglang", "trtllm")


def read_table(name: str) -> dict[str, Any]:
    """The data of one file under ``sim/data/launch``."""
    from ruamel.yaml import YAML

    text = files("sim").joinpath("data", "launch", f"{name}.yaml").read_text("utf-8")
    found: dict[str, Any] = YAML(typ="safe", pure=True).load(text)
    return found


class Flag(Noun):
    """A flag that sets a field of ``Settings``."""

    names: tuple[str, ...] = Field(min_length=1)
    sets: str
    type: Literal["count", "fraction", "text", "switch", "json"]


class Known(Noun):
    """Flags that set nothing; ``refuse`` marks those that touch memory in a way that is not modelled."""

    names: tuple[str, ...] = Field(min_length=1)
    kind: Literal["ignore", "refuse"] = "ignore"
    why: str = ""


class FlagTable(Noun):
    """The flags of one engine in one version."""

    engine: str
    version: str
    sources: tuple[str, ...]
    commands: tuple[tuple[str, ...], ...]
    """Words by which a command of this engine is known, after ``python``."""
    image: str
    """Container image whose arguments are the engine's."""
    config: str
    """Flag whose value is a YAML file of further options."""
    flags: tuple[Flag, ...]
    json_keys: dict[str, dict[str, str]] = Field({}, validation_alias="json")
    keys: dict[str, str] = Field({})
    """Dotted keys of the YAML, beside the long names of flags."""
    neutral_keys: tuple[str, ...] = ()
    neutral: tuple[Known, ...] = ()
    """Flags with a value."""
    switches: tuple[Known, ...] = ()
    environment: dict[str, str] = Field({})
    """Variables that set a field."""


@cache
def flag_table(engine: str) -> FlagTable:
    """The flags of an engine. Raises ``InputError`` for one without a table."""
    if engine not in ENGINES:
        raise InputError(f"engine {engine!r} has no table of flags; choose one of {', '.join(ENGINES)}")
    return FlagTable.model_validate(read_table(engine))


class Words(Noun):
    """By which words of its name an unknown flag may touch layout or memory."""

    touches: frozenset[str]
    environment: frozenset[str]

    def touching(self, name: str) -> str | None:
        """The first word of a flag's or variable's name that may touch layout or memory."""
        words = name.lower().strip("-").replace("_", "-").replace(".", "-").split("-")
        return next((word for word in words if word in self.touches), None)


@cache
def words() -> Words:
    """The rule for what no table knows."""
    return Words.model_validate(read_table("words"))


class Names(Noun):
    """How names of checkpoints and formats map to the catalogue's."""

    source: str
    checkpoints: dict[str, dict[str, Any]]
    formats: dict[str, dict[str, Any]]
    plain: tuple[str, ...]
    weights: dict[str, str]
    kv: dict[str, str]


@cache
def names() -> Names:
    """Names of checkpoints and formats."""
    return Names.model_validate(read_table("models"))
