"""Memory of a rank beside weights and cache: activations by liveness, buffers of the communication libraries.

Activations are the most bytes that are alive at once while the program of the step runs, so a strategy that gathers
tokens pays for what it gathers. Constants are of engines, with their source.
"""

from __future__ import annotations

from sim.lane import Lane
from sim.ops_communication import AllReduce, Dispatch
from sim.program import Alias, Chunk, Program, Segment, Value
from sim.workload import Number, larger

CUSTOM_ALL_REDUCE_BYTES = 8 * 2**20  # vLLM 0.33.0 custom_all_reduce.py: max_size of its registered buffer
LOW_LATENCY_ALIGNMENT = 128  # DeepEP legacy layout, buffer alignment
LOGIT_BYTES = 4  # logits are sampled in fp32


def engine_reserve(capacity: int, usable: float) -> int:
    """Bytes that an engine leaves alone when it uses the fraction ``usable`` of a GPU's memory."""
    return capacity - int(capacity * usable)


RowKind = tuple[tuple[str, ...], Chunk, bool]
Alive = dict[RowKind, int]


def _row_bytes(lane: Lane, value: Value) -> int:
    """Bytes of one token row of a value on this rank."""
    size = LOGIT_BYTES if value.dims[0].role == "vocab" else lane.activation
    for dim in value.dims:
        size *= lane.size(dim)
    return size * (lane.cut.mesh.count(value.stacked) if value.stacked else 1)


def _moments(segment: Segment, lane: Lane) -> list[Alive]:
    """What is alive while each operation runs, as bytes per row of each kind."""
    last: dict[tuple[str, Chunk], int] = {}
    for number, op in enumerate(segment.ops):
        for value in (*op.inputs, *op.outputs):
            last[value.name, value.chunk] = number
    for value in segment.exit:
        last[value.name, value.chunk] = len(segment.ops)
    held: dict[tuple[str, Chunk], tuple[RowKind, int]] = {}
    alive: Alive = {}
    found: list[Alive] = []

    def add(value: Value) -> None:
        kind = (value.tokens, value.chunk, value.per_sequence)
        size = _row_bytes(lane, value)
        held[value.name, value.chunk] = (kind, size)
        alive[kind] = alive.get(kind, 0) + size

    def drop(value: Value) -> None:
        if entry := held.pop((value.name, value.chunk), None):
            alive[entry[0]] -= entry[1]

    for value in segment.entry:
        add(value)
    for number, op in enumerate(segment.ops):
        if isinstance(op, Alias):  # another name for the same bytes
            for value in op.inputs:
                drop(value)
        for value in op.outputs:
            add(value)
        found.append({kind: size for kind, size in alive.items() if size})
        for value in (*op.inputs, *op.outputs):
            if last[value.name, value.chunk] == number:
                drop(value)
    return found


class ActivationProfile:
    """Peak activation bytes of a rank as a function of its rows: the moments that no other moment covers."""

    def __init__(self, program: Program, lane: Lane):
        every = [m for segment in program.segments for m in _moments(segment, lane)]
        kept: list[Alive] = []
        for moment in sorted(every, key=lambda m: -sum(m.values())):
            if not any(all(other.get(k, 0) >= size for k, size in moment.items()) for other in kept):
                kept.append(moment)
        self.moments = tuple(kept)

    def bytes(self, lane: Lane) -> Number:
        """Peak activation bytes at the lane's batch and context."""
        most: Number = 0
        for moment in self.moments:
            total: Number = 0
            for (tokens, chunk, per_sequence), size in moment.items():
                total = total + size * lane.rows_over(tokens, chunk, per_sequence)
            most = larger(most, total)
        return most


def low_latency_buffer(hidden: int, experts: int, tokens: Number) -> Number:
    """Bytes of DeepEP's low-latency buffers: two send and two receive ones of ``experts`` x ``tokens`` messages.

    Spec section 7: a dispatch message is 16 + max(2H, H + H/128·4) bytes, a combine message H/128·4 + 2H.
    """
    scales = hidden // 128 * 4
    message = max(16 + max(2 * hidden, hidden + scales), scales + 2 * hidden)
    total = 4 * experts * tokens * message + 2 * experts * 4
    return (total + LOW_LATENCY_ALIGNMENT) // LOW_LATENCY_ALIGNMENT * LOW_LATENCY_ALIGNMENT


class CommunicationBuffers:
    """Registered buffers of the communication libraries that a program uses."""

    def __init__(self, program: Program):
        ops = [op for segment in program.segments for op in segment.ops]
        self.reduces = any(isinstance(op, AllReduce) for op in ops)
        self.dispatch = next((op for op in ops if isinstance(op, Dispatch)), None)

    def bytes(self, lane: Lane) -> Number:
        """Bytes on one rank."""
        total: Number = CUSTOM_ALL_REDUCE_BYTES if self.reduces else 0
        if op := self.dispatch:
            hidden, tokens = op.inputs[0].dims[0].size, lane.rows(op.inputs[0])
            if op.per_expert:
                slots = lane.cut.dim("experts", op.ffn.experts).size
                return total + low_latency_buffer(hidden, slots, tokens)
            # rank-major receive buffers of both directions (TensorRT-LLM one-sided kernels)
            total = total + lane.cut.mesh.count(op.axes) * tokens * (op.payload(lane) + 2 * hidden)
        return total
