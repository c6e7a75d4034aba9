"""GEMM: tiles in waves over the multiprocessors, against the bytes of weights and activations.

A product of (m, k) and (k, n) is cut into tiles, and for few tiles also along k. A wave of tiles takes as long as one
tile, whether all multiprocessors have one or not, so time is a staircase in m; the library picks the cheapest of its
tile shapes and splits. Small tiles move more operands per FLOP (``intensity``), a wave costs its prologue (``wave``)
and takes at least a latency per element of k (``depth``); a split adds partial sums to write and read (``partial``).
Below 16 bit, activations are quantised first: a kernel of its own in the tables, fused by engines.
"""

from __future__ import annotations

from pydantic import Field

from sim.kernels.cost import Cost, Device, both, ceil_div, split
from sim.kernels.fit import Fit, resident
from sim.program import Work
from sim.shapes import Gemm
from sim.workload import Number, larger, smaller


class GemmFit(Fit):
    """Constants of the GEMMs of one library in one format."""

    compute: float = Field(gt=0, le=1)
    """Fraction of the peak that a full wave of the largest tiles reaches."""
    memory: float = Field(gt=0, le=1)
    """Fraction of the bandwidth."""
    intensity: float = Field(0.0, ge=0)
    """How much longer a tile takes per 1/128 of (1/rows + 1/columns) beyond that of a 256 x 256 tile."""
    wave: float = Field(0.0, ge=0)
    """Seconds per wave."""
    depth: float = Field(0.0, ge=0)
    """Seconds per element of k in a wave, at least."""
    partial: float = Field(0.0, ge=0)
    """Times that a split's 32-bit partial sums cross the memory bus."""
    tiles: tuple[tuple[int, int], ...] = ((256, 128),)
    splits: tuple[int, ...] = (1,)
    quantise: float = Field(0.0, ge=0)
    """Seconds to launch the quantisation of the activations."""
    quantise_row: float = Field(0.0, ge=0)
    """Seconds per row of the activations."""
    quantise_bytes: float = Field(0.0, ge=0)
    """Times that the activations (16 bit in, 8 bit out) cross the memory bus."""


def multiply(shape: Gemm, fit: GemmFit, device: Device) -> Number:
    """Seconds of the multiplication alone: the cheapest tile and split."""
    m, n, k, count = shape
    sms = device.multiprocessors
    per_element = 2 * sms / (fit.compute * device.peak)
    partial = fit.partial * 4 / device.bandwidth * m * n * count
    best: Number = None
    for rows, columns in fit.tiles:
        tiles = ceil_div(m, rows) * ceil_div(n, columns) * count
        area = rows * columns * (1 + fit.intensity * (128 / rows + 128 / columns - 1))
        for pieces in fit.splits:
            waves = ceil_div(tiles * pieces, sms)
            length = k / pieces
            one = waves * larger(area * per_element * length + fit.wave, fit.depth * length)
            if pieces > 1:
                one = one + (pieces - 1) * partial
            best = one if best is None else smaller(best, one)
    return best


def quantise(shape: Gemm, fit: GemmFit, device: Device) -> Number:
    """Seconds to quantise the activations in a kernel of its own."""
    moved = 3 * fit.quantise_bytes * shape.rows * shape.depth * shape.count / device.bandwidth
    row = fit.quantise_row * shape.rows
    return fit.quantise + (moved * moved + row * row) ** 0.5


def gemm(work: Work, fit: GemmFit, device: Device) -> Cost:
    """A product without the quantisation of its activations."""
    assert isinstance(work.shape, Gemm)
    compute = multiply(work.shape, fit, device)
    moved = work.weight_bytes + work.io_bytes
    hit = resident(moved, fit, device)
    memory = moved / device.bandwidth * ((1 - hit) / fit.memory + hit * fit.cache_time)
    return split(fit.launch, both(compute, memory), compute, memory)
