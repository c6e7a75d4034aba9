"""Which rows of a measured table a GPU can have measured: none moves or computes more than its data sheet says."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sim.formats import number_format
from sim.hardware import Gpu
from sim.kernels.cost import Device
from sim.kernels.tables import Array, Table

CACHE = 2**28
"""Bytes beyond which no cache of these GPUs matters: above it, traffic has to come from memory."""
MOST_BAD = 0.1
"""A table is not used when more than this part of its rows beats the data sheet."""
MOST_BAD_EXPERTS = 0.2
"""The same for experts: how many of them a row's tokens hit is not in the table but follows from even routing."""
LEAST_REACHED = 0.3
"""A table is not used when no row reaches this part of the data sheet: all sound tables reach half of it."""


class Soundness(NamedTuple):
    """What can be said of a table before anything is fitted to it."""

    possible: Array
    """Which rows do not beat the data sheet."""
    why: str
    """Why the whole table is refused; empty if it is not."""


def device_of(gpu: Gpu, form: str) -> Device:
    """The GPU as a kernel in a format sees it, right after the same kernel."""
    return Device(gpu.matrix_rate(number_format(form).rate), gpu.bandwidth, gpu.multiprocessors, warm=True)


def soundness(table: Table, device: Device) -> Soundness:
    """Compare a table with the data sheet."""
    work = table.work
    moved = work.weight_bytes + work.kv_bytes + work.io_bytes
    compute, memory = work.flops / device.peak, moved / device.bandwidth
    long = moved > CACHE
    impossible = (compute > table.seconds) | ((memory > table.seconds) & long)
    reached = np.maximum(compute, memory) / table.seconds
    why = ""
    most = MOST_BAD_EXPERTS if table.family == "experts" else MOST_BAD
    if long.any() and (impossible & long).sum() > most * long.sum():
        why = f"{(impossible & long).sum()} of {long.sum()} long rows beat the data sheet"
    elif reached.max() < LEAST_REACHED:
        why = f"no row reaches more than {reached.max():.0%} of the data sheet"
    return Soundness(~impossible, why)
