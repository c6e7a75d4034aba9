"""One step of one layout: programs become instructions, the engine runs them, equal layers run once.

Two folds, both exact where they are applied: equal ranks are one lane (``sim.fold``), and a run of equal layers is
stepped until the lanes leave a layer in the same relative state in which they entered it; from there on every
further layer takes the same time, so the rest is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import cached_property, lru_cache
from typing import Literal, NamedTuple

import numpy as np

from sim import engine
from sim.fold import Classes, Questions, classify, questions, unfolded
from sim.handover import GatherSlices, handover
from sim.lane import Lane
from sim.lower import cut_of, lower
from sim.machine import Machine
from sim.model import Model
from sim.network.collectives import CollectiveCost
from sim.network.links import Link
from sim.network.transport import FabricTransport, LinkUse
from sim.placement import Placement
from sim.program import CommunicationOp
from sim.rank_order import Order, placed
from sim.schedule import Pattern, Track, prepare, track
from sim.strategy import Strategy
from sim.totals import LaneTotals, add_compute, add_exposed, add_slowed, tail
from sim.workload import Number, Phase, Sequences

Granularity = Literal["folded", "ranks", "flows"]


class Prepared(NamedTuple):
    """Everything about a layout that no batch or context changes."""

    begin: Pattern
    layers: dict[object, Pattern]
    end: Pattern
    handover: Pattern | None
    """What a stage other than the first begins with."""
    asked: Questions


@lru_cache(maxsize=256)
def prepared(model: Model, strategy: Strategy, phase: Phase, pieces: int) -> Prepared:
    """Type-check and prepare a program; kept, because a sweep asks again and again."""
    program = lower(model, strategy, phase, pieces)
    cut = cut_of(strategy, model)
    between = prepare(handover(cut, program.end.entry)) if strategy.pp > 1 else None
    return Prepared(
        prepare(program.begin),
        {layer: prepare(s) for layer, s in program.layers.items()},
        prepare(program.end),
        between,
        questions(program, cut),
    )


class StagePass(NamedTuple):
    """One pass of one micro-batch over one stage."""

    classes: Classes
    lanes: tuple[LaneTotals, ...]
    events: int
    links: dict[Link, LinkUse] = {}  # noqa: RUF012  never changed
    """What the links carried, at granularity ``flows``."""

    @property
    def critical(self) -> LaneTotals:
        """The lane that ends last; among equals the busiest."""
        return max(self.lanes, key=lambda lane: (lane.seconds, lane.busy))


class StageModel:
    """Runs one stage of a layout on a machine.

    Parameters
    ----------
    placement
        Model, strategy and formats.
    machine
        Kernels and collectives.
    phase, sequences, generated, micro
        The work of the whole replica, and which micro-batch of it is run.
    stage, pieces, order, replica
        Which pipeline stage, the pieces of the attention phase, the order of ranks on GPUs, and which replica.
    """

    def __init__(
        self,
        placement: Placement,
        machine: Machine,
        phase: Phase,
        sequences: Sequences,
        stage: int = 0,
        pieces: int = 1,
        generated: int = 0,
        micro: tuple[int, Number] | None = None,
        order: Order | None = None,
        replica: int = 0,
    ):
        self.placement, self.machine, self.stage = placement, machine, stage
        self.cut = placement.cut
        self.program = prepared(placement.model, placement.strategy, phase, pieces)
        size = self.cut.mesh.size
        place = replica * placement.strategy.pp + stage
        self.gpus = placed(self.cut.mesh, order, place * size)
        self.gpus_before = placed(self.cut.mesh, order, (place - 1) * size) if stage else ()
        self._lanes: dict[int, Lane] = {}
        self._work = (sequences, placement.precision, generated, None, micro)
        self._sweeps = isinstance(sequences.count, np.ndarray)

    def lane(self, rank: int) -> Lane:
        """Figures of one rank.

        In a sweep a group of ranks between the first and the last has at every point as many sequences as one of
        these two, so the first one stands for it: a maximum over all groups is one over first and last.
        """
        if self._sweeps:
            groups, stride = self.cut.sequence_groups, self._sequence_stride
            group = rank // stride % groups
            rank -= group * stride if group < groups - 1 else 0
        if rank not in self._lanes:
            self._lanes[rank] = Lane(rank, self.cut, *self._work)
        return self._lanes[rank]

    @cached_property
    def _sequence_stride(self) -> int:
        """Ranks from one group of sequences to the next."""
        return min((self.cut.mesh.axes[a].stride for a in self.cut.sequence_axes), default=1)

    def _gpus(self, ranks: tuple[int, ...], rooted: bool = False) -> tuple[int, ...]:
        """The GPUs of a group; in the machine's order where no rank of the group is special."""
        gpus = [self.gpus[rank] for rank in ranks]
        return tuple(gpus if rooted else sorted(gpus))

    def price(self, op: CommunicationOp, rank: int) -> tuple[CollectiveCost, tuple[int, ...]]:
        """The cost of a collective for the group of a rank, and the group's GPUs."""
        gpus: tuple[int, ...]
        if op.kind == "send":
            gpus = (self.gpus_before[rank], self.gpus[rank])
        else:
            gpus = self._gpus(self.cut.mesh.group(rank, op.axes), op.kind in ("broadcast", "gather"))
        return self.machine.collectives.cost(op.kind, gpus), gpus

    def classes(self, granularity: Granularity) -> Classes:
        """Lanes to run: one per class of equal ranks, or one per rank."""
        if granularity != "folded":
            return unfolded(self.cut.mesh.size)
        fabric = self.machine.collectives.fabric
        routes = [fabric.group_shape(pair) for pair in zip(self.gpus_before, self.gpus, strict=False)]
        more: list[list[Hashable]] = [[self.machine.speed(gpu) for gpu in self.gpus]] if self.machine.speeds else []
        more += [list(routes)] if routes else []
        asked = self.program.asked
        if self.program.handover:
            axes = [op.axes for op in self.program.handover.ops if isinstance(op, GatherSlices)]
            asked = asked._replace(groups=tuple(dict.fromkeys((*asked.groups, *axes))))
        return classify(asked, self.cut, self.lane, lambda group: fabric.group_shape(self._gpus(group)), more)

    def patterns(self) -> list[tuple[int, Pattern]]:
        """The segments of this stage in order, with how often each repeats."""
        stages = self.placement.stages
        first = self.program.handover if self.stage else self.program.begin
        assert first
        found: list[tuple[int, Pattern]] = [(1, first)]
        found += [(count, self.program.layers[layer]) for count, layer in stages[self.stage]]
        if self.stage == len(stages) - 1:
            found.append((1, self.program.end))
        return found

    def tracks(self, pattern: Pattern, classes: Classes, base: int = 0) -> list[Track]:
        """Instructions of every lane for one segment; lanes are numbered from ``base``."""
        return [
            track(
                pattern,
                self.lane(rank),
                rank,
                classes,
                self.machine.kernels,
                self.price,
                self.cut.mesh,
                self.machine.speed(self.gpus[rank]),
                base,
            )
            for rank in classes.representatives
        ]

    def begin(self, granularity: Granularity, base: int = 0) -> _Begun:
        """Instructions of every lane, with its computing added up already. Lanes are numbered from ``base``."""
        classes = self.classes(granularity)
        known: dict[int, list[Track]] = {}
        blocks = []
        for count, pattern in self.patterns():
            if id(pattern) not in known:
                known[id(pattern)] = self.tracks(pattern, classes, base)
            blocks.append((count, pattern, known[id(pattern)]))
        totals = [LaneTotals() for _ in classes.members]
        for count, _, tracks in blocks:
            for lane, part in zip(totals, tracks, strict=True):
                add_compute(lane, part, count)
        return _Begun(classes, totals, blocks)

    def run(self, granularity: Granularity = "folded", since: float = 0.0) -> StagePass:
        """One pass over the stage that begins ``since`` seconds after the step."""
        if granularity == "flows":
            return run_together([self], since)[0]
        begun = self.begin(granularity)
        events = _run_folded(begun) if granularity == "folded" else _run_ranks([begun])
        return StagePass(begun.classes, tuple(begun.totals), events)


def run_together(models: Sequence[StageModel], since: float = 0.0) -> list[StagePass]:
    """The same stage of several replicas at granularity ``flows``: at the same time, on the same links.

    Parameters
    ----------
    since
        When they begin, in seconds after the step.
    """
    machine = models[0].machine
    begun: list[_Begun] = []
    for model in models:
        begun.append(model.begin("flows", sum(len(one.totals) for one in begun)))
    paces = [
        machine.paces(model.gpus[r], since)
        for model, one in zip(models, begun, strict=True)
        for r in one.classes.representatives
    ]
    made: list[FabricTransport] = []

    def transport(clock: engine.Clock) -> FabricTransport:
        made.append(FabricTransport(machine, clock, since))
        return made[0]

    events = _run_ranks(begun, transport, paces)
    links = made[0].use()
    return [StagePass(one.classes, tuple(one.totals), events, links) for one in begun]


_Blocks = list[tuple[int, Pattern, list[Track]]]


class _Begun(NamedTuple):
    """What the lanes of one stage are to do."""

    classes: Classes
    totals: list[LaneTotals]
    blocks: _Blocks


_START = engine.LaneState(0.0, 0.0, (0.0, 0.0))


def _relative(states: list[engine.LaneState]) -> tuple[float, list[engine.LaneState]]:
    """The earliest time of all streams, and the states counted from it."""
    zero = min(s.compute for s in states)
    shifted = [
        engine.LaneState(
            s.compute - zero, max(s.communication - zero, 0.0), tuple(max(c - zero, 0.0) for c in s.carried)
        )
        for s in states
    ]
    return zero, shifted


def _run_folded(begun: _Begun) -> int:
    """Run segment by segment; a repeated one only until its relative state repeats."""
    _, totals, blocks = begun
    states = [_START] * len(totals)
    now = 0.0
    events = 0
    before: Pattern | None = None
    for count, pattern, tracks in blocks:
        left = count
        while left:
            outcome = engine.run([[t] for t in tracks], states)
            events += outcome.events
            passed, after = _relative(list(outcome.states))
            times = left if left > 1 and _same(after, states, passed) else 1
            for lane, exposed in zip(totals, outcome.exposed, strict=True):
                add_exposed(lane, pattern, exposed, before, 1)
                if times > 1:
                    add_exposed(lane, pattern, exposed, pattern, times - 1)
            now += passed * times
            left -= times
            states, before = after, pattern
    for lane, state in zip(totals, states, strict=True):
        end = max(state.compute, state.communication)
        if end > state.compute:
            tail(lane, end - state.compute)
        lane.seconds = now + end
    return events


def _same(after: list[engine.LaneState], before: list[engine.LaneState], passed: float) -> bool:
    limit = 1e-12 * passed
    return all(
        abs(a - b) <= limit
        for x, y in zip(after, before, strict=True)
        for a, b in zip((x.compute, x.communication, *x.carried), (y.compute, y.communication, *y.carried), strict=True)
    )


def _run_ranks(
    begun: Sequence[_Begun],
    transport: Callable[[engine.Clock], engine.Transport] | None = None,
    paces: Sequence[engine.Paces] = (),
) -> int:
    """Every rank and every layer as events, nothing folded. Replicas have the same segments."""
    patterns = [pattern for count, pattern, _ in begun[0].blocks for _ in range(count)]
    lanes = [
        [tracks[i] for count, _, tracks in one.blocks for _ in range(count)]
        for one in begun
        for i in range(len(one.totals))
    ]
    totals = [lane for one in begun for lane in one.totals]
    outcome = engine.run(lanes, [_START] * len(lanes), None, transport, paces)
    for lane, extra in zip(totals, outcome.slowed, strict=True):
        add_slowed(lane, extra)
    for lane, state, exposed in zip(totals, outcome.states, outcome.exposed, strict=True):
        for (block, slot), wait in exposed.items():
            add_exposed(lane, patterns[block], {(block, slot): wait}, patterns[block - 1] if block else None, 1)
        lane.seconds = max(state.compute, state.communication)
        if lane.seconds > state.compute:
            tail(lane, lane.seconds - state.compute)
    return outcome.events
