"""From a program to instructions: what each lane runs, sends and waits for, with every duration filled in.

Streams are in order, so consecutive compute operations are joined into one ``Run`` unless a collective needs the
result in between or one of them needs a collective's. A collective is issued as soon as its inputs exist (its place
on the communication stream stays the program's), and a lane waits for it only where the result is read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from sim.cut import Only
from sim.fold import Classes
from sim.kernels import Cost, Kernels
from sim.lane import Lane
from sim.mesh import Mesh
from sim.network.collectives import CollectiveCost
from sim.program import Alias, Chunk, CommunicationOp, ComputeOp, Message, Op, Segment, Work
from sim.workload import Number


class Run(NamedTuple):
    """Compute for ``seconds``."""

    seconds: Number
    ops: tuple[int, ...]


class Issue(NamedTuple):
    """Hand collective ``slot`` (its operation's number) to the communication stream."""

    slot: int


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
    kind: str = ""
    gpus: tuple[int, ...] = ()
    """What a network needs to know where messages share links."""


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
    """A segment prepared for scheduling; operations are numbered without the aliases."""

    ops: tuple[Op, ...]
    needs: tuple[tuple[int, ...], ...]
    """Per operation the operations that make what it reads; negative for a value carried in, as in ``Wait``."""
    exits: tuple[int | None, ...]
    collectives: tuple[int, ...]
    signals: frozenset[int]
    """Compute operations whose result a collective waits for."""
    only: tuple[Only, ...]
    """Coordinates on which each operation runs; empty where all run everywhere."""


def prepare(segment: Segment) -> Pattern:
    """Resolve aliases and find, for each operation, the operations and carried values it waits for."""
    makers: dict[tuple[str, Chunk], tuple[int, ...]] = {}
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
    collectives = tuple(n for n, op in enumerate(ops) if isinstance(op, CommunicationOp))
    signals = frozenset(m for n in collectives for m in needs[n])
    only = tuple(op.only for op in ops)
    return Pattern(tuple(ops), tuple(needs), exits, collectives, signals, only if any(only) else ())


def _last(makers: tuple[int, ...], ops: list[Op]) -> int | None:
    """The collective that completes a value handed on, if a collective does."""
    waits = [m for m in makers if m < 0 or isinstance(ops[m], CommunicationOp)]
    return max(waits) if waits else None


Collective = Callable[[CommunicationOp, int], tuple[CollectiveCost, tuple[int, ...]]]


class _Writer:
    """Writes the instructions of one lane for one segment, in the program's order."""

    def __init__(self, pattern: Pattern, active: list[bool]):
        self.pattern, self.active = pattern, active
        self.instructions: list[Instruction] = []
        self.pending = [n for n in pattern.collectives if active[n]]
        self.done: set[int] = set()
        self.waited: set[int] = set()
        self.joined: list[int] = []
        self.seconds: Number = 0

    def flush(self) -> None:
        """Close the run of compute operations that is being joined."""
        if self.joined:
            self.instructions.append(Run(self.seconds, tuple(self.joined)))
            self.joined, self.seconds = [], 0

    def issue(self) -> None:
        """Issue the collectives whose inputs exist; one that must wait holds back those behind it."""
        while self.pending and self._ready(self.pending[0]):
            self.instructions.append(Issue(self.pending[0]))
            self.done.add(self.pending.pop(0))

    def _ready(self, number: int) -> bool:
        """Whether everything exists that a collective reads."""
        return all(m < 0 or m in self.done or not self.active[m] for m in self.pattern.needs[number])

    def wait(self, number: int) -> None:
        """Wait for what a compute operation reads, as far as collectives make it."""
        for m in self.pattern.needs[number]:
            if m in self.waited or (m >= 0 and (m not in self.pattern.collectives or not self.active[m])):
                continue
            self.flush()
            self.instructions.append(Wait(m))
            self.waited.add(m)

    def compute(self, number: int, seconds: Number) -> None:
        """A compute operation; a collective that waits for it is issued right behind it."""
        self.wait(number)
        self.joined.append(number)
        self.seconds = self.seconds + seconds
        self.done.add(number)
        if number in self.pattern.signals and self.pending and self._ready(self.pending[0]):
            self.flush()
            self.issue()


def track(
    pattern: Pattern,
    lane: Lane,
    rank: int,
    classes: Classes,
    kernels: Kernels,
    collective: Collective,
    mesh: Mesh,
    speed: float = 1.0,
    base: int = 0,
) -> Track:
    """Instructions of one lane for one segment.

    Parameters
    ----------
    lane, rank
        The figures, and the rank whose place on the mesh and on the machine counts.
    collective
        Cost and GPUs of an operation for the group of a rank.
    speed
        Of the rank's GPU, as a fraction of the full one.
    base
        Number of the first lane, where lanes of several replicas run together.
    """
    of = classes.of
    active = [all(mesh.coordinate(rank, a) == at for a, at in only) for only in pattern.only] or [True] * len(
        pattern.ops
    )
    writer = _Writer(pattern, active)
    prices: list[Price] = []
    meetings: dict[int, Rendezvous] = {}
    writer.issue()
    for number, op in enumerate(pattern.ops):
        if not active[number]:
            continue
        if isinstance(op, ComputeOp):
            work = op.work(lane)
            price = kernels.cost(work)
            if speed != 1.0 and work.family != "host":
                price = price.slowed(speed)
            prices.append(Price(op.name, work, price))
            writer.compute(number, price.seconds)
        elif isinstance(op, CommunicationOp):
            cost, gpus = collective(op, rank)
            message = op.message(lane)
            present = tuple(sorted({base + of[r] for r in mesh.group(rank, op.axes)}))
            floor = message.size * cost.floor_seconds_per_byte
            key = (number, present)
            meeting = Rendezvous(key, len(present), cost.seconds(message.size), floor, message, op.kind, gpus)
            meetings[number] = meeting
            prices.append(Price(op.name, meeting=meeting))
    writer.flush()
    writer.issue()
    exits = tuple(None if e is not None and e >= 0 and not active[e] else e for e in pattern.exits)
    return Track(writer.instructions, meetings, exits, prices)
