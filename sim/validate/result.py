"""What comes out of a validation: every row with what was measured and predicted, folded into figures per group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from math import isfinite
from statistics import mean, median
from typing import NamedTuple

from sim.noun import Noun

MOST_WORST = 5


class Outcome(NamedTuple):
    """One measured row. Exactly one of ``predicted`` and ``why`` says something."""

    row: str
    what: str
    source: str
    measured: float
    predicted: float | None
    unit: str
    why: str = ""
    """Why there is no prediction."""
    tolerance: float | None = None
    """Largest error that whoever chose the row allows."""

    @property
    def error(self) -> float:
        """(predicted - measured) / measured, or 0 without a prediction."""
        return self.predicted / self.measured - 1 if self.predicted is not None else 0.0


def failed(why: str, row: str) -> Outcome:
    """A row of which nothing is known but why it cannot be predicted."""
    return Outcome(row, "", "", 0.0, None, "", why)


class Group(NamedTuple):
    """Rows of one kind."""

    name: str
    outcomes: tuple[Outcome, ...]


class WorstRow(Noun):
    """A row that is far off."""

    row: str
    what: str
    source: str
    measured: float
    predicted: float
    unit: str
    error: float


class GroupReport(Noun):
    """Errors of one group, as fractions; ``None`` where no row is covered."""

    name: str
    rows: int
    covered: int
    median_ape: float | None
    mean_ape: float | None
    bias: float | None
    within: int | None = None
    """Rows inside their own tolerance, where rows have one."""
    failures: dict[str, int]
    """Rows without a prediction, by reason."""
    worst: tuple[WorstRow, ...]


class Validation(Noun):
    """All groups of one run of ``shardwise validate``."""

    version: str
    groups: tuple[GroupReport, ...]
    screen: dict[str, int]
    """Rows of end_to_end.csv that the screen leaves out, by rule."""


def report(group: Group) -> GroupReport:
    """Fold the rows of a group."""
    covered = [o for o in group.outcomes if not _lost(o)]
    errors = [o.error for o in covered]
    far = sorted(covered, key=lambda o: (-abs(o.error), o.row))[:MOST_WORST]
    return GroupReport(
        name=group.name,
        rows=len(group.outcomes),
        covered=len(covered),
        median_ape=median(map(abs, errors)) if errors else None,
        mean_ape=mean(map(abs, errors)) if errors else None,
        bias=mean(errors) if errors else None,
        within=sum(abs(o.error) <= (o.tolerance or 0.0) for o in covered)
        if any(o.tolerance for o in group.outcomes)
        else None,
        failures=dict(sorted(Counter(why for o in group.outcomes if (why := _lost(o))).items())),
        worst=tuple(_worst(o) for o in far),
    )


def _lost(o: Outcome) -> str:
    """Why a row counts as not predicted; empty if it is."""
    if o.predicted is None:
        return o.why or "nothing is predicted for it"
    if not (o.measured > 0 and isfinite(o.measured)):
        return "what was measured is not a positive number"
    return "" if isfinite(o.predicted) else "what is predicted is not a number"


def _worst(o: Outcome) -> WorstRow:
    assert o.predicted is not None
    figures = {"measured": o.measured, "predicted": o.predicted, "unit": o.unit, "error": o.error}
    return WorstRow(row=o.row, what=o.what, source=o.source, **figures)


def reports(groups: Iterable[Group]) -> tuple[GroupReport, ...]:
    """Fold all groups that have rows."""
    return tuple(report(group) for group in groups if group.outcomes)
