"""The command ``shardwise``.

Commands only read their arguments and return what is to be done; ``execute`` does it, prints the text and turns
errors into exit codes: 0 done, 1 a proof that fails or a bug, 2 wrong input (each problem on its own line of stderr),
130 interrupted.
Everything heavy is imported inside the commands, so that ``--help`` is quick.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from sim import __version__
from sim.cli import launch as cli_launch
from sim.cli import replay as cli_replay
from sim.cli import roofline as cli_roofline
from sim.cli import study as cli_study
from sim.cli import topology as cli_topology
from sim.cli import validate as cli_validate
from sim.cli.options import File, Json, complete_file
from sim.errors import FloorError, InputError, Problem, ProgramError, ShardwiseError

Action = Callable[[], str | tuple[str, int]]
"""What a command does when it runs; returns the text for stdout, and the exit code if it is not 0."""
UsageError: type[Any] = typer.BadParameter.__mro__[1]
"""Wrong arguments. typer brings click along in some versions and depends on it in others."""

_EXAMPLES = """\b
Examples:
  shardwise list scenarios
  shardwise compare qwen3_235b_8xh200
  shardwise run qwen3_235b_8xh200 --layout tp8
  shardwise prove qwen3_235b_8xh200
  shardwise compare my.yaml --json --out results
"""

app = typer.Typer(
    name="shardwise",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog=_EXAMPLES,
)


class Listed(StrEnum):
    """What ``list`` can list."""

    models = "models"
    gpus = "gpus"
    topologies = "topologies"
    strategies = "strategies"
    scenarios = "scenarios"


class Granularity(StrEnum):
    """How many ranks are simulated one by one."""

    folded = "folded"
    ranks = "ranks"
    flows = "flows"


class KernelSource(StrEnum):
    """Where times of compute kernels come from."""

    fitted = "fitted"
    measured = "measured"


Csv = Annotated[bool, typer.Option("--csv", help="Print CSV, one row per layout.")]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="DIR",
        help="Also write report.json, report.csv, the scenario with every default, and the version.",
    ),
]
Detail = Annotated[
    Granularity | None,
    typer.Option(
        help="One rank of each class, every rank (the same answer), or every rank with messages that share links."
    ),
]


Source = Annotated[
    KernelSource | None,
    typer.Option("--kernels", help="Fitted models, or measured tables where they cover a shape (SHARDWISE_TABLES)."),
]


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"shardwise {__version__}")
        raise typer.Exit


@app.callback()
def _shardwise(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Simulate multi-GPU LLM inference: which parallel layout holds what, and how long a step takes."""


@app.command(
    short_help="Compare all layouts of a scenario.",
    epilog="Example: shardwise compare scenarios/qwen3_235b_8xh200.yaml --out results",
)
def compare(
    file: File,
    json: Json = False,
    csv: Csv = False,
    out: Out = None,
    granularity: Detail = None,
    kernels: Source = None,
) -> Action:
    """Compare all layouts of a scenario: KV copies, memory, step time, and why."""
    return lambda: _answer(file, None, json, csv, out, granularity, kernels)


@app.command(short_help="Show one layout in detail.", epilog="Example: shardwise run qwen3_235b_8xh200 --layout tp8")
def run(
    file: File,
    layout: Annotated[str, typer.Option("--layout", metavar="TAG", help="Which layout.", show_default=False)],
    json: Json = False,
    csv: Csv = False,
    out: Out = None,
    granularity: Detail = None,
    kernels: Source = None,
) -> Action:
    """Show one layout in detail: memory by part, time by operation, ranks that differ, constants."""
    return lambda: _answer(file, layout, json, csv, out, granularity, kernels)


@app.command(
    short_help="Prove the layouts of a scenario by executing them.",
    epilog="Example: shardwise prove qwen3_235b_8xh200 --layout tp8",
)
def prove(
    file: File,
    layout: Annotated[str | None, typer.Option("--layout", metavar="TAG", help="Only this layout.")] = None,
    json: Json = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random weights and tokens.")] = 0,
) -> Action:
    """Execute every layout on a small model of the same shape, and count what it really holds and sends.

    Exit code 1 if a result differs from the unsharded reference, or a byte from what the report claims.
    """
    return lambda: _prove(file, layout, json, seed)


@app.command(short_help="Say what is wrong with scenario files.", epilog="Example: shardwise check scenarios/*.yaml")
def check(files: Annotated[list[str], typer.Argument(metavar="FILE...", autocompletion=complete_file)]) -> Action:
    """Read scenario files and report everything that is wrong with them."""
    return lambda: _check(files)


@app.command("list", short_help="List what a scenario can name.", epilog="Example: shardwise list models")
def list_(what: Listed, json: Json = False) -> Action:
    """List what a scenario can name: models, GPUs, topologies, strategies, shipped scenarios."""

    def action() -> str:
        from sim.render.listing import listing, listing_json

        width, color = _terminal()
        return listing_json(what.value) if json else listing(what.value, width, color)

    return action


@app.command(
    "import-model",
    short_help="Turn a Hugging Face config.json into a model file.",
    epilog="Example: shardwise import-model config.json -o my-model.yaml",
)
def import_model(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="A Hugging Face config.json.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write here instead of stdout.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the model; else that of the folder.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE if it exists.")] = False,
) -> Action:
    """Turn a Hugging Face config.json into a model file that scenarios can name by its path."""
    return lambda: _import_model(config, output, name, force)


def _answer(
    file: str,
    tag: str | None,
    json: bool,
    csv: bool,
    out: Path | None,
    granularity: Granularity | None,
    kernels: KernelSource | None,
) -> str:
    if json and csv:
        raise InputError("--json and --csv exclude each other; with --out DIR both are written")
    from sim.render.export import to_csv, to_json, write_folder
    from sim.run import compare, load

    scenario = load(file)
    options = {"granularity": granularity, "kernels": kernels}
    changes: dict[str, Any] = {name: option.value for name, option in options.items() if option}
    if tag is not None:
        changes |= {"layouts": (scenario.layout(tag),), "variants": ()}
    report = compare(scenario.adjusted(**changes))
    if out:
        written = write_folder(out, report)
        print(f"wrote {', '.join(map(str, written))}", file=sys.stderr)
    if json or csv:
        return to_json(report) if json else to_csv(report)
    width, color = _terminal()
    if tag is None:
        from sim.render.table import render

        return render(report, width, color)
    from sim.render.layout import render_layout

    return render_layout(report, tag, width, color)


def _prove(file: str, tag: str | None, json: bool, seed: int) -> tuple[str, int]:
    from sim.run import load, prove

    scenario = load(file)
    if tag is not None:
        scenario = scenario.model_copy(update={"layouts": (scenario.layout(tag),)})
    proofs = prove(scenario, seed)
    failed = int(not all(proof.ok for proof in proofs.layouts))
    if json:
        return proofs.model_dump_json(indent=2) + "\n", failed
    from sim.render.prove import render_prove

    width, color = _terminal()
    return render_prove(proofs, width, color), failed


def _check(files: list[str]) -> str:
    from sim.plugins import failure_of_plug_in
    from sim.run import load

    lines: list[str] = []
    problems: list[Problem] = []
    for file in files:
        try:
            scenario = load(file)
        except InputError as error:
            problems += error.problems
        except (Exception, SystemExit) as error:
            if not (failure := failure_of_plug_in(error)):
                raise
            problems.append(Problem(failure, where=file))
        else:
            tags = ", ".join(layout.label for layout in scenario.layouts)
            lines.append(f"{printable(file)}: ok, {len(scenario.layouts)} layouts: {tags}\n")
    if problems:
        sys.stdout.write("".join(lines))
        raise InputError(problems)
    return "".join(lines)


def _import_model(config: Path, output: Path | None, name: str | None, force: bool) -> str:
    from sim.huggingface.config import load_config
    from sim.render.export import to_yaml
    from sim.render.listing import compact

    if name and not name.isprintable():
        raise InputError("--name: must be printable text on one line")
    model = load_config(config / "config.json" if os.path.isdir(config) else config)
    text = to_yaml(compact(model.model_copy(update={"name": name}) if name else model))
    return cli_topology.written_or_printed(text, output, force)


def _terminal() -> tuple[int, bool]:
    """Width in columns and whether colours are wanted. Off a terminal: 120, or what COLUMNS says, and none."""
    import shutil

    on_terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size((120, 24)).columns if on_terminal or "COLUMNS" in os.environ else 120
    plain = "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
    return max(width, 40), on_terminal and not plain


cli_topology.add_to(app, _terminal)
cli_validate.add_to(app, _terminal)
cli_roofline.add_to(app, _terminal)
cli_study.add_to(app, _terminal)
cli_launch.add_to(app, _terminal)
cli_replay.add_to(app, _terminal)


def _warn(message: Warning | str, *_: Any, **__: Any) -> None:
    _complain(f"warning: {printable(str(message))}")


def printable(text: str) -> str:
    """Write what would move the cursor, colour the terminal or start a line as its escape."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _complain(line: str) -> None:
    with suppress(OSError):  # nobody can be told that stderr is full
        print(line, file=sys.stderr)


def _open_streams() -> None:
    """A stream that the shell has closed becomes one that swallows; no character may stop the printing."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", closefd=False))
        stream = getattr(sys, name)
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal without Unicode still shows the figures


def _close_stdout() -> None:
    """Whoever reads stdout has seen enough, or its disk is full; Python must not complain again when it exits."""
    with suppress(OSError, ValueError):  # ValueError: not a real file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _failed(error: BaseException) -> int | None:
    """Say what a failure that nobody foresaw comes from, and return the exit code; ``None`` if it is our own bug."""
    from sim.plugins import failure_of_plug_in

    if failure := failure_of_plug_in(error):
        _complain(printable(failure))
        return 1
    if isinstance(error, ShardwiseError):
        bug = isinstance(error, (ProgramError, FloorError))
        _complain(f"{'a bug in the simulator or in a strategy: ' if bug else ''}{printable(str(error))}")
        return 1
    if isinstance(error, OSError):
        _close_stdout()
        place = printable(str(error.filename)) if error.filename else "stdout"
        _complain(f"{place}: {(error.strerror or str(error)).lower()}")
        return 2
    return None


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit."""
    sys.exit(execute(sys.argv[1:] if arguments is None else arguments))


def execute(arguments: list[str]) -> int:
    """Run the command line; return the exit code."""
    _open_streams()
    with warnings.catch_warnings():
        warnings.showwarning = _warn
        try:
            action = app(arguments, prog_name="shardwise", standalone_mode=False)
            if callable(action):
                answer = action()
                text, action = answer if isinstance(answer, tuple) else (answer, 0)
                sys.stdout.write(text)
            sys.stdout.flush()
        except UsageError as error:
            error.message = error.message.removeprefix("Value error, ")
            error.show()
            return 2
        except InputError as error:
            _complain("\n".join(printable(str(p)) for p in error.problems))
            return 2
        except (KeyboardInterrupt, typer.Abort):
            _complain("interrupted")
            return 130
        except BrokenPipeError:
            _close_stdout()
            return 141
        except (Exception, SystemExit) as error:
            code = _failed(error)
            if code is None:
                raise
            return code
    return int(action) if isinstance(action, int) else 0
