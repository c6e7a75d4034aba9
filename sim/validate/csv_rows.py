"""CSV files of measurements: what is read, and what is refused with the file and the line."""

from __future__ import annotations

import csv
from math import isfinite
from pathlib import Path
from typing import NamedTuple

from sim.errors import InputError
from sim.explain import show
from sim.validate.names import SHIPPED

Row = dict[str, str]
LINE = "line"
"""Key under which a row says where in its file it stands."""
NEEDED = {"end_to_end.csv": ("isl", "osl", "silicon_ttft_ms", "silicon_tpot_ms")}
"""Columns that hold a positive number in every row."""
NUMBERS = {
    "end_to_end.csv": (
        "batch_size",
        "tp_size",
        "attention_dp_size",
        "moe_tp_size",
        "moe_ep_size",
        "concurrency",
    ),
    "memory.csv": (
        "kv_tokens",
        "kv_GiB_per_rank",
        "weights_GiB_per_rank",
        "kv_layers",
        "kv_heads",
        "head_dim_or_latent",
        "formula_B_per_token_rank",
        "observed_B_per_token_rank",
        *("tp", "dp_attn", "ep", "pp", "cp_dcp"),
    ),
}
"""Columns that hold a number from 0 on, or nothing."""


class Refused(NamedTuple):
    """A row that cannot be read."""

    where: str
    """File and line."""
    why: str


class Rows(NamedTuple):
    """The rows of a file."""

    good: list[Row]
    refused: list[Refused]


def read_rows(path: Path) -> Rows:
    """The rows of a file; none if it does not exist.

    Raises
    ------
    InputError
        If the file lacks columns that the file of this name which ships with the package has.
    """
    if not path.exists():
        return Rows([], [])
    found = Rows([], [])
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        if missing := [column for column in _columns(path.name) if column not in (reader.fieldnames or ())]:
            raise InputError(f"{path}:1: there is no column {', '.join(missing)}")
        for row in reader:
            why = (
                "fewer or more cells than columns" if None in row or None in row.values() else _problem(path.name, row)
            )
            if why:
                found.refused.append(Refused(f"{path.name}:{reader.line_num}", why))
            else:
                found.good.append({**row, LINE: str(reader.line_num)})
    return found


def _columns(name: str) -> list[str]:
    shipped = SHIPPED / name
    if not shipped.exists():
        return []
    with shipped.open(newline="", encoding="utf-8") as file:
        return next(csv.reader(file))


def _problem(name: str, row: Row) -> str:
    """Why a row cannot be read; empty if it can."""
    needed = NEEDED.get(name, ())
    for column in (*needed, *NUMBERS.get(name, ())):
        value = _number(row[column] or ("" if column in needed else "0"))
        if value is None or value < 0 or (column in needed and not value):
            return f"{column} is {show(row[column])}, not a {'positive ' * (column in needed)}number"
    return ""


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if isfinite(value) else None
