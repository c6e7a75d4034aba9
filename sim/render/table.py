"""A comparison as text for a terminal: at most 120 columns, and two shorter tables where it is narrower."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from io import StringIO
from typing import Any, NamedTuple

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from sim.report import LayoutReport, Report
from sim.units import format_count

WIDEST = 120
ONE_TABLE = 112
"""Columns that all figures of a layout need on one line."""
LONG_TAG = 24
GIB = 2**30


class Column(NamedTuple):
    """One column of a table: its header (two lines at most), and whether its cells may wrap."""

    header: str
    wraps: bool = False
    right: bool = True


_LAYOUT = Column("layout", right=False)
_WHY = Column("bottleneck", wraps=True, right=False)
_MEMORY = (
    Column("GPUs"),
    Column("KV\ncopies"),
    Column("KV/GPU\nGiB"),
    Column("weights\nGiB"),
    Column("used/have\nGiB"),
    Column("max\nbatch"),
    Column("max\ncontext"),
)
_TIME = (Column("step\nms"), Column("floor\nms"), Column("tok/s\n/user"), Column("tok/s\n/GPU"))


def render(report: Report, width: int = WIDEST, color: bool = False) -> str:
    """Return the whole answer: table, findings, engines' rules and what is left out.

    Parameters
    ----------
    width
        Columns of the terminal.
    color
        Whether to write ANSI escapes.
    """
    return to_text(_comparison(report, min(width, WIDEST)), width, color)


def to_text(parts: Iterable[RenderableType], width: int, color: bool) -> str:
    """Draw with rich, without blanks at the ends of lines."""
    console = Console(
        file=StringIO(),
        width=min(width, WIDEST),
        force_terminal=color,
        color_system="standard" if color else None,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )
    with console.capture() as captured:
        for part in parts:
            console.print(part)
    # no-break spaces have kept "53 %" together; whoever copies the text wants plain ones
    return "\n".join(line.rstrip() for line in captured.get().replace("\u00a0", " ").split("\n"))


def subject(resolved: Mapping[str, Any]) -> str:
    """One line on the model, the machine, the work and the formats of a resolved scenario."""
    if not resolved:
        return ""
    model, gpu, topology = (_name(resolved[key]) for key in ("model", "gpu", "topology"))
    work, formats = resolved["workload"], resolved["precision"]
    context = work["context"]
    if isinstance(context, list):
        lengths = f"contexts {format_count(min(context))} to {format_count(max(context))}"
        work = {"batch": len(context)} | work
    else:
        lengths = f"context {format_count(context)}"
    tokens = sum(p["batch"] * (p["context"] - p["cached"]) for p in work.get("prompts", ()))
    beside = f" and {format_count(tokens)} tokens of prompts" if tokens else ""
    parts = [
        model,
        f"{gpu} on {topology}",
        f"{work['phase']} of {work['batch']:,} × {lengths}" + beside,
        f"weights {formats['weights']}",
        f"KV {formats['kv_cache']}",
    ]
    return " · ".join(parts)


def _name(value: Any) -> str:
    if not isinstance(value, dict):
        return str(value)
    count = value.get("gpus") or value.get("nodes")
    name = str(value.get("name") or value.get("kind"))
    return f"{name}-{count}" if count and not name.endswith(str(count)) else name


def heading(report: Report) -> Iterable[RenderableType]:
    """The question, and a line on what it was asked of."""
    yield Text(report.scenario, style="bold")
    if line := subject(report.resolved):
        yield Text(line)
    if line := " · ".join(report.conditions):
        yield Text(line, style="yellow")


def _comparison(report: Report, width: int) -> Iterable[RenderableType]:
    yield from heading(report)
    memory = [_memory_cells(layout) for layout in report.layouts]
    time = [_time_cells(layout) for layout in report.layouts]
    tags = [Text(layout.tag) for layout in report.layouts]
    why = [_why(layout) for layout in report.layouts]
    layouts = _LAYOUT._replace(wraps=max(len(layout.tag) for layout in report.layouts) > LONG_TAG)
    yield Text("")
    if width >= ONE_TABLE:
        rows = [[t, *m, *s, w] for t, m, s, w in zip(tags, memory, time, why, strict=True)]
        yield table((layouts, *_MEMORY, *_TIME, _WHY), rows)
    else:
        yield table((layouts, *_MEMORY), [[t, *m] for t, m in zip(tags, memory, strict=True)])
        yield Text("")
        yield table((layouts, *_TIME, _WHY), [[t, *s, w] for t, s, w in zip(tags, time, why, strict=True)])
    if not all(layout.feasible for layout in report.layouts):
        yield Text("A layout that does not fit shows the time it would take if it did.", style="dim")
    yield from remarks(report)


def remarks(report: Report) -> Iterable[RenderableType]:
    """Findings, engines' rules, and what the result leaves out."""
    notes = [f"{layout.tag}: {note}" for layout in report.layouts for note in layout.engine_notes]
    for title, lines in (
        ("Findings", report.findings),
        ("Advice", report.advice),
        ("Rules of engines", notes),
        ("Not modelled", report.not_modelled),
    ):
        if lines:
            yield Text("")
            yield Text(title, style="bold")
            yield bullets(lines)


def bullets(lines: Iterable[str]) -> Table:
    """Lines with a hanging indent."""
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for line in lines:
        grid.add_row("•", Text(line))
    return grid


def table(columns: Sequence[Column], rows: Iterable[Sequence[Text]]) -> Table:
    """A table with a line under its header and nothing else drawn."""
    drawn = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for column in columns:
        drawn.add_column(
            Text(column.header),
            justify="right" if column.right else "left",
            no_wrap=not column.wraps,
            overflow="fold",
        )
    for row in rows:
        drawn.add_row(*row)
    return drawn


def gib(value: float) -> str:
    """Bytes as GiB with three digits at least."""
    amount = value / GIB
    return f"{amount:,.0f}" if amount >= 1000 else f"{amount:.1f}" if amount >= 10 else f"{amount:.2f}"


def ms(seconds: float) -> str:
    """Seconds as milliseconds with three digits at least."""
    amount = 1e3 * seconds
    return f"{amount:,.0f}" if amount >= 1000 else f"{amount:.1f}" if amount >= 10 else f"{amount:.3g}"


def rate(value: float) -> str:
    """Tokens per second."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def tokens(count: int) -> str:
    """A length that fits, never rounded up: ``34,394``, ``620k``, ``4.35M``."""
    if count < 100_000:
        return f"{count:,}"
    if count < 2**20:
        return f"{count // 2**10}k"
    return f"{count * 100 // 2**20 / 100:,.2f}M" if count < 2**30 else f"{count // 2**20:,}M"


def _memory_cells(layout: LayoutReport) -> list[Text]:
    memory = layout.memory
    used = f"{memory.total_bytes / GIB:,.0f}/{memory.capacity_bytes / GIB:.0f}"
    full = memory.total_bytes > 0.95 * memory.capacity_bytes
    return [
        Text(f"{layout.gpus}"),
        Text(f"{layout.kv.duplication:.2f}x", style="yellow" if layout.kv.duplication > 1.005 else ""),
        Text(gib(memory.kv_bytes)),
        Text(gib(layout.weights.bytes_per_rank)),
        Text(used, style="red" if not layout.feasible else "yellow" if full else ""),
        Text(f"{memory.max_batch:,}" if memory.max_batch else "none"),
        Text(tokens(memory.max_context) if memory.max_context else "none"),
    ]


def _time_cells(layout: LayoutReport) -> list[Text]:
    cells = [
        ms(layout.step.seconds),
        ms(layout.step.floor_seconds),
        rate(layout.tokens_per_s_per_user),
        rate(layout.output_tokens_per_s_per_gpu),
    ]
    return [Text(cell, style="" if layout.feasible else "dim") for cell in cells]


def _why(layout: LayoutReport) -> Text:
    """The bottleneck, or why the layout does not fit."""
    if layout.feasible:
        return Text(layout.step.bottleneck.replace(" %)", "\u00a0%)"))
    memory = layout.memory
    if memory.total_bytes > memory.capacity_bytes:
        digits = 0 if memory.total_bytes - memory.capacity_bytes > GIB else 2
        used, have = (f"{b / GIB:,.{digits}f}" for b in (memory.total_bytes, memory.capacity_bytes))
        return Text(f"needs {used} of {have} GiB", style="red")
    return Text("; ".join(layout.reasons) or "does not fit", style="red")
