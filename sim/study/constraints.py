"""Conditions on the rows of a study: ``fits``, ``TPOT <= 20 ms``, ``GPUs <= 32``, ``strategy == helix``."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from sim.errors import InputError, UnitError
from sim.explain import show, suggest
from sim.units import parse_bytes, parse_count, parse_seconds

_SHAPE = re.compile(r"\s*([A-Za-z_][\w.]*)\s*(<=|>=|==|!=|=|<|>)\s*(.+?)\s*")
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
    "==": operator.eq,
    "=": operator.eq,
    "!=": operator.ne,
}
SHORT = {
    "tpot": "tpot_seconds",
    "step": "step_seconds",
    "gpus": "gpus",
    "interactivity": "tokens_per_s_per_user",
    "tps_user": "tokens_per_s_per_user",
    "tps_gpu": "output_tokens_per_s_per_gpu",
    "memory": "total_bytes",
    "kv": "kv_bytes",
}
"""What people call columns."""


class Condition(NamedTuple):
    """One comparison of a column with a value."""

    text: str
    column: str
    compare: str
    value: Any

    def holds(self, rows: Mapping[str, Any]) -> Any:
        """For each row, as an array of booleans; a figure that does not exist meets nothing."""
        with np.errstate(invalid="ignore"):
            return _COMPARE[self.compare](np.asarray(rows[self.column]), self.value)


def parse_condition(text: str, columns: Iterable[str]) -> Condition:
    """Read a condition on one of ``columns``. Raises ``InputError`` if it cannot be read."""
    known = list(columns)
    if text.strip().lower() == "fits":
        return Condition("fits", "feasible", "==", True)
    match = _SHAPE.fullmatch(text)
    if not match:
        raise InputError(f"{show(text)} is not a condition; write for example fits, TPOT <= 20 ms or GPUs <= 32")
    name, compare, said = match.groups()
    column = SHORT.get(name.lower(), name)
    if column not in known:
        hint = suggest(column, [*known, *SHORT])
        raise InputError(f"{show(text)}: no column is called {show(name)}; {hint}columns: {', '.join(known)}")
    return Condition(text.strip(), column, compare, _value(said, column))


def _value(said: str, column: str) -> Any:
    if said.lower() in ("true", "false"):
        return said.lower() == "true"
    readers: list[Callable[[str], Any]] = [parse_count, float]
    if column.endswith("seconds"):
        readers = [parse_seconds]
    elif column.endswith("bytes"):
        readers = [parse_bytes]
    for read in readers:
        try:
            return read(said)
        except (UnitError, ValueError):
            continue
    return said.strip("'\"")
