"""Which of an engine's own rules a launch breaks."""

from __future__ import annotations

from sim.engine_rules import Broken, broken
from sim.launch.layouts import case_of
from sim.launch.settings import Settings
from sim.model import Model

__all__ = ["Broken", "broken_rules"]


def broken_rules(settings: Settings, model: Model, weights: str) -> tuple[Broken, ...]:
    """The rules that the engine's version in ``sim.engine_rules`` has and this launch breaks."""
    return tuple(broken(case_of(settings, model, weights)))
