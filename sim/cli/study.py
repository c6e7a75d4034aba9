"""The commands of studies: ``study``, ``pareto``, ``top`` and ``study-diff``."""

from __future__ import annotations

import json as json_
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sim.errors import InputError

if TYPE_CHECKING:
    from sim.study.results import Results

Terminal = Callable[[], tuple[int, bool]]
Action = Callable[[], str]
Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder of a study.", show_default=False)]
Where = Annotated[
    list[str] | None,
    typer.Option("--where", metavar="CONDITION", help="Only these rows, as in 'gpus <= 32'. May repeat."),
]
By = Annotated[
    list[str] | None, typer.Option("--group-by", metavar="COLUMN", help="One answer per value of a column. May repeat.")
]
Every = Annotated[bool, typer.Option("--all", help="Also rows that do not fit or do not meet the constraints.")]
Output = Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write .csv or .parquet instead.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def add_to(app: typer.Typer, terminal: Terminal) -> None:
    """Add the commands to the program. ``terminal`` returns its width and whether colours are wanted."""

    @app.command(
        short_help="Run a study, or continue it.", epilog="Example: shardwise study my_study.yaml --out results"
    )
    def study(
        file: Annotated[str, typer.Argument(metavar="FILE", help="A study file, or the name of a shipped study.")],
        out: Annotated[Path | None, typer.Option("--out", metavar="FOLDER", help="Else the study's name.")] = None,
        dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say how much there is to do.")] = False,
        workers: Annotated[int | None, typer.Option(min=1, help="Processes; all cores when left out.")] = None,
        shard: Annotated[str, typer.Option(metavar="I/N", help="Only this share of the parts.")] = "1/1",
        cluster: Annotated[
            str | None, typer.Option(metavar="ADDRESS", help="A Dask scheduler: tcp://host:8786.")
        ] = None,
    ) -> Action:
        """Price every point of a study into a folder. A run that was stopped continues where it was."""
        return lambda: _study(file, out, dry_run, workers, shard, cluster)

    @app.command(
        short_help="The Pareto front of a study.",
        epilog="Example: shardwise pareto results --x tokens_per_s_per_user --y output_tokens_per_s_per_gpu",
    )
    def pareto(
        folder: Folder,
        x: Annotated[str, typer.Option(metavar="COLUMN")] = "tokens_per_s_per_user",
        y: Annotated[str, typer.Option(metavar="COLUMN")] = "output_tokens_per_s_per_gpu",
        group_by: By = None,
        where: Where = None,
        every: Every = False,
        output: Output = None,
        json: Json = False,
    ) -> Action:
        """Show the rows that no other row beats in both columns."""

        def action() -> str:
            from sim.study.results import Results

            found = Results.open(folder, where or (), every).pareto(x, y, group_by or ())
            return _answer(found, output, json, terminal)

        return action

    @app.command(short_help="The best rows of a study.", epilog="Example: shardwise top results --by tpot_seconds -n 5")
    def top(
        folder: Folder,
        by: Annotated[str, typer.Option(metavar="COLUMN")] = "output_tokens_per_s_per_gpu",
        n: Annotated[int, typer.Option("-n", min=1, help="How many, of each group.")] = 10,
        group_by: By = None,
        where: Where = None,
        every: Every = False,
        output: Output = None,
        json: Json = False,
    ) -> Action:
        """Show the rows that are best in one column."""

        def action() -> str:
            from sim.study.results import Results

            found = Results.open(folder, where or (), every).top(by, n, group_by or ())
            return _answer(found, output, json, terminal)

        return action

    @app.command(
        "study-diff",
        short_help="Which layouts changed rank between two studies.",
        epilog="Example: shardwise study-diff before after --by tokens_per_s_per_user",
    )
    def study_diff(
        before: Folder,
        after: Folder,
        by: Annotated[str, typer.Option(metavar="COLUMN")] = "output_tokens_per_s_per_gpu",
        n: Annotated[int, typer.Option("-n", min=1, help="How many.")] = 20,
        where: Where = None,
        json: Json = False,
    ) -> Action:
        """Compare the best value of each layout in two studies."""
        return lambda: _difference(before, after, by, n, where, json, terminal)


def _study(file: str, out: Path | None, dry_run: bool, workers: int | None, shard: str, cluster: str | None) -> str:
    from sim.study.definition import load_study
    from sim.study.execute import run

    study = load_study(file)
    parts, layouts, points = study.count()
    if dry_run:
        from sim.study.estimate import estimate
        from sim.units import format_seconds

        cost = estimate(study)
        return (
            f"{study.name}: {points:,} points ({layouts:,} layouts at {study.points_of_a_layout:,} lengths) "
            f"in {parts:,} parts; about {format_seconds(cost)} on one core\n"
        )
    from contextlib import ExitStack

    from sim.study.progress import progress

    index, _, of = shard.partition("/")
    if not (index.isdigit() and of.isdigit()):
        raise InputError("--shard: write for example 1/4, the first of four shares")
    folder = out or Path(study.name)
    with ExitStack() as stack:
        executor = in_flight = None
        if cluster:
            from sim.study.cluster import dask_executor, threads

            executor, client = stack.enter_context(dask_executor(cluster))
            in_flight = 4 * threads(client)
        report = stack.enter_context(progress(study.name))
        run(study, folder, executor, workers, (int(index), int(of)), report, in_flight)
    return f"{points:,} points of {study.name} are in {folder}\n" if of == "1" else f"{folder}: shard {shard} is done\n"


def _answer(found: Results, output: Path | None, json: bool, terminal: Terminal) -> str:
    if output:
        found.write(output)
        print(f"wrote {output}", file=sys.stderr)
        return ""
    if json:
        return json_.dumps(found.rows(), indent=2, ensure_ascii=False) + "\n"
    from sim.render.study import render_rows

    return render_rows(found.rows(), *terminal())


def _difference(
    before: Path, after: Path, by: str, n: int, where: list[str] | None, json: bool, terminal: Terminal
) -> str:
    from sim.render.study import render_rows
    from sim.study.results import Results, difference

    rows = difference(Results.open(before, where or ()), Results.open(after, where or ()), by)
    if json:
        return json_.dumps(rows, indent=2, ensure_ascii=False) + "\n"
    return render_rows(rows[:n], *terminal())
