"""From a program to instructions: what each lane runs, sends and waits for, with every duration filled in.

Streams are in order, so consecutive compute operations are joined into one ``Run`` unless a collective needs the
result in between or one of them needs a collective's. A collective is issued as soon as its inputs exist (its place
on the communication stream stays the program's), and a lane waits for it only where the result is read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from sim.fold import Classes
from sim.kernels import Cost, Kernels
from sim.lane import Lane
from sim.mesh import Mesh
from sim.program import Alias, CommunicationOp, ComputeOp, Message, Op, Segment, Work
from sim.workload import Number


class Run(NamedTuple):
    """Compute for ``seconds``."""

    seconds: Number
    ops: tuple[int, ...]


class Issue(NamedTuple):
    """Hand collective ``slot`` to the communication stream."""

    slot: int
    op: int


class Wait(NamedTuple):
    """Wait until collective ``slot`` is done; a negative slot is a value carried in, number −1 − slot."""

    slot: int


Instruction = Run | Issue | Wait


class Rendezvous(NamedTuple):
    """One lane's view of one collective: who meets, and how long it takes once all are there."""

    key: tuple[int, tuple[int, ...]]
    members: int
    seconds: Number
    floor: Number
    message: Message


class Price(NamedTuple):
    """One operation on one lane, for the breakdown: a compute cost with its work, or a rendezvous."""

    name: str
    work: Work | None = None
    cost: Cost | None = None
    meeting: Rendezvous | None = None


@dataclass(slots=True)
class Track:
    """What one lane does in one segment."""

    instructions: list[Instruction] = field(default_factory=list)
    meetings: dict[int, Rendezvous] = field(default_factory=dict)
    exits: tuple[int | None, ...] = ()
    """Per value handed on: the collective that makes it, or None if computing does; negative as in ``Wait``."""
    prices: list[Price] = field(default_factory=list)


class Pattern(NamedTuple):
    """A segment prepared for scheduling: for every operation, which operations make what it waits for."""

    ops: tuple[Op, ...]
    needs: tuple[tuple[int, ...], ...]
    exits: tuple[int | None, ...]


def prepare(segment: Segment) -> Pattern:
    """Resolve aliases and find, for each operation, the operations and carried values it waits for."""
    makers: dict[tuple[str, object], tuple[int, ...]] = {}
    for number, value in enumerate(segment.entry):
        makers[value.name, value.chunk] = (-1 - number,)
    ops: list[Op] = []
    needs: list[tuple[int, ...]] = []
    for op in segment.ops:
        wanted = tuple(dict.fromkeys(m for v in op.inputs for m in makers[v.name, v.chunk]))
        if isinstance(op, Alias):
            made = wanted
        else:
            made = (len(ops),)
            ops.append(op)
            needs.append(wanted)
        for v in op.outputs:
            makers[v.name, v.chunk] = made
    exits = tuple(_last(makers[v.name, v.chunk], ops) for v in segment.exit)
    return Pattern(tuple(ops), tuple(needs), exits)


def _last(makers: tuple[int, ...], ops: list[Op]) -> int | None:
    """The collective that completes a value handed on, if a collective does."""
    waits = [m for m in makers if m < 0 or isinstance(ops[m], CommunicationOp)]
    return max(waits) if waits else None


Collective = Callable[[CommunicationOp, int], tuple[float, float, float]]


def track(
    pattern: Pattern, lane: Lane, classes: Classes, kernels: Kernels, collective: Collective, mesh: Mesh
) -> Track:
    """Instructions of one lane for one segment.

    Parameters
    ----------
    collective
        (alpha, seconds per message byte, floor seconds per message byte) of an operation for the group of a rank.
    """
    found = Track()
    rank = lane.rank
    ops, needs = pattern.ops, pattern.needs
    active = [all(mesh.coordinate(rank, axis) == at for axis, at in op.only) for op in ops]
    signals = {m for op, wanted in zip(ops, needs, strict=True) if isinstance(op, CommunicationOp) for m in wanted}
    seconds: Number = 0
    joined: list[int] = []
    waited: set[int] = set()
    pending = [n for n, op in enumerate(ops) if active[n] and isinstance(op, CommunicationOp)]
    done: set[int] = set()

    def flush() -> None:
        nonlocal seconds
        if joined:
            found.instructions.append(Run(seconds, tuple(joined)))
            joined.clear()
            seconds = 0

    def issue() -> None:
        """Issue collectives whose inputs exist, in the program's order."""
        while pending and all(m < 0 or m in done or not active[m] for m in needs[pending[0]]):
            found.instructions.append(Issue(pending[0], pending[0]))
            done.add(pending.pop(0))

    issue()
    for number, op in enumerate(ops):
        if not active[number] or not isinstance(op, ComputeOp):
            continue
        for m in needs[number]:
            if m not in waited and (m < 0 or (active[m] and isinstance(ops[m], CommunicationOp))):
                flush()
                found.instructions.append(Wait(m))
                waited.add(m)
        work = op.work(lane)
        cost = kernels.cost(work)
        found.prices.append(Price(op.name, work, cost))
        seconds = seconds + cost.seconds
        joined.append(number)
        done.add(number)
        if number in signals:
            flush()
            issue()
    flush()
    issue()
    for number in sorted(n for n, op in enumerate(ops) if active[n] and isinstance(op, CommunicationOp)):
        op = ops[number]
        assert isinstance(op, CommunicationOp)
        alpha, per_byte, floor = collective(op, rank)
        message = op.message(lane)
        group = mesh.group(rank, op.axes)
        present = tuple(sorted({classes.of[r] for r in group}))
        meeting = Rendezvous(
            (number, present), len(present), alpha + message.size * per_byte, message.size * floor, message
        )
        found.meetings[number] = meeting
        found.prices.append(Price(op.name, meeting=meeting))
    found.exits = tuple(None if e is not None and e >= 0 and not active[e] else e for e in pattern.exits)
    return found
