"""The commands about machines: ``shardwise show topology`` and ``shardwise import-topology``."""

from __future__ import annotations

import json as json_
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from sim.errors import InputError, Problem

Terminal = Callable[[], tuple[int, bool]]
_MATRIX = typer.Argument(
    metavar="FILE", help="What `nvidia-smi topo -m` or AMD's tools printed; - reads standard input.", show_default=False
)
_MACHINE = typer.Argument(
    metavar="NAME", help="As a scenario names it: hgx-8, or the file of a graph.", show_default=False
)


def add_to(app: typer.Typer, terminal: Terminal) -> None:
    """Add the commands to the program. ``terminal`` returns its width and whether colours are wanted."""
    show = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Show what a scenario can name, in detail.")
    app.add_typer(show, name="show", short_help="Show a topology in detail.")

    @show.callback()
    def _show() -> None:
        """Show what a scenario can name, in detail."""

    @show.command(
        "topology",
        short_help="Draw a machine and price collectives on it.",
        epilog="Example: shardwise show topology nvl72 --gpu gb300",
    )
    def topology(
        name: Annotated[str, _MACHINE],
        gpu: Annotated[str | None, typer.Option(help="Of which GPU; else one that the machine comes with.")] = None,
        json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
    ) -> Callable[[], str]:
        """Draw a machine: who is linked with whom and how fast, and what each collective costs on all its GPUs."""
        return lambda: _show_topology(name, gpu, json, terminal)

    @app.command(
        "import-topology",
        short_help="Turn what nvidia-smi topo -m prints into a topology file.",
        epilog="Example: nvidia-smi topo -m | shardwise import-topology - --gpu h100-sxm -o my_box.yaml",
    )
    def import_topology(
        file: Annotated[str, _MATRIX],
        output: Annotated[
            Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write here instead of stdout.")
        ] = None,
        gpu: Annotated[str | None, typer.Option(help="Which GPU it is; says how many switch chips there are.")] = None,
        name: Annotated[str | None, typer.Option(help="Name of the machine; else that of the file.")] = None,
        matrix: Annotated[int | None, typer.Option(help="Which matrix, where the text holds several.")] = None,
        force: Annotated[bool, typer.Option("--force", help="Replace FILE if it exists.")] = False,
    ) -> Callable[[], str]:
        """Turn the matrix that nvidia-smi topo -m (or rocm-smi, amd-smi) prints into a topology file.

        What had to be repaired is said on stderr and in the file's comments.
        """
        return lambda: _import(file, output, gpu, name, matrix, force)


def _show_topology(name: str, gpu_name: str | None, json: bool, terminal: Terminal) -> str:
    from sim.catalog.gpus import load_gpu
    from sim.network.report import report
    from sim.render.topology import render_topology

    machine = _machine(name)
    gpu = load_gpu(gpu_name or machine.usual_gpu)
    try:
        fabric = machine.build(gpu)
    except InputError as error:
        if gpu_name:
            raise
        hint = Problem(f"this is for {gpu.name}; choose another with --gpu")
        raise InputError([*error.problems, hint]) from None
    found = report(fabric, gpu)
    if json:
        return json_.dumps(found.model_dump(mode="json"), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    return render_topology(found, *terminal())


def _machine(name: str) -> Any:
    """A topology by name or file, or written as in a scenario: ``{kind: cluster, nodes: 4}``."""
    from sim.catalog.topologies import parse_topology

    if not name.lstrip().startswith("{"):
        return parse_topology(name)
    from sim.documents import Kind, read_document

    document = read_document(name, "NAME", Kind("topology", "kind and gpus"))
    if document.problems:
        raise InputError(document.problems)
    return parse_topology(document.data)


def _import(
    file: str, output: Path | None, gpu_name: str | None, name: str | None, which: int | None, force: bool
) -> str:
    from sim.catalog.gpus import load_gpu
    from sim.topo.matrix import read_matrix
    from sim.topo.reader import graph_text, to_graph

    if name is not None and (not name.isprintable() or not name.strip() or len(name) > 100):
        raise InputError("--name: must be printable text on one line of at most 100 characters")
    gpu = load_gpu(gpu_name) if gpu_name else None
    source = "stdin" if file == "-" else file
    matrix = read_matrix(_text(file), source, which)
    stem = output.stem if output else Path(source).stem
    imported = to_graph(matrix, name or _printable(stem)[:100] or "graph", gpu)
    said = [f"warning: {warning}" for warning in matrix.warnings]
    origin = f"imported from {Path(source).name}{f', {gpu.name}' if gpu else ''}"
    text = graph_text(imported, [origin, *said])
    for line in (*said, *(f"note: {note}" for note in imported.notes)):
        print(_printable(line), file=sys.stderr)
    return written_or_printed(text, output, force)


def written_or_printed(text: str, output: Path | None, force: bool) -> str:
    """What is left to print of ``text``: all of it, or nothing once it is in the file ``output``.

    Raises ``InputError`` if the file is there already and ``force`` is not given.
    """
    from sim.render.export import write_files

    if output is None:
        return text
    if os.path.exists(output) and not force:
        raise InputError(f"{output}: exists already; choose another name or add --force")
    (written,) = write_files(output.parent, {output.name: text})
    print(f"wrote {written}", file=sys.stderr)
    return ""


def _text(file: str) -> str:
    """The text of a file or of stdin, whatever the shell that wrote it takes for plain text."""
    from sim.documents import read_content
    from sim.topo.matrix import MOST_BYTES

    content = sys.stdin.buffer.read(MOST_BYTES + 1) if file == "-" else read_content(file, "matrix", MOST_BYTES)
    wide = content.startswith((b"\xff\xfe", b"\xfe\xff"))  # PowerShell redirects in UTF-16
    return content.decode("utf-16" if wide else "utf-8-sig", errors="replace")


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)
