"""Shardwise: a discrete-event simulator of multi-GPU LLM inference.

>>> from sim import compare, load                              # doctest: +SKIP
>>> report = compare(load("qwen3_235b_8xh200"))                # doctest: +SKIP
>>> [(x.tag, x.kv.duplication) for x in report.layouts]        # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sim.errors import InputError, ScenarioError, ShardwiseError
    from sim.planning import plan
    from sim.replaying import replay
    from sim.report import LayoutReport, Report
    from sim.run import compare, load, prove, simulate
    from sim.scenario import Scenario, parse_scenario
    from sim.strategy import Strategy

__version__ = "0.1.0"

__all__ = [
    "InputError",
    "LayoutReport",
    "Report",
    "Scenario",
    "ScenarioError",
    "ShardwiseError",
    "Strategy",
    "__version__",
    "compare",
    "load",
    "parse_scenario",
    "plan",
    "prove",
    "replay",
    "simulate",
]

_HOMES = {
    "sim.errors": ("InputError", "ScenarioError", "ShardwiseError"),
    "sim.planning": ("plan",),
    "sim.replaying": ("replay",),
    "sim.report": ("LayoutReport", "Report"),
    "sim.run": ("compare", "load", "prove", "simulate"),
    "sim.scenario": ("Scenario", "parse_scenario"),
    "sim.strategy": ("Strategy",),
}


def __getattr__(name: str) -> Any:
    """Import public names when they are first used, so that ``shardwise --help`` stays quick."""
    from importlib import import_module

    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'sim' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
