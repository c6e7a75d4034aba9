"""A validation as text for a terminal, and as the table of the README."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import RenderableType
from rich.text import Text

from sim.render.table import WIDEST, Column, bullets, table, to_text
from sim.validate.result import GroupReport, Validation, WorstRow

_COLUMNS = (
    Column("group", wraps=True, right=False),
    Column("rows"),
    Column("covered"),
    Column("median\nerror"),
    Column("mean\nerror"),
    Column("bias"),
    Column("within\ntolerance"),
)


def render_validate(validation: Validation, width: int = WIDEST, color: bool = False) -> str:
    """Return the table of groups, the worst rows of each with their source, and what could not be predicted.

    Parameters
    ----------
    width
        Columns of the terminal.
    color
        Whether to write ANSI escapes.
    """
    return to_text(_parts(validation), width, color)


def _parts(validation: Validation) -> Iterable[RenderableType]:
    yield Text("Predictions against published measurements", style="bold")
    yield Text(f"shardwise {validation.version}; errors are absolute percentages of what was measured")
    yield Text()
    yield table(_COLUMNS, [[Text(cell) for cell in _cells(group)] for group in validation.groups])
    for group in validation.groups:
        yield Text()
        yield Text(group.name, style="bold")
        yield bullets([*(_worst(row) for row in group.worst), *(_failed(group))])
    if validation.screen:
        yield Text()
        yield Text("Rows of end_to_end.csv, by rule of the screen", style="bold")
        yield bullets([f"{count:,} {rule}" for rule, count in validation.screen.items()])


def _cells(group: GroupReport) -> list[str]:
    errors = [_percent(value) for value in (group.median_ape, group.mean_ape)]
    within = "–" if group.within is None else f"{group.within:,}"
    return [group.name, f"{group.rows:,}", f"{group.covered:,}", *errors, _percent(group.bias, "+"), within]


def _percent(value: float | None, sign: str = "") -> str:
    return "–" if value is None else f"{100 * value:{sign}.1f} %"


def _worst(row: WorstRow) -> str:
    figures = f"measured {_figure(row.measured)} {row.unit}, predicted {_figure(row.predicted)} ({row.error:+.0%})"
    return f"{row.row}: {figures}; {row.what}; {row.source}"


def _figure(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _failed(group: GroupReport) -> list[str]:
    return [f"not predicted, {count:,} row{'s' * (count > 1)}: {why}" for why, count in group.failures.items()]


def to_markdown(validation: Validation) -> str:
    """Return the groups as a Markdown table."""
    lines = ["| group | rows | covered | median error | mean error | bias | within tolerance |", "|---|" + "--:|" * 6]
    lines += [f"| {' | '.join(_cells(group))} |" for group in validation.groups]
    return "\n".join(lines) + "\n"
