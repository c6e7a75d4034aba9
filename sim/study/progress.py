"""A bar on stderr that says how far a run is, how fast it goes and how long it will take."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from sim.study.execute import Progress, Report


@contextmanager
def progress(name: str) -> Iterator[Report]:
    """A bar while the block runs; off a terminal nothing is drawn. Yields what ``run`` is to report to."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("parts · {task.fields[rate]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=Console(file=sys.stderr), disable=not sys.stderr.isatty(), transient=True) as bar:
        task = bar.add_task(name, total=None, rate="")

        def report(now: Progress) -> None:
            elapsed = bar.tasks[0].elapsed or 0.0
            rate = f"{now.points / elapsed:,.0f} points/s" if elapsed else ""
            rate += f" · {now.retried} retried" if now.retried else ""
            bar.update(task, completed=now.done, total=now.parts, rate=rate)

        yield report
