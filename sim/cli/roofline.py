"""The command ``shardwise roofline``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from sim.cli.options import File, Json
from sim.errors import InputError

Terminal = Callable[[], tuple[int, bool]]


def add_to(app: typer.Typer, terminal: Terminal) -> None:
    """Add the command to the program. ``terminal`` returns its width and whether colours are wanted."""

    @app.command(
        short_help="Show which operations are bound by compute and which by memory.",
        epilog="Example: shardwise roofline qwen3_235b_8xh200 --layout tp8",
    )
    def roofline(
        file: File,
        layout: Annotated[str | None, typer.Option("--layout", metavar="TAG", help="Only this layout.")] = None,
        json: Json = False,
        csv: Annotated[bool, typer.Option("--csv", help="Print CSV, one row per operation.")] = False,
    ) -> Callable[[], str]:
        """Show FLOPs, bytes, arithmetic intensity, ridge point and bound of every operation, block and step."""
        return lambda: _roofline(file, layout, json, csv, terminal)


def _roofline(file: str, tag: str | None, json: bool, csv: bool, terminal: Terminal) -> str:
    from sim.render.roofline import render_roofline, roofline_csv
    from sim.run import load, rooflines

    if json and csv:
        raise InputError("--json and --csv exclude each other")
    scenario = load(file)
    if tag is not None:
        scenario = scenario.adjusted(layouts=(scenario.layout(tag),))
    report = rooflines(scenario)
    if json:
        return report.model_dump_json(indent=2) + "\n"
    return roofline_csv(report) if csv else render_roofline(report, *terminal())
