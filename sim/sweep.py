"""Many points of one layout at once: batch, context and query tokens as arrays, everything else fixed.

The program, the placement and the order of events do not depend on these three, so one pass of the recurrence over
arrays prices all points (``sim.recurrence`` gives the engine's answer to 1e-9). Ranks are folded when they are equal
at every point.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from sim import recurrence
from sim.errors import InputError
from sim.fold import Classes
from sim.lane import Lane
from sim.machine import Machine
from sim.placement import Placement
from sim.rank_order import Order
from sim.recurrence import State
from sim.schedule import Track
from sim.step import StageModel
from sim.workload import Number, Phase, Sequences, larger

Array = np.ndarray[Any, np.dtype[Any]]
MOST_BYTES = 2.0**62


class Points(NamedTuple):
    """One entry per point in every array."""

    batch: Array
    context: Array
    query_tokens: Array
    seconds: Array
    """Of one step."""
    kv_bytes: Array
    """On the rank that holds most."""


def sweep(
    placement: Placement,
    machine: Machine,
    batch: Sequence[int] | Array | int,
    context: Sequence[int] | Array | int,
    query_tokens: Sequence[int] | Array | int = 1,
    phase: Phase = "decode",
    cached: Sequence[int] | Array | int = 0,
) -> Points:
    """Step time and KV bytes of one layout at many points.

    Parameters
    ----------
    batch, context, query_tokens
        Arrays of one length, or single numbers: sequences on the whole layout, tokens in each cache when it is
        attended, new tokens per sequence in decode.
    cached
        In prefill: tokens of each context that were there before.

    Raises
    ------
    InputError
        If lengths differ, or a number is below 1, or a context is shorter than its query tokens or than its cached
        ones.
    """
    try:
        given = [np.atleast_1d(np.asarray(x)) for x in (batch, context, query_tokens, cached)]
        if any(x.dtype.kind not in "iuf" or not np.isfinite(x).all() for x in given):
            raise ValueError("not a number")
        whole = [x.astype(np.int64) for x in given]
        if any((x != y).any() for x, y in zip(given, whole, strict=True)):
            raise ValueError("not a whole number")
        b, c, q, hit = np.broadcast_arrays(*whole)
    except (ValueError, TypeError, OverflowError) as error:
        raise InputError(f"batch, context and query_tokens must be whole numbers of one length: {error}") from None
    for name, values in (("batch", b), ("context", c), ("query_tokens", q)):
        if values.size == 0 or values.min() < 1:
            raise InputError(f"{name} must be 1 or more at every point")
    if phase == "decode" and (c < q).any():
        raise InputError("a context must hold at least the query tokens of its step")
    if (hit < 0).any() or (hit >= c).any() or (phase == "decode" and hit.any()):
        raise InputError("cached belongs to prefill and leaves at least one token of each context to compute")
    entries = sum(
        n * placement.precision.kv.bytes(k.attention.cached_heads * k.attention.cache_elements)
        for k, n in placement.model.kinds.items()
        if k.attention
    )
    if float(b.max()) * float(c.max()) * max(entries, placement.model.hidden * placement.model.vocab) > MOST_BYTES:
        raise InputError("batch x context is too large for 64-bit arithmetic; ask simulate for such a point")
    strategy, groups = placement.strategy, placement.cut.sequence_groups
    new = c - hit if phase == "prefill" else q
    replica = Sequences.even(b, c, new, phase == "prefill").share(0, strategy.replicas)
    group = -(-replica.count // groups)
    micro: Number = np.minimum(np.maximum(group, 1), strategy.pp) if strategy.pp > 1 else 1
    local = -(-group // micro)
    best: Number = np.inf
    kv: Number = 0
    for order in strategy.orders(placement.model):
        for pieces in strategy.pieces(int(np.max(local))):
            seconds, kv = _pass(placement, machine, phase, replica, micro, pieces, order)
            # a batch is not cut into more pieces than it has sequences
            best = np.minimum(best, np.where((pieces == 1) | (local >= pieces), seconds, np.inf))
    return Points(b, c, q, np.broadcast_to(best, b.shape), np.broadcast_to(kv, b.shape))


def _pass(
    placement: Placement,
    machine: Machine,
    phase: Phase,
    replica: Sequences,
    micro: Number,
    pieces: int,
    order: Order | None,
) -> tuple[Number, Number]:
    """Seconds between two steps, and the KV bytes of the fullest rank."""
    total: Number = 0.0
    slowest: Number = 0.0
    kv: Number = 0
    for stage in range(placement.strategy.pp):
        model = StageModel(placement, machine, phase, replica, stage, pieces, 0, (0, micro), order)
        classes = model.classes("folded")
        seconds = _stage(model, classes)
        total, slowest = total + seconds, larger(slowest, seconds)
        for rank in classes.representatives:
            lane = Lane(rank, placement.cut, replica, placement.precision)
            kv = larger(kv, placement.kv_bytes(stage, lane))
    return (larger(total, micro * slowest) if placement.strategy.pp > 1 else total), kv


def _stage(model: StageModel, classes: Classes) -> Number:
    """Seconds of one pass over a stage; of equal layers two are stepped and the rest counted."""
    states: list[State] = [(0.0, 0.0, (0.0, 0.0)) for _ in classes.members]
    known: dict[int, list[Track]] = {}
    for layers, pattern in model.patterns():
        if id(pattern) not in known:
            known[id(pattern)] = model.tracks(pattern, classes)
        tracks = known[id(pattern)]
        once = recurrence.run(tracks, states)
        states = _further(once, recurrence.run(tracks, once), layers - 2) if layers > 1 else once
    end: Number = 0.0
    for state in states:
        end = larger(end, larger(state[0], state[1]))
    return end


def _further(once: list[State], twice: list[State], layers: int) -> list[State]:
    """The states after ``layers`` more layers that each take as long as the second one."""

    def on(x: Number, y: Number) -> Number:
        return y + layers * (y - x)

    return [
        (on(x[0], y[0]), on(x[1], y[1]), tuple(on(u, v) for u, v in zip(x[2], y[2], strict=True)))
        for x, y in zip(once, twice, strict=True)
    ]
