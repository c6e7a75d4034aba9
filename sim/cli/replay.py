"""The commands ``shardwise replay`` and ``shardwise plan``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from sim.cli.options import File, Json
from sim.errors import InputError

Terminal = Callable[[], tuple[int, bool]]
Action = Callable[[], str | tuple[str, int]]
INTERRUPTED = 130


def add_to(app: typer.Typer, terminal: Terminal) -> None:
    """Add the commands to the program. ``terminal`` returns its width and whether colours are wanted."""

    @app.command(
        short_help="Send a stream of requests through every layout.",
        epilog="Example: shardwise replay replay_llama_70b --layout tp8 --jsonl",
    )
    def replay(
        file: File,
        layout: Annotated[str | None, typer.Option("--layout", metavar="TAG", help="Only this layout.")] = None,
        json: Json = False,
        csv: Annotated[bool, typer.Option("--csv", help="Print CSV, one row per layout.")] = False,
        jsonl: Annotated[bool, typer.Option("--jsonl", help="Print one line of JSON per request.")] = False,
        until: Annotated[
            float | None, typer.Option(min=0, metavar="SECONDS", help="Stop after so many simulated seconds.")
        ] = None,
    ) -> Action:
        """Replay the requests of a scenario: TTFT, time per token, throughput and goodput of every layout.

        Ctrl-C stops the run; what was answered until then is shown, with exit code 130.
        """
        return lambda: _replay(file, layout, json, csv, jsonl, until, terminal)

    @app.command(
        short_help="Find the cheapest deployments that keep an SLO.",
        epilog="Example: shardwise plan plan_llama_70b",
    )
    def plan(
        file: File,
        json: Json = False,
        csv: Annotated[bool, typer.Option("--csv", help="Print CSV, one row per deployment.")] = False,
    ) -> Action:
        """Search layouts and numbers of instances for the fewest GPUs that keep the SLO of a scenario.

        Ctrl-C ends the search; what was found until then is shown, with exit code 130.
        """
        return lambda: _plan(file, json, csv, terminal)


def _replay(
    file: str, tag: str | None, json: bool, csv: bool, jsonl: bool, until: float | None, terminal: Terminal
) -> tuple[str, int]:
    from math import inf

    from sim.render.replay import render_replay, replay_csv, replay_json, replay_jsonl
    from sim.replaying import replay
    from sim.run import load

    if json + csv + jsonl > 1:
        raise InputError("--json, --csv and --jsonl exclude each other")
    scenario = load(file)
    with progress_bar() as advance:
        result = replay(scenario, tag, until=inf if until is None else until, progress=advance)
    code = INTERRUPTED if until is None and any(one.stopped for one in result.layouts) else 0
    for wanted, write in ((json, replay_json), (csv, replay_csv), (jsonl, replay_jsonl)):
        if wanted:
            return write(result), code
    return render_replay(result, scenario, *terminal()), code


def _plan(file: str, json: bool, csv: bool, terminal: Terminal) -> tuple[str, int]:
    from sim.planning import plan
    from sim.render.plan import plan_csv, plan_json, render_plan
    from sim.run import load

    if json and csv:
        raise InputError("--json and --csv exclude each other")
    with progress_bar() as advance:
        result = plan(load(file), advance)
    code = 0 if result.complete else INTERRUPTED
    if json or csv:
        return plan_json(result) if json else plan_csv(result), code
    return render_plan(result, *terminal()), code


@contextmanager
def progress_bar() -> Iterator[Callable[[str, int, int], Any] | None]:
    """A bar on stderr where that is a terminal: called with what is done, how much of it, and how much there is."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress, TaskID

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task: list[TaskID] = []

        def advance(name: str, done: int, total: int) -> None:
            if not task:
                task.append(bar.add_task(name, total=total))
            bar.update(task[0], description=name, completed=done, total=total)

        yield advance
