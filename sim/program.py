"""A program: the operations that every rank of a stage runs in one step, over typed values.

A ``Value`` says what a rank holds of it: over which axes its tokens and feature dimensions are split, and over
which axes it is still *partial*, because a sum is owed (``partial``), because it is one share of a softmax
(``shares``), or because such shares lie side by side and wait to be merged (``stacked``). Only collectives, merge
and rescale remove partiality; every other operation refuses it, so most wrong layouts fail before any number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from sim.cut import EVERYWHERE, Dim, Only
from sim.model import Layer
from sim.shapes import FAMILIES, Shape
from sim.workload import Number

if TYPE_CHECKING:
    from sim.lane import Lane

Chunk = tuple[tuple[int, int], ...]
DECODING, PROMPTS = (0, 0), (1, 0)
"""The two parts of a mixed step, as pieces of a batch (see ``Sequences.share``)."""
COMPUTE, COMMUNICATION = "compute", "communication"


class Value(NamedTuple):
    """What a rank holds of one intermediate result."""

    name: str
    tokens: tuple[str, ...]
    dims: tuple[Dim, ...]
    partial: tuple[str, ...] = ()
    shares: tuple[str, ...] = ()
    stacked: tuple[str, ...] = ()
    chunk: Chunk = ()
    """Which part of the batch, as (index, of) splits applied in turn."""
    only: Only = EVERYWHERE
    """Coordinates on which it exists."""
    per_sequence: bool = False
    """One row per sequence and not one per token (the rows that the LM head sees in prefill)."""

    @property
    def whole(self) -> bool:
        """Whether nothing is owed."""
        return not (self.partial or self.shares or self.stacked)


class Work(NamedTuple):
    """What one compute operation asks of one GPU. FLOPs and bytes are per rank."""

    shape: Shape
    """What it computes; says which kernel model prices it."""
    flops: Number = 0
    format: str = "bf16"
    """Number format of its weights, or of the cache that it reads."""
    weight_bytes: Number = 0
    kv_bytes: Number = 0
    io_bytes: Number = 0
    other: Work | None = None
    """The same result from another kind of kernel; engines run whichever is faster."""

    @property
    def family(self) -> str:
        """Name of the kernel model."""
        return FAMILIES[type(self.shape)]


class Message(NamedTuple):
    """What one rank contributes to one collective; ``sim.network.collectives`` says what ``size`` means by kind."""

    size: Number
    sent: Number
    """Bytes this rank really sends under the algorithm's minimum (ring or direct)."""


@dataclass(frozen=True, slots=True)
class Op:
    """One operation: what it reads, what it makes, and where it runs."""

    name: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    stream: ClassVar[str] = COMPUTE

    @property
    def only(self) -> Only:
        """Coordinates on which it runs: where everything that it reads and makes is."""
        return max((v.only for v in (*self.inputs, *self.outputs)), key=len)


@dataclass(frozen=True, slots=True)
class Alias(Op):
    """Another name for what a rank holds already: pieces of a batch, or a slice of it. Costs nothing."""


@dataclass(frozen=True, slots=True)
class ComputeOp(Op):
    """An operation on the rank's compute stream."""

    def work(self, lane: Lane) -> Work:
        """FLOPs and bytes on one rank."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class CommunicationOp(Op):
    """An operation on the rank's communication stream: a rendezvous of the group over ``axes``."""

    axes: tuple[str, ...]
    kind: ClassVar[str]
    stream: ClassVar[str] = COMMUNICATION

    @property
    def only(self) -> Only:
        """Coordinates on which it runs: a rooted collective takes part where its input or its output is."""
        return min(self.inputs[0].only, self.outputs[0].only, key=len)

    def message(self, lane: Lane) -> Message:
        """Bytes of one rank."""
        raise NotImplementedError


class Segment(NamedTuple):
    """A list of operations with the values it takes in and hands on."""

    ops: tuple[Op, ...]
    entry: tuple[Value, ...]
    exit: tuple[Value, ...]


@dataclass(frozen=True)
class Program:
    """One step: what comes before the layers, each kind of layer once, and what comes after."""

    begin: Segment
    layers: dict[Layer, Segment]
    end: Segment

    @property
    def segments(self) -> tuple[Segment, ...]:
        """All segments, each once."""
        return (self.begin, *self.layers.values(), self.end)
