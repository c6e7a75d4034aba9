"""Read the answers of a study: filters, Pareto fronts, best rows, groups, differences of two studies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sim.errors import InputError, Problem
from sim.explain import suggest
from sim.study.constraints import parse_condition
from sim.study.folder import StudyFolder, arrow

SMALLER_IS_BETTER = ("step_seconds", "tpot_seconds", "kv_bytes", "total_bytes", "gpus")


def front(x: Any, y: Any, x_falls: bool = False, y_falls: bool = False) -> np.ndarray[Any, Any]:
    """Indices of the points that no other point beats, from the best ``x`` on.

    Equal points count once. ``x_falls`` and ``y_falls``: less is better.
    """
    u, v = (np.asarray(a, float) * (-1 if falls else 1) for a, falls in ((x, x_falls), (y, y_falls)))
    known = np.flatnonzero(np.isfinite(u) & np.isfinite(v))
    order = known[np.lexsort((-v[known], -u[known]))]
    best = np.maximum.accumulate(v[order])
    keep = np.ones(len(order), bool)
    keep[1:] = v[order][1:] > best[:-1]
    return order[keep]


class Results:
    """The rows of a study as an Arrow table; every method returns a new ``Results``.

    ``Results.open(folder)`` reads one; a folder that is still being written shows the parts it has.
    """

    def __init__(self, table: Any):
        self.table = table

    @classmethod
    def open(cls, folder: str | Path, where: Sequence[str] = (), every: bool = False) -> Results:
        """Read a folder's rows.

        Parameters
        ----------
        where
            Conditions such as ``gpus <= 32`` or ``strategy == helix``.
        every
            Also rows that do not fit or do not meet the study's constraints.

        Raises
        ------
        InputError
            If the folder is no study or has no parts yet, or a condition cannot be read.
        """
        arrow()
        import pyarrow.dataset as dataset

        kept = StudyFolder(folder)
        columns = kept.manifest()["columns"]
        files = sorted(map(str, kept.parts.glob("[0-9]*.parquet")))
        if not files:
            raise InputError(Problem("has no results yet; run shardwise study first", where=str(folder)))
        wanted = None
        conditions = [parse_condition(text, columns) for text in where]
        if not every:
            wanted = dataset.field("meets") & dataset.field("feasible")
        for c in conditions:
            one = getattr(dataset.field(c.column), _METHOD[c.compare])(c.value)
            wanted = one if wanted is None else wanted & one
        return cls(dataset.dataset(files, format="parquet").to_table(filter=wanted))

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def column(self, name: str) -> np.ndarray[Any, Any]:
        """A column as an array. Raises ``InputError`` if there is none."""
        if name not in self.table.column_names:
            known = self.table.column_names
            raise InputError(f"no column is called {name!r}; {suggest(name, known)}columns: {', '.join(known)}")
        found: np.ndarray[Any, Any] = self.table.column(name).to_numpy()
        return found

    def pareto(self, x: str, y: str, by: Sequence[str] = ()) -> Results:
        """Rows that no other row beats in both columns, of each group of equal ``by``; best ``x`` first."""
        u, v, falls = self.column(x), self.column(y), SMALLER_IS_BETTER
        chosen = [rows[front(u[rows], v[rows], x in falls, y in falls)] for rows in self._groups(by)]
        return Results(self.table.take(np.concatenate(chosen) if chosen else []))

    def top(self, column: str, n: int = 10, by: Sequence[str] = ()) -> Results:
        """The ``n`` best rows of each group of equal ``by``; equal rows in their order."""
        values = self.column(column).astype(float) * (1 if column in SMALLER_IS_BETTER else -1)
        chosen = [rows[np.argsort(values[rows], kind="stable")[:n]] for rows in self._groups(by)]
        return Results(self.table.take(np.concatenate(chosen) if chosen else []))

    def _groups(self, by: Sequence[str]) -> list[np.ndarray[Any, Any]]:
        if not by:
            return [np.arange(len(self))]
        keys: dict[tuple[Any, ...], list[int]] = {}
        for i, key in enumerate(zip(*(self.column(name).tolist() for name in by), strict=True)):
            keys.setdefault(key, []).append(i)
        return [np.array(rows) for rows in keys.values()]

    def select(self, columns: Sequence[str]) -> Results:
        """Only some columns."""
        for name in columns:
            self.column(name)
        return Results(self.table.select(list(columns)))

    def rows(self) -> list[dict[str, Any]]:
        """Rows as dictionaries."""
        found: list[dict[str, Any]] = self.table.to_pylist()
        return found

    def to_pandas(self) -> Any:
        """As a pandas data frame."""
        _need("pandas")
        return self.table.to_pandas()

    def to_polars(self) -> Any:
        """As a polars data frame."""
        return _need("polars").from_arrow(self.table)

    def write(self, path: str | Path) -> None:
        """Write ``.csv`` or ``.parquet``. Raises ``InputError`` for another ending, or if it cannot be written."""
        import pyarrow.csv
        import pyarrow.parquet

        writers = {".csv": pyarrow.csv.write_csv, ".parquet": pyarrow.parquet.write_table}
        if Path(path).suffix not in writers:
            raise InputError(Problem("must end in .csv or .parquet", where=str(path)))
        try:
            writers[Path(path).suffix](self.table, str(path))
        except OSError as error:
            raise InputError(Problem(f"cannot be written: {error}", where=str(path))) from None


_METHOD = {"<=": "__le__", ">=": "__ge__", "<": "__lt__", ">": "__gt__", "==": "__eq__", "=": "__eq__", "!=": "__ne__"}


def _need(name: str) -> Any:
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError:
        raise InputError(f"{name} is not installed; install it with: pip install {name}") from None


def difference(before: Results, after: Results, column: str) -> list[dict[str, Any]]:
    """Layouts of two studies by their best value of a column: value and rank in both, the largest move first.

    ``None`` stands for a layout that one of them does not have.
    """
    first, second = (_ranked(one, column) for one in (before, after))
    rows = []
    for layout in dict.fromkeys([*first, *second]):
        (r, v), (s, w) = first.get(layout, (None, None)), second.get(layout, (None, None))
        moved = r - s if r is not None and s is not None else None
        ratio = w / v if v and w is not None else None
        rows.append(
            {
                "layout": layout,
                "rank_before": r,
                "rank_after": s,
                "moved": moved,
                "before": v,
                "after": w,
                "ratio": ratio,
            }
        )
    return sorted(rows, key=lambda row: (row["moved"] is not None, -abs(row["moved"] or 0), row["layout"]))


def _ranked(results: Results, column: str) -> Mapping[str, tuple[int, float]]:
    best = results.top(column, 1, ["layout"]).top(column, len(results))
    return {
        layout: (rank, float(value))
        for rank, (layout, value) in enumerate(
            zip(best.column("layout").tolist(), best.column(column).tolist(), strict=True), start=1
        )
    }
