"""Elementwise kernels, and the host's share of a step."""

from __future__ import annotations

from pydantic import Field

from sim.kernels.cost import Cost, Device
from sim.kernels.fit import Fit
from sim.noun import Noun
from sim.program import Work
from sim.shapes import Host


class ElementwiseFit(Fit):
    """Constants of kernels that read and write once."""

    memory: float = Field(gt=0, le=1)


class HostTime(Noun):
    """What an engine does between two steps: scheduling, sampling bookkeeping, launching a graph."""

    step: float = Field(ge=0)
    """Seconds per step."""
    sequence: float = Field(ge=0)
    """Seconds per sequence."""


def elementwise(work: Work, fit: ElementwiseFit, device: Device) -> Cost:
    """A launch and the bytes."""
    memory = (work.kv_bytes + work.io_bytes + work.weight_bytes) / (fit.memory * device.bandwidth)
    return Cost(fit.launch + memory, 0.0, fit.launch, 0.0, memory)


def host(work: Work, fit: HostTime) -> Cost:
    """Nothing on the GPU."""
    assert isinstance(work.shape, Host)
    seconds = fit.step + fit.sequence * work.shape.sequences
    return Cost(seconds, 0.0, seconds, 0.0, 0.0)
