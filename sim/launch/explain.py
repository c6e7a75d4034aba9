"""Everything about one launch on one GPU: layout, rules, duplication, memory, the log line, time, better layouts."""

from __future__ import annotations

from typing import NamedTuple

from sim.catalog.topologies import parse_topology
from sim.errors import InputError
from sim.hardware import Gpu
from sim.launch.alternatives import alternatives
from sim.launch.capacity import Capacity, capacity
from sim.launch.export import export_layout
from sim.launch.launch import Launch
from sim.noun import Noun
from sim.report import LayoutReport
from sim.run import simulate
from sim.scenario import Scenario
from sim.scenario_parts import default_topology
from sim.strategy import Strategy
from sim.topology import Topology
from sim.workload import Workload

USUAL_BATCH, USUAL_CONTEXT = 32, 8192
MOST_BETTER = 4


class Better(Noun):
    """Another layout of the same GPUs."""

    tag: str
    command: str
    options: str = ""
    tokens: int
    """Of all its caches together."""
    seconds: float
    duplication: float
    why: str


class Explanation(Noun):
    """What an engine will make of a launch."""

    launch: Launch
    gpu: str
    topology: str
    batch: int
    context: int
    capacity: Capacity | None = None
    """``None`` where the layout cannot exist."""
    report: LayoutReport | None = None
    better: tuple[Better, ...] = ()


class _Machine(NamedTuple):
    gpu: Gpu
    topology: Topology


def explain(
    launch: Launch,
    gpu: Gpu,
    topology: str | None = None,
    batch: int | None = None,
    context: int | None = None,
    version: str | None = None,
) -> Explanation:
    """Explain a launch.

    Parameters
    ----------
    batch, context
        Of the decode step whose time is told; over all GPUs together, and tokens in each cache. Unless said, 32
        sequences of 8,192 tokens, or what the launch allows.
    version
        Of the memory policy.

    Raises
    ------
    InputError
        If the machine cannot be built or has too few GPUs.
    """
    s = launch.settings
    machine = _Machine(gpu, _topology(gpu, topology, launch.gpus))
    longest = s.max_length or launch.model.max_context or USUAL_CONTEXT
    batch = batch or min(USUAL_BATCH, s.max_sequences or USUAL_BATCH)
    context = context or min(USUAL_CONTEXT, longest)
    said = {"launch": launch, "gpu": gpu.name, "topology": machine.topology.kind, "batch": batch, "context": context}
    if launch.layout is None:
        return Explanation(**said)
    room = capacity(launch, gpu, version)
    report = simulate(_scenario(launch, machine, launch.layout, batch, context, room.fraction), launch.layout)
    better = _better(launch, machine, batch, context, room, report, version)
    return Explanation(**said, capacity=room, report=report, better=better)


def _topology(gpu: Gpu, wanted: str | None, gpus: int) -> Topology:
    """The machine that is named, or the usual one of the GPU, as often as it is needed."""
    if wanted:
        return parse_topology(wanted)
    usual = parse_topology(default_topology(gpu))
    if gpus <= usual.gpu_count:
        return usual
    nodes = -(-gpus // usual.gpu_count)
    return parse_topology({"kind": "cluster", "nodes": nodes, "node": default_topology(gpu), "nic": "400 Gb/s"})


def _scenario(
    launch: Launch, machine: _Machine, layout: Strategy, batch: int, context: int, fraction: float
) -> Scenario:
    query_tokens = min(1 + launch.settings.draft_tokens, context)
    return Scenario(
        name="launch",
        model=launch.model,
        gpu=machine.gpu,
        topology=machine.topology,
        precision=launch.precision,
        workload=Workload(batch=batch, context=context, query_tokens=query_tokens),
        layouts=(layout,),
        usable_memory=fraction,
        engine=launch.settings.engine,
    )


def _better(
    launch: Launch,
    machine: _Machine,
    batch: int,
    context: int,
    room: Capacity,
    report: LayoutReport,
    version: str | None,
) -> tuple[Better, ...]:
    """Layouts of as many GPUs that hold more tokens or take less time a step, the best of both first."""
    s, weights = launch.settings, launch.precision.weights or "bf16"
    tokens, seconds = max(room.tokens * room.pools, 1), report.step.seconds
    found: list[tuple[float, Better]] = []
    for changed, layout in alternatives(s, launch.model, weights, launch.gpus // s.pp):
        if layout == launch.layout:
            continue
        other = launch.model_copy(update={"settings": changed, "layout": layout})
        try:
            there = capacity(other, machine.gpu, version)
            if not there.fits and room.fits:
                continue
            one = simulate(_scenario(other, machine, layout, batch, context, there.fraction), layout)
            limits = {
                "max_length": s.max_length,
                "memory_fraction": s.memory_fraction,
                "max_sequences": s.max_sequences,
            }
            out = export_layout(layout, launch.model, s.engine, launch.precision, s.model, **limits)
        except InputError:
            continue
        more, faster = there.tokens * there.pools / tokens, seconds / one.step.seconds
        gains = [f"{more:.2f}x the tokens"] * (more > 1.02) + [f"{faster:.2f}x as fast a step"] * (faster > 1.02)
        if gains and (more > 0.98 or faster > 0.98):
            better = Better(
                tag=layout.label,
                command=out.command,
                options=out.options,
                tokens=there.tokens * there.pools,
                seconds=one.step.seconds,
                duplication=one.kv.duplication,
                why=" and ".join(gains),
            )
            found.append((more * faster, better))
    found.sort(key=lambda item: -item[0])
    return tuple(better for _, better in found[:MOST_BETTER])
