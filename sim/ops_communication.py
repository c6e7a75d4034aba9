"""Operations on the communication stream, with the bytes that one rank contributes and sends.

``Message.size`` follows the conventions of ``sim.network.collectives``; ``Message.sent`` counts bytes that leave this
rank under the usual lower bound (ring all-reduce 2(n−1)/n, direct for the rest).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from sim.lane import Lane
from sim.model import MoeFfn
from sim.program import CommunicationOp, Message, Value
from sim.workload import Number

STATISTIC_BYTES = 4  # softmax maximum, sum or log-sum-exp, always fp32

CANDIDATE_BYTES = 4  # score and token number of a candidate of a sparse index, 32 bit each


def _elements(lane: Lane, value: Value) -> Number:
    size = lane.rows(value)
    for dim in value.dims:
        size = size * lane.size(dim)
    return size


@dataclass(frozen=True, slots=True)
class AllReduce(CommunicationOp):
    """Sums a partial value over the group; every rank ends with the total."""

    kind: ClassVar[str] = "all_reduce"

    def message(self, lane: Lane) -> Message:
        """Size: the buffer on each rank."""
        elements, n = _elements(lane, self.inputs[0]), lane.cut.mesh.count(self.axes)
        own = elements // n + (lane.cut.mesh.index(lane.rank, self.axes) < elements % n)
        # the others' parts are sent to be summed, then the own sum to all others: 2(n-1)/n of the buffer
        return Message(elements * lane.activation, (elements - own + (n - 1) * own) * lane.activation)


@dataclass(frozen=True, slots=True)
class ReduceScatter(CommunicationOp):
    """Sums a partial value and leaves each rank one slice."""

    kind: ClassVar[str] = "reduce_scatter"

    def message(self, lane: Lane) -> Message:
        """Size: the full input buffer on each rank; all but the own slice is sent."""
        size = _elements(lane, self.inputs[0]) * lane.activation
        return Message(size, size - _elements(lane, self.outputs[0]) * lane.activation)


@dataclass(frozen=True, slots=True)
class AllGather(CommunicationOp):
    """Collects the slices of the group on every rank."""

    kind: ClassVar[str] = "all_gather"
    element_bytes: int = 0
    """Bytes per element, where they are not activations (token ids)."""

    def message(self, lane: Lane) -> Message:
        """Size: the contribution of each rank."""
        size = _elements(lane, self.inputs[0]) * (self.element_bytes or lane.activation)
        return Message(size, size * (lane.cut.mesh.count(self.axes) - 1))


@dataclass(frozen=True, slots=True)
class AllGatherStatistics(CommunicationOp):
    """Collects the log-sum-exp of every share on every rank of the group."""

    kind: ClassVar[str] = "all_gather"

    def message(self, lane: Lane) -> Message:
        """Size: one fp32 per row and head."""
        value = self.inputs[0]
        size = lane.rows(value) * lane.size(value.dims[0]) * STATISTIC_BYTES
        return Message(size, size * (lane.cut.mesh.count(self.axes) - 1))


@dataclass(frozen=True, slots=True)
class AllGatherCandidates(CommunicationOp):
    """Collects the candidates of every rank's part of a sparse index on every rank of the group."""

    kind: ClassVar[str] = "all_gather"

    def message(self, lane: Lane) -> Message:
        """Size: a 32-bit score and a 32-bit token number per row and candidate."""
        value = self.inputs[0]
        size = lane.rows(value) * value.dims[0].size * value.dims[1].size * CANDIDATE_BYTES
        return Message(size, size * (lane.cut.mesh.count(self.axes) - 1))


def _share_bytes(lane: Lane, value: Value, statistics: int) -> Number:
    """Partial attention outputs (16 bit) with ``statistics`` fp32 numbers per row and head."""
    return lane.rows(value) * lane.size(value.dims[0]) * (value.dims[1].size * 2 + statistics * STATISTIC_BYTES)


@dataclass(frozen=True, slots=True)
class ExchangeShares(CommunicationOp):
    """All-to-all of softmax shares along heads: each rank ends with its heads' shares of all ranks."""

    statistics: int
    """fp32 statistics per row and head: 2 (maximum and sum, TensorRT-LLM Helix) or 1 (log-sum-exp, vLLM DCP)."""
    width: int | None = None
    """Features per head that are priced instead of the real ones (the Helix paper's B x H exchange)."""
    kind: ClassVar[str] = "all_to_all"

    def buffer(self, lane: Lane) -> Number:
        """Bytes of the whole buffer, the rank's own part included."""
        value = self.inputs[0]
        if self.width is None:
            return _share_bytes(lane, value, self.statistics)
        return lane.rows(value) * lane.size(value.dims[0]) * (self.width * 2 + self.statistics * STATISTIC_BYTES)

    def message(self, lane: Lane) -> Message:
        """Size: what leaves for all other ranks together."""
        n = lane.cut.mesh.count(self.axes)
        sent = self.buffer(lane) * (n - 1) // n
        return Message(sent, sent)


@dataclass(frozen=True, slots=True)
class GatherShares(CommunicationOp):
    """Softmax shares of all ranks of the group to its first rank."""

    statistics: int
    kind: ClassVar[str] = "gather"

    def message(self, lane: Lane) -> Message:
        """Size: the contribution of a rank that is not the root."""
        size = _share_bytes(lane, self.inputs[0], self.statistics)
        return Message(size, size if lane.cut.mesh.index(lane.rank, self.axes) else 0)


@dataclass(frozen=True, slots=True)
class Broadcast(CommunicationOp):
    """The first rank's value to all others of the group."""

    kind: ClassVar[str] = "broadcast"

    def message(self, lane: Lane) -> Message:
        """Size: the buffer; the root sends it to each of the others."""
        size = _elements(lane, self.inputs[0]) * lane.activation
        root = lane.cut.mesh.index(lane.rank, self.axes) == 0
        return Message(size, size * (lane.cut.mesh.count(self.axes) - 1) if root else 0)


def distinct_ranks(slots: int, ranks: int, top_k: int) -> float:
    """Expected ranks that a token's ``top_k`` uniform choices touch: EP·(1 − C(E − E/EP, k)/C(E, k)), spec 7."""
    elsewhere = slots - slots // ranks
    return float(ranks * (1 - Fraction(math.comb(elsewhere, top_k), math.comb(slots, top_k))))


@dataclass(frozen=True, slots=True)
class _ExpertExchange(CommunicationOp):
    """Tokens to the ranks of their experts, or back."""

    ffn: MoeFfn
    per_expert: bool
    """One copy per expert (DeepEP low latency), or one per rank that holds any of them."""
    kind: ClassVar[str] = "all_to_all"

    def copies(self, lane: Lane) -> float:
        """Expected copies of a token that leave the rank."""
        ranks = lane.cut.mesh.count(self.axes)
        slots = lane.cut.dim("experts", self.ffn.experts).size
        copies = self.ffn.top_k if self.per_expert else distinct_ranks(slots, ranks, self.ffn.top_k)
        return copies * (ranks - 1) / ranks

    def payload(self, lane: Lane) -> int:
        """Bytes of one copy of a token."""
        raise NotImplementedError

    def tokens(self, lane: Lane) -> Number:
        """Tokens this rank sends out (dispatch) or gets back (combine)."""
        raise NotImplementedError

    def message(self, lane: Lane) -> Message:
        """Size: what one rank sends to all others together."""
        copies = lane.copies(self) if lane.copies else self.tokens(lane) * self.copies(lane)
        sent = copies * self.payload(lane)
        return Message(sent, sent)


@dataclass(frozen=True, slots=True)
class Dispatch(_ExpertExchange):
    """Tokens to the ranks that hold their experts. Ids and routing weights are not counted."""

    kind: ClassVar[str] = "dispatch"

    def tokens(self, lane: Lane) -> Number:
        """Rows of the input."""
        return lane.rows(self.inputs[0])

    def payload(self, lane: Lane) -> int:
        """Hidden state in the dispatch format, scales included."""
        return lane.precision.dispatched.bytes(self.inputs[0].dims[0].size)


@dataclass(frozen=True, slots=True)
class Combine(_ExpertExchange):
    """Expert outputs back to the tokens' ranks, 16 bit."""

    kind: ClassVar[str] = "combine"

    def tokens(self, lane: Lane) -> Number:
        """Rows of the output."""
        return lane.rows(self.outputs[0])

    def payload(self, lane: Lane) -> int:
        """16-bit hidden state."""
        return self.outputs[0].dims[0].size * 2


@dataclass(frozen=True, slots=True)
class Send(CommunicationOp):
    """Hidden state and residual to the next pipeline stage; sliced over ``sliced`` and gathered there (vLLM)."""

    kind: ClassVar[str] = "send"
    sliced: int = 1

    def message(self, lane: Lane) -> Message:
        """Size: bytes of this rank's slices."""
        total: Number = 0
        for value in self.inputs:
            total = total + _elements(lane, value)
        size = total * lane.activation // self.sliced
        return Message(size, size)
