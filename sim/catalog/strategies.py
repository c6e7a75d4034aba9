"""The strategies that a scenario can name: the built-in ones, and those of installed plug-ins.

A third party registers its class under the entry-point group ``sim.strategies``, named by its ``kind``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import AliasChoices

from sim.errors import LayoutError, Problem
from sim.explain import read, show, unknown_key
from sim.plugins import PluginWarning, Registry
from sim.strategy import Strategy

__all__ = ["PluginWarning", "load_strategy", "parse_layout", "spellings", "strategy_names"]

_STRATEGIES: Registry[Strategy] = Registry(
    noun="strategy",
    group="sim.strategies",
    built_ins={
        "attention_dp": "strategies.attention_dp:AttentionDataParallel",
        "dcp": "strategies.dcp:DecodeContextParallel",
        "helix": "strategies.helix:Helix",
        "kvp": "strategies.kvp:KvParallel",
        "tp": "strategies.tp:TensorParallel",
        "wide_ep": "strategies.wide_ep:WideExpertParallel",
    },
    base=Strategy,  # type: ignore[type-abstract]  # only its subclasses are made
    error=LayoutError,
)


def strategy_names() -> list[str]:
    """Return all kinds that ``load_strategy`` accepts; broken plug-ins warn (``PluginWarning``)."""
    return _STRATEGIES.names()


def load_strategy(kind: str) -> type[Strategy]:
    """Return the class of a strategy.

    Raises
    ------
    LayoutError
        If no such strategy is installed (lists those that are), or its plug-in is broken.
    """
    return _STRATEGIES.load(kind)


def spellings(cls: type[Strategy]) -> dict[str, str]:
    """Return the field that each accepted key of a layout sets: ``tensor_parallel_size`` sets ``tp``."""
    found: dict[str, str] = {}
    for name, field in cls.model_fields.items():
        alias = field.validation_alias
        others = alias.choices if isinstance(alias, AliasChoices) else [alias]
        found |= {other: name for other in others if isinstance(other, str)}
        found[name] = name
    return found


def parse_layout(fields: dict[str, Any]) -> Strategy:
    """Read a layout as a scenario writes it: ``{"strategy": "tp", "tp": 8}``.

    Keys are the strategy's fields or the engines' names of them.

    Raises
    ------
    LayoutError
        With every problem; a problem's ``key`` is the key that was written.
    """
    if not isinstance(fields, dict):
        raise LayoutError(f"must be keys such as {{strategy: tp, tp: 8}}, not {show(fields)}")
    kind = fields.get("strategy")
    if kind is None:
        raise LayoutError(Problem(f"is missing; choose one of {', '.join(strategy_names())}", "strategy"))
    if not isinstance(kind, str):
        raise LayoutError(Problem(f"must be the name of a strategy such as tp, not {show(kind)}", "strategy"))
    cls = load_strategy(kind)
    named, spelled, problems = _by_field(cls, fields)
    try:
        layout = read(cls, named, LayoutError, spelled=spelled)
    except LayoutError as error:
        raise LayoutError([*problems, *error.problems]) from None
    if problems:
        raise LayoutError(problems)
    return layout


def _by_field(cls: type[Strategy], fields: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str], list[Problem]]:
    """Return the values by field, how each field was spelled, and keys that are unknown or said twice."""
    known = spellings(cls)
    named: dict[str, Any] = {}
    spelled: dict[str, str] = {}
    problems = []
    for key, value in fields.items():
        if key == "strategy":
            continue
        name = known.get(key)
        if name is None:
            problems.append(Problem(unknown_key(key, ["strategy", *_short_first(known)]), str(key)))
        elif name in named:
            problems.append(Problem(f"is the same as {spelled[name]}; keep one of the two", key))
        else:
            named[name], spelled[name] = value, key
    return named, spelled, problems


def _short_first(known: dict[str, str]) -> Iterable[str]:
    """The keys that an error lists: only the short name of each."""
    return dict.fromkeys(known.values())
