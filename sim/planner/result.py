"""What ``plan`` says: deployments, cheapest first, each confirmed by a replay."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from sim.noun import Noun
from sim.replays.results import ReplayReport


class Deployment(Noun):
    """One way to serve the stream that keeps the SLO in a replay."""

    tag: str
    gpus: int
    layout: dict[str, Any]
    """As a scenario writes it, with its replicas."""
    prefill: dict[str, Any] | None = None
    """Layout of the prefill pool, where there is one."""
    ratio: str = ""
    """Prefill instances : decode instances, where there are two pools."""
    cost_per_hour: float | None = None
    cost_per_million_output_tokens: float | None = None
    largest_batch: int
    """Requests that an instance ran at once, at most, over all groups."""
    headroom: float
    """Largest tried factor on the rate that still keeps the SLO; 1: none above the rate itself."""
    breaks_first: str
    """What is missed, or full, when the rate doubles."""
    replay: ReplayReport


class PlanResult(Noun):
    """The answer of a search."""

    scenario: str
    version: str
    rate: float
    """Requests a second."""
    deployments: tuple[Deployment, ...]
    considered: int
    """Deployments that the search knows: layouts times numbers of instances."""
    ruled_out: int
    """By bounds or memory, without a replay."""
    replayed: int
    reasons: tuple[str, ...] = ()
    """Why layouts cannot serve at any number of instances."""
    complete: bool = True
    """False if the search was stopped: what is cheaper than the last deployment may be missing."""
    wall_s: float = 0.0
    resolved: dict[str, Any] = Field(default_factory=dict)
