"""Routed experts: a grouped GEMM whose groups are the experts that are hit.

The weights of every expert that is hit are read once. Rows are multiplied in tiles of an expert's own rows: with tiles
of t rows the padding is about t per expert, and a tile of t rows multiplies at t/(t + ``half``) of the rate; the best t
gives (sqrt(rows) + sqrt(half x experts))^2 rows at full rate. On top come the activations between permutation, the two
products and the sum (``passes``), a start per expert, and the sorting of all (token, choice) pairs. Skewed routing
needs no constant of its own: it changes how many experts are hit and how many rows the fullest rank has.
"""

from __future__ import annotations

from pydantic import Field

from sim.kernels.cost import Cost, Device, both, split
from sim.kernels.fit import Fit, resident
from sim.program import Work
from sim.shapes import GroupedGemm


class ExpertsFit(Fit):
    """Constants of the module of routed experts."""

    compute: float = Field(gt=0, le=1)
    memory: float = Field(gt=0, le=1)
    half: float = Field(0.0, ge=0)
    """Rows of a tile at which it reaches half of the rate."""
    passes: float = Field(1.0, ge=0)
    """Times that activations cross the memory bus."""
    expert: float = Field(0.0, ge=0)
    """Seconds per expert that is hit."""
    slot: float = Field(0.0, ge=0)
    """Seconds per (token, choice) pair that is sorted."""


def experts(work: Work, fit: ExpertsFit, device: Device) -> Cost:
    """Both products of the experts, with everything between them."""
    shape = work.shape
    assert isinstance(shape, GroupedGemm)
    hit = resident(work.weight_bytes, fit, device)
    weights = work.weight_bytes / device.bandwidth * ((1 - hit) / fit.memory + hit * fit.cache_time)
    padded = fit.half * shape.hit
    per_row = work.flops / (fit.compute * device.peak)  # of all rows; the padding is relative to them
    rows = shape.rows + 1e-12
    compute = per_row * (1 + (padded / rows) ** 0.5) ** 2
    activations = fit.passes * work.io_bytes / device.bandwidth
    fixed = fit.launch + fit.expert * shape.hit + fit.slot * shape.slots
    return split(fixed, both(compute, weights) + activations, compute, weights + activations)
