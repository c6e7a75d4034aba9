"""What passes between pipeline stages: the hidden state and the residual (vLLM 0.33.0).

Where several ranks hold the same rows, each sends one slice to its peer and the receivers gather them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sim.cut import Cut
from sim.lane import Lane
from sim.ops_communication import AllGather, Send
from sim.program import CommunicationOp, Message, Segment, Value
from sim.workload import Number


@dataclass(frozen=True, slots=True)
class GatherSlices(CommunicationOp):
    """The receivers of one stage put the slices of both values together."""

    kind: ClassVar[str] = AllGather.kind

    def message(self, lane: Lane) -> Message:
        """Size: one slice of both values."""
        n = lane.cut.mesh.count(self.axes)
        total: Number = 0
        for value in self.inputs:
            total = total + lane.rows(value) * value.dims[0].size * lane.activation
        size = total // n
        return Message(size, size * (n - 1))


def handover(cut: Cut, carried: tuple[Value, ...]) -> Segment:
    """The segment that a stage starts with when it is not the first."""
    value = carried[0]
    fixed = {axis for axis, _ in value.only}
    factoring = {a.factoring for a in cut.mesh.axes.values() if a.name in value.tokens} or {0}
    alike = tuple(
        a.name
        for a in cut.mesh.axes.values()
        if a.factoring in factoring and a.size > 1 and a.name not in value.tokens and a.name not in fixed
    )
    copies = cut.mesh.count(alike)
    sliced = copies if value.dims[0].size % copies == 0 else 1
    axes = alike if sliced > 1 else ()
    received = tuple(v._replace(name=f"{v.name}.received", dims=(v.dims[0]._replace(axes=axes),)) for v in carried)
    send = Send("pipeline.send", carried, received, (), sliced)
    if sliced == 1:
        return Segment((send,), carried, received)
    gathered = tuple(v._replace(name=f"{v.name}.whole") for v in carried)
    gather = GatherSlices("pipeline.all_gather", received, gathered, cut.mesh.real(alike))
    return Segment((send, gather), carried, gathered)
