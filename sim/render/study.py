"""What a study's commands print: rows as a table, and how a run went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from sim.render.table import to_text
from sim.units import format_bytes, format_count, format_seconds

_HEADS = {
    "tokens_per_s_per_user": "tok/s/user",
    "output_tokens_per_s_per_gpu": "tok/s/GPU",
    "step_seconds": "step",
    "tpot_seconds": "TPOT",
    "kv_bytes": "KV/GPU",
    "total_bytes": "memory/GPU",
    "gpus": "GPUs",
}
_HIDDEN = ("feasible", "meets", "reason", "error", "pieces", "tpot_seconds")


def cell(name: str, value: Any) -> str:
    """A figure as people write it."""
    if value is None:
        return "–"
    if name.endswith("seconds"):
        return format_seconds(value)
    if name.endswith("bytes"):
        return format_bytes(value)
    if name == "context":
        return format_count(value)
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def render_rows(rows: Sequence[Mapping[str, Any]], width: int, color: bool, hidden: Sequence[str] = _HIDDEN) -> str:
    """Rows as a table; columns that say the same in every row are left out of it and said above."""
    if not rows:
        return "no row meets the conditions\n"
    names = [name for name in rows[0] if name not in hidden]
    same = [n for n in names if len(rows) > 1 and len({str(row[n]) for row in rows}) == 1]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in names:
        if name not in same:
            left = isinstance(rows[0][name], str)
            table.add_column(_HEADS.get(name, name), justify="left" if left else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell(n, row[n])) for n in names if n not in same))
    above = " · ".join(f"{_HEADS.get(n, n)} {cell(n, rows[0][n])}" for n in same)
    return to_text([Text(f"{above}\n"), table] if above else [table], width, color)
