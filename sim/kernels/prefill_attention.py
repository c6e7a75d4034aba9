"""Causal attention of a prompt: query tiles over blocks of keys, and the traffic of queries, keys and values.

A tile of query rows of one head meets the blocks of keys that it may see. A block costs its FLOPs (``compute``) and
the exponentials of its scores (``score``), which no matrix unit does; a tile costs its start (``tile_start``). Tiles
are spread over the multiprocessors, and one of the longest ends last (``tail``, as Graham's bound for list scheduling
has it). Before it, queries and keys are rotated and written to the cache: ``passes`` over their bytes, which nothing
overlaps. Padding is what makes short prompts slow: a prompt of 16 tokens pays for a whole tile.
"""

from __future__ import annotations

from pydantic import Field

from sim.kernels.cost import Cost, Device, ceil_div, split
from sim.kernels.fit import Fit, resident
from sim.program import Work
from sim.shapes import PrefillAttention
from sim.workload import larger


class PrefillFit(Fit):
    """Constants of prefill attention."""

    compute: float = Field(gt=0, le=1)
    score: float = Field(0.0, ge=0)
    """Seconds of a multiprocessor per (query, key) pair of a head."""
    tile: int = Field(128, ge=1)
    """Query rows of a tile."""
    block: int = Field(128, ge=1)
    """Keys of a block."""
    packed: bool = False
    """Whether the query heads that share a KV head fill a tile together."""
    tile_start: float = Field(0.0, ge=0)
    """Seconds of a multiprocessor per tile."""
    tail: float = Field(0.0, ge=0)
    """Fraction of the longest tile that is waited for at the end."""
    passes: float = Field(1.0, ge=0)
    """Times that queries, keys and values cross the memory bus."""


def prefill_attention(work: Work, fit: PrefillFit, device: Device) -> Cost:
    """Attention of many new tokens per sequence."""
    shape = work.shape
    assert isinstance(shape, PrefillAttention)
    heads = shape.kv_heads if fit.packed else shape.query_heads
    together = shape.query_heads / shape.kv_heads if fit.packed else 1
    sequences = larger(shape.sequences, 1e-9)
    covered = fit.tile / together  # tokens that a tile spans
    tiles = ceil_div(shape.rows / sequences * together, fit.tile)
    # beyond the pairs that count: the upper half of the tile on the diagonal, and the block that is begun
    idle = fit.tile * larger(covered, fit.block) / 2
    pair = 4 * shape.width * device.multiprocessors / (fit.compute * device.peak) + fit.score
    busy = heads * sequences * tiles * (fit.tile_start + idle * pair) + shape.query_heads * shape.pairs * pair
    longest = fit.tile_start + ceil_div(shape.span, fit.block) * fit.block * fit.tile * pair
    compute = busy / device.multiprocessors + fit.tail * longest
    moved = work.kv_bytes + work.io_bytes
    hit = resident(moved, fit, device)
    memory = moved / device.bandwidth * ((1 - hit) * fit.passes + hit * fit.cache_time)
    return split(fit.launch, compute + memory, compute, memory)
