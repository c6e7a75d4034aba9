"""The least time of a run: all kernels at data-sheet peaks, no launch, no host, no communication.

While a request is answered, a closed loop of B requests makes room for B prompts and for as many decode steps as the
request has tokens; so TTFT + OSL x TPOT >= B x prefill + OSL x step, whatever the order.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from sim.hardware import Gpu
from sim.kernels import Cost, Kernels, load_constants
from sim.machine import Machine
from sim.network.collectives import FREE, CollectiveCost, Collectives
from sim.network.constants import load_fabric_constants
from sim.program import Work
from sim.run import machine
from sim.topology import Topology
from sim.validate.step_times import Plan, step_times


class PeakKernels(Kernels):
    """Every operation at its data-sheet floor, but with experts chosen as engines see it."""

    def __init__(self, gpu: Gpu):
        super().__init__(gpu, load_constants(gpu.constants))

    def cost(self, work: Work) -> Cost:
        """The floor alone."""
        floor = super().cost(work).floor
        return Cost(floor, floor, 0.0, 0.0, floor)


class FreeCollectives(Collectives):
    """Communication that takes no time."""

    def cost(self, kind: str, ranks: tuple[int, ...]) -> CollectiveCost:
        """Nothing."""
        return FREE


@lru_cache(maxsize=16)
def peak_machine(gpu: Gpu, topology: Topology) -> Machine:
    """A machine that does everything at its data-sheet peaks."""
    fabric = machine(gpu, topology).collectives.fabric
    return Machine(PeakKernels(gpu), FreeCollectives(fabric, gpu, load_fabric_constants()))


def floors(plans: Iterable[Plan]) -> dict[str, float]:
    """Least TPOT of every run that has a configuration, by name of its row."""
    plans = list(plans)
    times = step_times(plans, lambda item: peak_machine(item.gpu, item.topology))
    found = {}
    for one in plans:
        if one.run.name in times:
            t, osl = times[one.run.name], one.run.lengths[1]
            found[one.run.name] = max(t.step, t.step + (t.batch * t.prefill - one.run.ttft) / osl)
    return found
