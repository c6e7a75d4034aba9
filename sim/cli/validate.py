"""The command ``shardwise validate``."""

from __future__ import annotations

import json as json_
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from sim.errors import InputError

Terminal = Callable[[], tuple[int, bool]]
_DATA = typer.Option(
    "--data",
    metavar="DIR",
    help="CSV files of your own in the same columns; kernel tables are looked for in DIR/kernel_tables.",
)


def add_to(app: typer.Typer, terminal: Terminal) -> None:
    """Add the command to the program. ``terminal`` returns its width and whether colours are wanted."""

    @app.command(
        short_help="Compare the simulator with published measurements.",
        epilog="Example: shardwise validate --markdown",
    )
    def validate(
        data: Annotated[Path | None, _DATA] = None,
        json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
        markdown: Annotated[bool, typer.Option("--markdown", help="Print the table of groups as Markdown.")] = False,
    ) -> Callable[[], str]:
        """Predict every published measurement that ships with the package, and print by how much it is missed."""
        return lambda: _validate(data, json, markdown, terminal)


def _validate(data: Path | None, json: bool, markdown: bool, terminal: Terminal) -> str:
    from sim.render.validate import render_validate, to_markdown
    from sim.validate import validate

    if json and markdown:
        raise InputError("--json and --markdown exclude each other")
    found = validate(data)
    if json:
        return json_.dumps(found.model_dump(mode="json"), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    return to_markdown(found) if markdown else render_validate(found, *terminal())
