"""What prices operations: one kind of GPU on one fabric, under the conditions of a scenario."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from sim.conditions import Conditions, Fault, Traffic
from sim.engines import Engine, load_engine
from sim.errors import Problem, TopologyError
from sim.fabric import Fabric
from sim.hardware import Gpu
from sim.kernels import Kernels, load_constants
from sim.kernels.measured import MeasuredKernels
from sim.network.collectives import Collectives
from sim.network.constants import load_fabric_constants
from sim.network.degrade import degraded
from sim.serving import ServingConstants

Speeds = Mapping[int, float]
"""Speed of slowed GPUs by number, as a fraction of the full one."""


class Change(NamedTuple):
    """From this time on the machine is another one: a fault has come or gone."""

    at: float
    collectives: Collectives
    speeds: Speeds


class Machine(NamedTuple):
    """Kernels and collectives when a step begins, and what happens to them during it."""

    kernels: Kernels
    collectives: Collectives
    speeds: Speeds = {}  # noqa: RUF012  never changed
    changes: tuple[Change, ...] = ()
    """In the order of time."""
    background: tuple[Traffic, ...] = ()
    serving: ServingConstants = ServingConstants()
    """What the engine's scheduler and front end add."""

    def speed(self, gpu: int) -> float:
        """The speed of a GPU when the step begins."""
        return self.speeds.get(gpu, 1.0)

    def paces(self, gpu: int, since: float = 0.0) -> tuple[tuple[float, float], ...]:
        """Later speeds of a GPU over the one it begins with, as (seconds after ``since``, factor) in order."""
        begins = self.speed(gpu)
        return tuple((max(0.0, c.at - since), c.speeds.get(gpu, 1.0) / begins) for c in self.changes)


def assemble(gpu: Gpu, fabric: Fabric, conditions: Conditions, engine: Engine | None = None) -> Machine:
    """Put a machine together, with the constants of an engine: of the one whose kernels run, if none is given.

    Raises
    ------
    TopologyError
        If a fault names what the fabric does not have; the keys are those of the scenario.
    InputError
        If kernels are to be measured ones and there are no tables.
    """
    times = sorted({0.0, *(f.at for f in conditions.faults), *(f.until for f in conditions.faults if f.until)})
    engine = engine or load_engine(conditions.library)
    states = [_state(gpu, fabric, conditions, engine, time) for time in times]
    changes = tuple(Change(time, *state) for time, state in zip(times[1:], states[1:], strict=True))
    fitted = conditions.kernels == "fitted"
    priced = Kernels if fitted else MeasuredKernels
    kernels = priced(gpu, load_constants(gpu.constants), engine.kernels, conditions.library)
    return Machine(kernels, *states[0], changes, conditions.background, engine.serving)


def _state(gpu: Gpu, fabric: Fabric, conditions: Conditions, engine: Engine, time: float) -> tuple[Collectives, Speeds]:
    """Collectives and speeds with the faults that there are at ``time``."""
    active = [(i, f) for i, f in enumerate(conditions.faults) if f.at <= time and (not f.until or time < f.until)]
    broken = _broken(fabric, active)
    speeds: dict[int, float] = {}
    for _, fault in active:
        if fault.gpu is not None:
            speeds[fault.gpu] = speeds.get(fault.gpu, 1.0) * fault.speed
    collectives = Collectives(
        broken,
        gpu,
        load_fabric_constants(),
        conditions.engine,
        conditions.collectives,
        latency=engine.collective_latency,
    )
    return collectives, speeds


def _broken(fabric: Fabric, faults: Iterable[tuple[int, Fault]]) -> Fabric:
    """The fabric with these faults; an error names each wrong one by its place in the scenario."""
    problems: list[Problem] = []
    for i, fault in faults:
        part = fault.node or fault.link
        if not part:
            continue
        try:
            fabric = degraded(fabric, slowed={part: fault.speed}) if fault.speed else degraded(fabric, removed=[part])
        except TopologyError as error:
            where = f"faults.{i}.{'node' if fault.node else 'link'}"
            problems += [Problem(p.message, where) for p in error.problems]
    if problems:
        raise TopologyError(problems)
    return fabric
