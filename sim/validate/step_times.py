"""Step times of measured runs, from the simulator: all runs of one configuration in one sweep.

The answer of ``sim.sweep`` is that of ``sim.run.simulate`` at each point to 1e-9.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from sim.errors import InputError
from sim.lane import Lane
from sim.machine import Machine
from sim.sweep import sweep
from sim.validate.cases import Case, case, constants_of
from sim.validate.runs import Run
from sim.workload import Sequences

RESERVE = 0.1
"""Of the memory, that engines leave alone; SGLang and TensorRT-LLM use about 0.9 of it."""


class Times(NamedTuple):
    """What a prediction is made of. Times in seconds."""

    batch: int
    """Sequences per attention replica that really run."""
    capacity: int
    """Sequences per attention replica that the cache has room for."""
    step: float
    """A decode step at the mean context."""
    prefill: float
    """One prompt on each attention replica."""


def capacity(item: Case, isl: float, osl: float) -> int:
    """Sequences of this length that run beside the weights on one attention replica."""
    length = int(isl + constants_of(item.engine).serving.reserved * osl)
    placement = item.placement
    lane = Lane(0, placement.cut, Sequences.even(placement.cut.sequence_groups, length), item.precision)
    each = placement.kv_bytes(0, lane)
    room = item.gpu.memory_bytes * (1 - RESERVE) - sum(placement.weights(0, 0).values())
    return max(1, int(room / each))


class Plan(NamedTuple):
    """A run with its configuration, or the reason why it has none."""

    run: Run
    case: Case | None
    batch: int = 0
    capacity: int = 0
    why: str = ""


def plan(runs: Iterable[Run]) -> list[Plan]:
    """Configurations and running batches of all runs; no time is computed."""
    found = []
    for run in runs:
        try:
            item = case(run)
        except InputError as error:
            found.append(Plan(run, None, why=str(error)))
            continue
        room = capacity(item, *run.lengths)
        wanted = -(-(run.concurrency or run.batch * run.dp) // run.dp)
        found.append(Plan(run, item, max(1, min(wanted, room)), room))
    return found


def step_times(plans: Iterable[Plan], machine: Callable[[Case], Machine]) -> dict[str, Times]:
    """Times of every run that has a configuration, by name of its row."""
    groups: dict[Case, list[Plan]] = defaultdict(list)
    for one in plans:
        if one.case:
            groups[one.case].append(one)
    found: dict[str, Times] = {}
    for item, members in groups.items():
        groups_of_sequences = item.placement.cut.sequence_groups
        lengths = [p.run.lengths for p in members]
        batch = np.array([p.batch * groups_of_sequences for p in members])
        context = np.array([round(isl + osl / 2) for isl, osl in lengths])
        prompt = np.array([round(isl) for isl, _ in lengths])
        on = machine(item)
        decode = sweep(item.placement, on, batch, context).seconds
        distinct, where = np.unique(prompt, return_inverse=True)
        if "prefill" in item.strategy.phases:
            prefill = sweep(item.placement, on, groups_of_sequences, distinct, phase="prefill").seconds[where]
        else:
            prefill = np.zeros(len(where))
        for one, step, first in zip(members, decode, prefill, strict=True):
            found[one.run.name] = Times(one.batch, one.capacity, float(step), float(first))
    return found
