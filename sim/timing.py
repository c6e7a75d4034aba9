"""How long a step of one layout takes: every way to run it that the layout leaves open, and the fastest of them."""

from __future__ import annotations

from collections.abc import Hashable
from functools import cached_property
from typing import NamedTuple

from sim import engine
from sim.errors import FloorError, ProgramError
from sim.machine import Machine
from sim.placement import Placement
from sim.rank_order import Order
from sim.report import StepReport
from sim.step import Granularity, StageModel, StagePass, run_together
from sim.uncertainty import Share, interval, shares
from sim.workload import Sequences, Workload

WAITING = "waiting for slower ranks"
BUBBLE = "pipeline bubble"


class Choice(NamedTuple):
    """One way to run a layout."""

    seconds: float
    pieces: int
    order: Order | None
    passes: list[StagePass]


class Timing:
    """Seconds of a step of one layout on one machine; parts are computed when they are asked for.

    Parameters
    ----------
    placement
        Model, strategy and formats. The layout must have passed ``Strategy.check``.
    machine
        Kernels and collectives.
    workload
        Batch and context of the whole layout.
    usable_memory
        Fraction of a GPU's capacity that the engine may use.
    granularity
        ``folded``, ``ranks`` or ``flows``.
    sequences
        One step of the workload; left out, its last (most have only one).
    """

    def __init__(
        self,
        placement: Placement,
        machine: Machine,
        workload: Workload,
        usable_memory: float = 0.9,
        granularity: Granularity = "folded",
        sequences: Sequences | None = None,
    ):
        self.placement, self.machine, self.workload = placement, machine, workload
        self.strategy = placement.strategy
        self.usable_memory, self.granularity = usable_memory, granularity
        self.sequences = sequences or workload.sequences
        self.replica = self.sequences.share(0, self.strategy.replicas)
        self.gpus = placement.cut.mesh.size * self.strategy.pp * self.strategy.replicas

    @property
    def micro_batches(self) -> int:
        """Batches in flight in the pipeline: one per stage, if a group has as many sequences."""
        group = -(-int(self.replica.count) // self.placement.cut.sequence_groups)
        return max(1, min(self.strategy.pp, group))

    def stage_model(
        self, stage: int, micro: int | None, pieces: int, order: Order | None, replica: int = 0
    ) -> StageModel:
        """One stage of a replica with one of its micro-batches, or with all its sequences at once."""
        w = self.workload
        which = None if micro is None or self.micro_batches == 1 else (micro, self.micro_batches)
        # where replicas do not run together, each stands for all that sit alike, so it has the largest share
        share = self.sequences.share(replica, self.strategy.replicas) if self.granularity == "flows" else self.replica
        work = (w.phase, share)
        return StageModel(self.placement, self.machine, *work, stage, pieces, w.generated, which, order, replica)

    def _places(self, order: Order | None) -> list[int]:
        """One replica of each way that replicas sit on the machine."""
        machine, size = self.machine, self.gpus // self.strategy.replicas
        found: dict[Hashable, int] = {}
        for replica in range(self.strategy.replicas):
            first = replica * size
            gpus = tuple(int(g) for g in order[first : first + size]) if order and isinstance(order[0], int) else ()
            gpus = gpus or tuple(range(first, first + size))
            speeds = tuple(machine.speed(gpu) for gpu in gpus) if machine.speeds else ()
            found.setdefault((machine.collectives.fabric.group_shape(gpus), speeds), replica)
        return list(found.values())

    def _runs(self, micro: int, pieces: int, order: Order | None) -> list[list[StagePass]]:
        """The passes over all stages: of one replica of each place, or of all of them together."""
        stages = range(self.strategy.pp)
        if self.granularity != "flows":
            places = self._places(order) if self.strategy.replicas > 1 else [0]
            return [
                [self.stage_model(s, micro, pieces, order, place).run(self.granularity) for s in stages]
                for place in places
            ]
        found: list[list[StagePass]] = [[] for _ in range(self.strategy.replicas)]
        for s in stages:
            since = max(sum(one.critical.seconds for one in run) for run in found)
            models = [self.stage_model(s, micro, pieces, order, replica) for replica in range(len(found))]
            for run, one in zip(found, run_together(models, since), strict=True):
                run.append(one)
        return found

    def _passes(self, pieces: int, order: Order | None) -> tuple[list[StagePass], float]:
        """Passes of the slowest replica and micro-batch, and seconds between two steps.

        Sequences of one length: every micro-batch counts as the fullest one. Otherwise each is run.
        """
        batches = range(self.micro_batches) if len(self.replica.groups) > 1 else [0]
        of_micro = [self._runs(m, pieces, order) for m in batches]
        found = [self._period(list(runs)) for runs in zip(*of_micro, strict=True)]
        return max(found, key=lambda one: one[1])

    def _period(self, runs: list[list[StagePass]]) -> tuple[list[StagePass], float]:
        """The slowest micro-batch of one replica, and seconds between two steps."""
        seconds = [[p.critical.seconds for p in run] for run in runs]
        slowest = max(range(len(runs)), key=lambda m: sum(seconds[m]))
        if len(seconds) == 1 and self.granularity == "folded":
            return runs[0], max(sum(seconds[0]), self.micro_batches * max(seconds[0]))
        if len(seconds) == 1:
            seconds *= self.micro_batches
        return runs[slowest], engine.pipeline_period(seconds)

    @cached_property
    def choices(self) -> list[Choice]:
        """What the layout leaves open, each run once: the order of ranks on GPUs, and the pieces of the batch."""
        local = -(-self.replica.count // (self.micro_batches * self.placement.cut.sequence_groups))
        found = []
        for order in self.strategy.orders(self.placement.model):
            for pieces in self.strategy.pieces(local) or (1,):
                if pieces < 1:
                    raise ProgramError(f"{self.strategy.label}: pieces() offers {pieces}; it must offer 1 or more")
                passes, seconds = self._passes(pieces, order)
                found.append(Choice(seconds, pieces, order, passes))
        return found

    @cached_property
    def best(self) -> Choice:
        """The fastest choice; among equals the first."""
        return min(self.choices, key=lambda choice: (choice.seconds, choice.pieces))

    @cached_property
    def shares(self) -> dict[str, Share]:
        """Seconds of the step by the fit that they come from."""
        lanes = [one.critical for one in self.best.passes]
        return shares(lanes, self.machine.kernels, self.machine.collectives, self.best.seconds)

    def step(self) -> StepReport:
        """Seconds of a step and what they are made of, for the critical rank of each stage.

        Raises
        ------
        FloorError
            If the result is faster than data-sheet figures allow.
        """
        passes, seconds = self.best.passes, self.best.seconds
        lanes = [p.critical for p in passes]
        floors = [max(lane.floor for lane in p.lanes) for p in passes]
        floor = max(sum(floors), self.micro_batches * max(floors)) if len(floors) > 1 else floors[0]
        if not (0 < seconds < float("inf")):
            raise FloorError(f"{self.strategy.label}: a step of {seconds} s; is a peak or a bandwidth out of range?")
        if seconds < floor * (1 - 1e-9):
            raise FloorError(
                f"{self.strategy.label}: a step of {seconds:.6g} s is below its own floor of {floor:.6g} s; "
                "this is a bug in the simulator, please report it with the scenario"
            )
        breakdown: dict[str, float] = {}
        causes: dict[str, float] = {}
        for lane in lanes:
            for total, part in ((breakdown, lane.operations), (causes, lane.causes)):
                for name, value in part.items():
                    total[name] = total.get(name, 0.0) + value
        idle = sum(lane.idle for lane in lanes)
        bubble = seconds - sum(lane.seconds for lane in lanes)
        for name, value in ((WAITING, idle), (BUBBLE, bubble)):
            if value > 1e-9 * seconds:
                breakdown[name] = causes[name] = value
        busy = sum(lane.busy for lane in lanes)
        exposed = max(0.0, sum(lane.seconds for lane in lanes) - busy - idle)
        cause, share = max(causes.items(), key=lambda item: item[1], default=("nothing", 0.0))
        low, high = interval(self.shares, self.machine.kernels.engine.residual)
        return StepReport(
            seconds=seconds,
            low_seconds=max(low, floor),
            high_seconds=high,
            floor_seconds=floor,
            breakdown=_falling(breakdown),
            causes=_falling(causes),
            exposed_communication_seconds=exposed,
            bottleneck=f"{cause} ({100 * share / seconds:.0f} %)" if seconds else cause,
        )


def _falling(parts: dict[str, float]) -> dict[str, float]:
    """Parts of a step, largest first, without those that take no time."""
    return {name: value for name, value in sorted(parts.items(), key=lambda item: -item[1]) if value > 0}
