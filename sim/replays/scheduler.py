"""Rules of an engine's scheduler, as data: presets are named after the engines whose defaults they are.

Policies, by what goes first when prompts wait while others decode:

* ``mixed``: decodes and chunks of prompts share a step (vLLM V1, TensorRT-LLM in-flight batching);
* ``prefill_first``: prompts run in steps of their own and decodes wait (SGLang without mixed chunks);
* ``decode_first``: prompts start when nothing decodes any more (static batching).
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from sim.errors import InputError, Problem
from sim.explain import read, show, suggest
from sim.noun import Noun
from sim.speculation import Speculation
from sim.units import Count

FOLDER = Path(__file__).parent.parent / "data" / "schedulers"


class Scheduler(Noun):
    """What an engine batches, and how it hands out KV blocks."""

    name: str = "own"
    source: str = ""
    policy: Literal["mixed", "prefill_first", "decode_first"] = "mixed"
    max_sequences: Count = 1024
    """Requests that run at once in one attention group."""
    max_tokens: Count = 8192
    """New tokens of one step in one attention group."""
    chunked: bool = True
    """Whether a prompt may be cut where the token budget ends."""
    block: Annotated[Count, Field(le=4096)] = 16
    """Tokens of a KV block."""
    watermark: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the blocks that admission leaves free."""
    reserve_output: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the tokens still to come for which admission keeps blocks; 1: nobody is ever preempted."""
    preemption: Literal["recompute", "swap"] = "recompute"
    prefix_cache: bool = True
    dp_router: Literal["round_robin", "least_tokens", "least_requests"] = "least_requests"
    """How requests are dealt to the attention groups of an instance."""
    graph_sizes: tuple[tuple[int, int, int], ...] = ()
    """Decode batches with a CUDA graph as (first, last, step); a batch is padded up to the next one, larger ones run
    as they are."""

    speculation: Speculation | None = None
    """Of the scenario. Then every request gets the blocks of its whole answer at admission."""

    @property
    def query_tokens(self) -> int:
        """Tokens of each sequence in a decode step."""
        return 1 + self.speculation.draft_tokens if self.speculation else 1

    @property
    def gain(self) -> float:
        """Mean tokens that a sequence gains in a decode step."""
        return self.speculation.tokens_per_step(self.speculation.draft_tokens) if self.speculation else 1

    def steps(self, tokens: int, seed: int) -> int:
        """Decode steps of a request until so many tokens have come; with drafts, drawn from their acceptance."""
        if not self.speculation or not tokens:
            return tokens
        means = np.array([self.speculation.tokens_per_step(d) for d in range(self.speculation.draft_tokens + 1)])
        reach = np.diff(means)  # probability that at least so many drafts are accepted
        luck = np.random.default_rng([seed, tokens]).random((tokens, 1))
        return int(np.searchsorted(np.cumsum(1 + (luck < reach).sum(axis=1)), tokens)) + 1

    def sizes(self) -> list[int]:
        """Padded batches, in order."""
        return sorted({size for first, last, step in self.graph_sizes for size in range(first, last + 1, step)})


def preset_names() -> list[str]:
    """Names of the schedulers that ship with the package, sorted."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


@cache
def _data(name: str) -> dict[str, Any]:
    from ruamel.yaml import YAML

    data: dict[str, Any] = YAML(typ="safe", pure=True).load(FOLDER / f"{name}.yaml")
    return data


def parse_scheduler(value: Any) -> Scheduler:
    """Read a scheduler: a preset's name, or fields, which may name a ``preset`` that they change.

    Raises
    ------
    InputError
        If the preset is not known or a field is wrong.
    """
    if isinstance(value, Scheduler):
        return value
    fields = {"preset": value} if isinstance(value, str) else value
    if not isinstance(fields, dict):
        raise InputError(f"must be a name such as vllm, or keys such as max_tokens, not {show(value)}")
    fields = dict(fields)
    if "speculation" in fields:
        raise InputError(Problem("belongs beside the scheduler, as a section of the scenario", "speculation"))
    preset = fields.pop("preset", None)
    names = preset_names()
    if preset is not None and preset not in names:
        raise InputError(f"{show(preset)} is not a scheduler; {suggest(preset, names)}choose one of {', '.join(names)}")
    return read(Scheduler, ({} if preset is None else _data(preset)) | fields)
