"""Compare what is said of a launch with what happened: published start-up logs, refusals and failures."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from sim.catalog.gpus import load_gpu
from sim.errors import InputError
from sim.hardware import Gpu
from sim.launch.capacity import Capacity, capacity
from sim.launch.command import parse
from sim.launch.launch import Launch, resolve
from sim.launch.tables import read_table
from sim.noun import Noun
from sim.units import Bytes

USUAL_TOLERANCE = 0.12


class Outcome(Noun):
    """What happened to one launch; see ``sim/data/launch/outcomes.yaml``."""

    id: str
    source: str
    command: str | None = None
    than: str | None = None
    options: str | None = None
    config: dict[str, Any] | None = None
    gpu: str | None = None
    memory: Bytes | None = None
    version: str | None = None
    expect: Literal["refuses", "tokens", "ratio", "too_small", "starts"] | None = None
    rule: str | None = None
    value: float | None = None
    tolerance: float = USUAL_TOLERANCE
    long: bool = True
    """Whether a sequence of the longest length fits as well."""
    why_not: str | None = None


class Verdict(Noun):
    """What is said of it, and whether that agrees."""

    id: str
    agrees: bool | None
    """``None`` where there is no answer."""
    said: str
    expected: str


class Log(Noun):
    """A start-up log as a command; ``row`` is that of the measurements."""

    row: str
    gpu: str
    memory: Bytes | None = None
    version: str
    command: str
    more: str = ""

    def predict(self) -> Capacity:
        """What is said of this launch."""
        return capacity(resolve(parse(f"{self.command} {self.more}")), _gpu(self.gpu, self.memory), self.version)


def logs() -> list[Log]:
    """Every start-up log that names GPU, engine and utilisation."""
    return [Log.model_validate(row) for row in read_table("logs")["rows"]]


def outcomes() -> list[Outcome]:
    """Every published launch."""
    return [Outcome.model_validate(row) for row in read_table("outcomes")["outcomes"]]


def judge(outcome: Outcome) -> Verdict:
    """Say what the launch does and whether it did."""
    if outcome.why_not or not outcome.command:
        return Verdict(id=outcome.id, agrees=None, said=outcome.why_not or "", expected=outcome.expect or "")
    try:
        agrees, said = _said(outcome)
    except InputError as error:
        agrees, said = False, str(error.problems[0])
    expected = " ".join(str(x) for x in (outcome.expect, outcome.rule, outcome.value) if x is not None)
    return Verdict(id=outcome.id, agrees=agrees, said=said, expected=expected)


def _said(outcome: Outcome) -> tuple[bool, str]:
    launch = _launch(outcome, outcome.command or "")
    rules = [rule for rule in launch.broken if rule.effect == "refuses"]
    if outcome.expect == "refuses":
        return outcome.rule in [rule.rule for rule in rules], "; ".join(rule.text for rule in rules) or "no rule broken"
    if outcome.gpu is None:
        raise InputError("the GPU is not known")
    gpu = _gpu(outcome.gpu, outcome.memory)
    room = capacity(launch, gpu, outcome.version)
    said = f"{room.tokens:,} tokens ({room.cache_bytes / 2**30:.2f} GiB), longest {room.length:,}"
    if outcome.expect == "ratio":
        other = capacity(_launch(outcome, outcome.than or ""), gpu, outcome.version)
        ratio = room.tokens / max(other.tokens, 1)
        return abs(ratio / (outcome.value or 1) - 1) <= outcome.tolerance, f"{ratio:.2f} times the tokens"
    if outcome.expect == "tokens":
        return abs(room.tokens / (outcome.value or 1) - 1) <= outcome.tolerance, said
    if outcome.expect == "too_small":
        return not room.fits, said
    starts = room.cache_bytes > 0 and (room.fits or not outcome.long)
    return starts and not rules and launch.layout is not None, said


def _launch(outcome: Outcome, command: str) -> Launch:
    settings = parse(command, options=outcome.options)
    if outcome.config is None:
        return resolve(settings)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(outcome.config), encoding="utf-8")
        return resolve(settings, path)


def _gpu(name: str, memory: int | None) -> Gpu:
    gpu = load_gpu(name)
    return gpu if memory is None else gpu.model_copy(update={"memory_bytes": memory})
