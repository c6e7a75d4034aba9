"""The commands ``shardwise explain``, ``kv-tokens`` and ``export``."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sim.errors import InputError

if TYPE_CHECKING:
    from sim.launch.launch import Launch

Terminal = Callable[[], tuple[int, bool]]


class EngineChoice(StrEnum):
    """Whose flags."""

    vllm = "vllm"
    sglang = "sglang"
    trtllm = "trtllm"


Command = Annotated[
    str, typer.Argument(metavar="COMMAND", help="A launch command in quotes, or a deployment file.", show_default=False)
]
GpuName = Annotated[str, typer.Option("--gpu", metavar="NAME", help="GPU of the catalogue.", show_default=False)]
Config = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="config.json of a model that is not in the catalogue.")
]
Options = Annotated[
    Path | None, typer.Option("--options", metavar="FILE", help="The YAML file of options that the command names.")
]
Version = Annotated[str | None, typer.Option("--engine-version", help="Of the engine's memory policy.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def add_to(app: typer.Typer, terminal: Terminal) -> None:
    """Add the commands to the program. ``terminal`` returns its width and whether colours are wanted."""

    @app.command(
        short_help="Explain a launch command of an engine.",
        epilog="Example: shardwise explain 'vllm serve Qwen/Qwen3-32B -tp 4' --gpu h100-sxm",
    )
    def explain(
        command: Command,
        gpu: GpuName,
        topology: Annotated[str | None, typer.Option(help="Machine; else the one the GPU usually comes in.")] = None,
        config: Config = None,
        options: Options = None,
        batch: Annotated[int | None, typer.Option(min=1, help="Sequences of the step on all GPUs.")] = None,
        context: Annotated[int | None, typer.Option(min=1, help="Tokens in each cache.")] = None,
        engine_version: Version = None,
        json: Json = False,
    ) -> Callable[[], str]:
        """Say what an engine will make of a launch: layout, rules it breaks, memory, log line, step, better layouts.

        Nothing of the command is run or fetched.
        """
        return lambda: _explain(command, gpu, topology, config, options, batch, context, engine_version, json, terminal)

    @app.command(
        "kv-tokens",
        short_help="Print how many tokens an engine's cache will hold.",
        epilog="Example: shardwise kv-tokens 'vllm serve Qwen/Qwen3-32B -tp 4' --gpu h100-sxm",
    )
    def kv_tokens(
        command: Command,
        gpu: GpuName,
        config: Config = None,
        options: Options = None,
        engine_version: Version = None,
        json: Json = False,
    ) -> Callable[[], str]:
        """Print the line about its KV cache that the engine will log, with a range."""
        return lambda: _kv_tokens(command, gpu, config, options, engine_version, json)

    @app.command(
        short_help="Write the launch command of a layout.",
        epilog="Example: shardwise export qwen3_235b_8xh200 --layout tp8-dcp2 --engine vllm",
    )
    def export(
        file: Annotated[str, typer.Argument(metavar="FILE", help="A scenario file, or the name of a shipped one.")],
        layout: Annotated[str, typer.Option("--layout", metavar="TAG", help="Which layout.", show_default=False)],
        engine: Annotated[EngineChoice, typer.Option(help="Whose flags.", show_default=False)],
    ) -> Callable[[], str]:
        """Write the flags, or the YAML, by which an engine runs a layout, and what it does otherwise."""
        return lambda: _export(file, layout, engine)


def _launches(command: str, config: Path | None, options: Path | None) -> list[Launch]:
    """The launches of a command, or of a deployment file."""
    from sim.documents import read_content
    from sim.launch.command import parse
    from sim.launch.deployments import parse_file
    from sim.launch.launch import resolve

    path = Path(command)
    if path.suffix in (".yaml", ".yml") and len(command.split()) == 1:
        every = parse_file(path)
    else:
        text = read_content(options, "file of options").decode("utf-8", "replace") if options else None
        every = [parse(command, options=text)]
    return [resolve(settings, config) for settings in every]


def _explain(
    command: str,
    gpu: str,
    topology: str | None,
    config: Path | None,
    options: Path | None,
    batch: int | None,
    context: int | None,
    version: str | None,
    json: bool,
    terminal: Terminal,
) -> str:
    from sim.catalog.gpus import load_gpu
    from sim.launch.explain import explain
    from sim.launch.render import render

    card = load_gpu(gpu)
    found = [explain(one, card, topology, batch, context, version) for one in _launches(command, config, options)]
    if json:
        return "\n".join(one.model_dump_json(indent=2) for one in found) + "\n"
    width, _ = terminal()
    roles = [one.launch.settings.role for one in found]
    return "\n".join(f"{role}: " * bool(role) + render(one, width) for role, one in zip(roles, found, strict=True))


def _kv_tokens(
    command: str, gpu: str, config: Path | None, options: Path | None, version: str | None, json: bool
) -> str:
    from sim.catalog.gpus import load_gpu
    from sim.launch.capacity import capacity
    from sim.launch.render import render_capacity

    card = load_gpu(gpu)
    found = [capacity(launch, card, version) for launch in _launches(command, config, options)]
    return "\n".join(one.model_dump_json(indent=2) + "\n" if json else render_capacity(one) for one in found)


def _export(file: str, layout: str, engine: EngineChoice) -> str:
    from sim.launch.export import export_layout
    from sim.run import load

    scenario = load(file)
    if scenario.workload.phase != "decode":
        raise InputError("launch commands are written for layouts that decode")
    work = scenario.workload
    longest = max(work.context) if isinstance(work.context, tuple) else work.context
    found = export_layout(scenario.layout(layout), scenario.model, engine.value, scenario.precision, max_length=longest)
    notes = "".join(f"# {note}\n" for note in found.notes)
    options = f"# options.yaml\n{found.options}" if found.options else ""
    return f"{found.command}\n{options}{notes}"
