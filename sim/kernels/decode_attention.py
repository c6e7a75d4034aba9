"""Attention over a cache in decode, grouped-query or over MLA's latent.

A (sequence, KV head) pair is one unit of work. Its cache is read once (``memory``), by as many query heads as share it,
padded to a tile of the matrix unit (``compute``). Besides, three times that no bandwidth shortens: a unit costs its
start and a share per query head (``unit``, ``head``), spread over the multiprocessors; a long cache read by few units
is a chain of dependent blocks (``token`` seconds each), cut into pieces as far as multiprocessors are idle and as
merging a piece (``merge``) is worth it; and the memory system needs some time to reach its rate (``ramp`` seconds,
two thirds of them at ``ramp_bytes`` of traffic).
"""

from __future__ import annotations

from math import e

from pydantic import Field

from sim.kernels.cost import Cost, Device, both, ceil_div, split
from sim.kernels.fit import Fit, resident
from sim.program import Work
from sim.shapes import DecodeAttention, Shape
from sim.workload import Number, larger, smaller


class DecodeFit(Fit):
    """Constants of decode attention."""

    compute: float = Field(gt=0, le=1)
    memory: float = Field(gt=0, le=1)
    tile: int = Field(8, ge=1)
    """Query heads are padded to a multiple of this."""
    unit: float = Field(0.0, ge=0)
    """Seconds of a multiprocessor per (sequence, KV head)."""
    head: float = Field(0.0, ge=0)
    """Seconds of a multiprocessor per (sequence, query head)."""
    token: float = Field(0.0, ge=0)
    """Seconds per cached token in a chain."""
    merge: float = Field(1.0, gt=0)
    """Seconds per piece that a chain is cut into."""
    ramp: float = Field(0.0, ge=0)
    ramp_bytes: float = Field(1.0, gt=0)
    shared: bool | None = None
    """Only for KV heads that several query heads share (a matrix kernel), or only for those that none do (a vector
    kernel)."""

    def applies(self, shape: Shape) -> bool:
        """By whether query heads share a KV head."""
        assert isinstance(shape, DecodeAttention)
        return self.shared in (None, bool(shape.query_heads > shape.kv_heads))


HEADS_OF_A_BLOCK = 64  # rows of the widest matrix instruction that one thread block issues for queries


def chain(units: Number, length: Number, fit: DecodeFit, device: Device) -> Number:
    """Seconds of the longest chain of dependent blocks, cut into the best number of pieces."""
    spare = larger(device.multiprocessors / larger(units, 1e-9), 1)
    pieces = smaller(larger((fit.token * length / fit.merge) ** 0.5, 1), spare)
    turns = larger(units / device.multiprocessors, 1)
    return fit.token * length / pieces * turns + fit.merge * (pieces - 1)


def decode_attention(work: Work, fit: DecodeFit, device: Device) -> Cost:
    """Attention of a few new tokens per sequence."""
    shape = work.shape
    assert isinstance(shape, DecodeAttention)
    units = shape.sequences * shape.kv_heads
    heads = shape.query_heads * shape.queries / shape.kv_heads
    moved = work.kv_bytes + work.io_bytes
    hit = resident(moved, fit, device)
    memory = moved / device.bandwidth * ((1 - hit) / fit.memory + hit * fit.cache_time)
    padded = ceil_div(heads, fit.tile) * fit.tile / heads
    compute = work.flops * padded / (fit.compute * device.peak)
    roofline = both(compute, memory + fit.ramp * (1 - e ** (-moved / fit.ramp_bytes)))
    blocks = units * ceil_div(heads, HEADS_OF_A_BLOCK)
    latency = both(
        (fit.unit + fit.head * heads) * units / device.multiprocessors,
        chain(blocks, shape.tokens / larger(shape.sequences, 1e-9), fit, device),
    )
    return split(fit.launch + both(roofline, latency) - roofline, roofline, compute, memory)
