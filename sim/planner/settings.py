"""The ``plan`` of a scenario: what may be bought."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from sim.noun import Noun
from sim.units import Count


class PlanSettings(Noun):
    """What ``plan`` searches."""

    gpus: Annotated[Count, Field(le=100_000)] = 64
    """The most GPUs of a deployment; the topology says how many one instance may span."""
    strategies: tuple[str, ...] = ("tp", "attention_dp")
    """Kinds of layouts."""
    most_stages: Annotated[int, Field(ge=1, le=64)] = 1
    """Pipeline stages, at most."""
    disaggregated: bool = False
    """Whether pools that only prefill and only decode are searched too."""
    price_per_gpu_hour: Annotated[float, Field(gt=0)] | None = None
    """In any currency; costs are in the same."""
    answers: Annotated[int, Field(ge=1, le=50)] = 3
    """Deployments to report."""
