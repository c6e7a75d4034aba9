"""Variations of a scenario: which fields take which values, as data with dotted paths (``sim.variants`` sets them).

A grid crosses its axes; the fields of a zip change together.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sim.errors import InputError, Problem, UnitError
from sim.explain import show
from sim.units import parse_count

MOST_VALUES = 1_000_000
"""Of one axis."""
_RANGE = ("from", "to", "step", "times")

Change = tuple[tuple[str, Any], ...]
"""(path, value) pairs that are set together."""


class Axis(NamedTuple):
    """Fields that change together: one for an axis of a grid, several for a zip."""

    paths: tuple[str, ...]
    values: tuple[tuple[Any, ...], ...]
    """For each position of the axis one value per path."""

    def changes(self) -> Iterator[Change]:
        """What is set at each position."""
        for row in self.values:
            yield tuple(zip(self.paths, row, strict=True))


def axes(vary: Mapping[str, Any], zips: Sequence[Mapping[str, Any]] = ()) -> list[Axis]:
    """Read the axes of a grid, and zips; each value is a list or a range.

    A range is ``{from: 1k, to: 1M, times: 2}`` (each value twice the one before) or ``{from: 8, to: 64, step: 8}``;
    ``to`` is included where the steps meet it.

    Raises
    ------
    InputError
        With every problem: what is not a list or range, is empty, differs in length inside a zip, or is said twice.
    """
    found: list[Axis] = []
    problems: list[Problem] = []

    def values(path: str, key: str, said: Any) -> list[Any]:
        try:
            return _values(said)
        except InputError as error:
            problems.extend(p._replace(key=".".join(filter(None, (key, p.key)))) for p in error.problems)
            return []

    seen: dict[str, str] = {}
    for where, group in [("vary", {path: said}) for path, said in vary.items()] + [
        (f"zip.{i}", group) for i, group in enumerate(zips)
    ]:
        columns = {path: values(path, f"{where}.{path}", said) for path, said in group.items()}
        for path in columns:
            if path in seen:
                problems.append(Problem(f"is varied twice; first in {seen[path]}", f"{where}.{path}"))
            seen.setdefault(path, where)
        lengths = {path: len(column) for path, column in columns.items()}
        if len(set(lengths.values())) > 1:
            counts = ", ".join(f"{path} has {n}" for path, n in lengths.items())
            problems.append(Problem(f"fields that change together need equally many values: {counts}", where))
        elif columns:
            found.append(Axis(tuple(columns), tuple(zip(*columns.values(), strict=True))))
    if problems:
        raise InputError(problems)
    return found


def is_range(said: Any) -> bool:
    """Whether something written is a range, and not a value of other keys."""
    return isinstance(said, Mapping) and set(said) <= set(_RANGE) and {"from", "to"} <= set(said)


def _values(said: Any) -> list[Any]:
    if is_range(said):
        return _range(said)
    if not isinstance(said, (list, tuple)):
        raise InputError(
            f"must be a list of values, or a range such as {{from: 1, to: 1024, times: 2}}, not {show(said)}"
        )
    if not said:
        raise InputError("is empty; give at least one value")
    return list(said)


def _range(said: Mapping[str, Any]) -> list[Any]:
    """The values of a range; whole numbers stay whole."""
    if ("step" in said) == ("times" in said):
        raise InputError("a range has either step (added) or times (multiplied)")
    kind = "step" if "step" in said else "times"
    first, last, by = (_number(said[key], key) for key in ("from", "to", kind))
    if last < first:
        raise InputError(Problem(f"{last} is below from: {first}", "to"))
    if by <= (1 if kind == "times" else 0) or (kind == "times" and first <= 0):
        raise InputError(Problem("a range must rise: step above 0, or times above 1 from above 0", kind))
    whole = isinstance(first, int) and isinstance(by, int)
    if kind == "step":
        count = math.floor((last - first) / by + 1e-9) + 1
    else:
        count = math.floor(math.log(last / first) / math.log(by) + 1e-9) + 1
    if count > MOST_VALUES:
        raise InputError(f"has {count:,} values; an axis has at most {MOST_VALUES:,}")
    found = [first + i * by if kind == "step" else first * by**i for i in range(count)]
    if whole:
        return found
    if isinstance(first, int) and isinstance(last, int):  # a factor such as 1.5 on counts: rounded, each once
        return list(dict.fromkeys(round(x) for x in found))
    return [float(f"{x:.12g}") for x in found]


def _number(value: Any, key: str) -> int | float:
    if isinstance(value, float) and math.isfinite(value) and value != int(value):
        return value
    try:
        return parse_count(value)
    except UnitError as error:
        raise InputError(Problem(str(error), key)) from None


def product(axes: Sequence[Axis]) -> Iterator[Change]:
    """Every combination of the axes' positions, the last axis fastest."""
    for chosen in itertools.product(*(list(axis.changes()) for axis in axes)):
        yield tuple(itertools.chain.from_iterable(chosen))


def size(axes: Sequence[Axis]) -> int:
    """Number of combinations."""
    return math.prod(len(axis.values) for axis in axes)
