"""Arguments that several commands take."""

from __future__ import annotations

import os
from typing import Annotated

import typer


def complete_file(incomplete: str) -> list[str]:
    """Shipped scenarios and files that begin so."""
    from glob import escape, glob

    from sim.catalog.scenarios import scenario_names

    files = [p + "/" * os.path.isdir(p) for p in glob(f"{escape(incomplete)}*") if os.path.isdir(p) or ".y" in p]
    return [*(name for name in scenario_names() if name.startswith(incomplete)), *sorted(files)]


File = Annotated[
    str,
    typer.Argument(
        metavar="FILE",
        help="A scenario file, or the name of a shipped scenario.",
        autocompletion=complete_file,
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
