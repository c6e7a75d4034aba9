"""The roofline view as text, and as rows for a spreadsheet."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable

from rich.console import RenderableType
from rich.text import Text

from sim.render.table import WIDEST, Column, ms, table, to_text
from sim.roofline import LayoutRoofline, RooflineReport, RooflineRow
from sim.units import format_bytes

_COLUMNS = (
    Column("operation", right=False, wraps=True),
    Column("GFLOP"),
    Column("weights"),
    Column("KV"),
    Column("in and\nout"),
    Column("FLOP/B"),
    Column("ridge"),
    Column("bound by", right=False),
    Column("floor\nms"),
    Column("time\nms"),
)


def render_roofline(report: RooflineReport, width: int = WIDEST, color: bool = False) -> str:
    """Return one table per layout: operations, blocks, and the step of the rank that ends last."""
    return to_text(_parts(report), width, color)


def _parts(report: RooflineReport) -> Iterable[RenderableType]:
    yield Text(report.scenario, style="bold")
    for layout in report.layouts:
        yield Text("")
        yield Text(f"{layout.tag}: all layers of the rank that ends last, without communication", style="bold")
        yield _table(layout)


def _table(layout: LayoutRoofline) -> RenderableType:
    rows: list[list[Text]] = []
    level = ""
    for row in layout.rows:
        if level and row.level != level:
            rows.append([Text("")] * len(_COLUMNS))
        level = row.level
        rows.append(_cells(row))
    return table(_COLUMNS, rows)


def _cells(row: RooflineRow) -> list[Text]:
    compute = row.bound == "compute"
    return [
        Text(row.name, style="" if row.level == "operation" else "bold"),
        Text(_short(row.flops / 1e9) if row.flops else ""),
        *(Text(format_bytes(size) if size else "") for size in (row.weight_bytes, row.kv_bytes, row.io_bytes)),
        Text(_short(row.intensity) if row.flops else ""),
        Text(f"{row.ridge:,.0f}" if row.flops else ""),
        Text(row.bound, style="yellow" if compute else ""),
        Text(ms(row.floor_seconds)),
        Text(ms(row.seconds)),
    ]


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def roofline_csv(report: RooflineReport) -> str:
    """Write one line per layout and row."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=["layout", *RooflineRow.model_fields], lineterminator="\n")
    writer.writeheader()
    for layout in report.layouts:
        writer.writerows({"layout": layout.tag} | row.model_dump() for row in layout.rows)
    return text.getvalue()
