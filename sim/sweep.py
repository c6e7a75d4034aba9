"""Many points of one layout at once: batch, context and query tokens as arrays, everything else fixed.

The program, the placement and the order of events do not depend on these three, so one pass of the recurrence over
arrays prices all points (``sim.recurrence`` gives the engine's answer to 1e-9). Ranks are folded when they are equal
at every point.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np

from sim import recurrence
from sim.errors import InputError
from sim.fold import Classes
from sim.lane import Lane
from sim.lower import lower
from sim.machine import Machine
from sim.memory import ActivationProfile, CommunicationBuffers, engine_reserve
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
    total_bytes: Array
    """All memory of the rank that needs most, the engine's reserve included."""
    pieces: Array
    """Of the attention phase (HOP-B), the fastest choice."""


def sweep(
    placement: Placement,
    machine: Machine,
    batch: Sequence[int] | Array | int,
    context: Sequence[int] | Array | int,
    query_tokens: Sequence[int] | Array | int = 1,
    phase: Phase = "decode",
    cached: Sequence[int] | Array | int = 0,
    usable_memory: float = 0.9,
) -> Points:
    """Step time, KV bytes and memory of one layout at many points.

    Parameters
    ----------
    batch, context, query_tokens
        Arrays of one length, or single numbers: sequences on the whole layout, tokens in each cache when it is
        attended, new tokens per sequence in decode.
    cached
        In prefill: tokens of each context that were there before.
    usable_memory
        Fraction of a GPU's capacity that the engine may use.

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
    best = np.full(b.shape, np.inf)
    chosen = np.zeros(b.shape, np.int64)
    for order in strategy.orders(placement.model):
        for pieces in strategy.pieces(int(np.max(local))):
            seconds = np.broadcast_to(_pass(placement, machine, phase, replica, micro, pieces, order), b.shape)
            # a batch is not cut into more pieces than it has sequences
            possible = (pieces == 1) | (local >= pieces)
            better = possible & ((seconds < best) | ((seconds == best) & (pieces < chosen)))
            best, chosen = np.where(better, seconds, best), np.where(better, pieces, chosen)
    capacity = machine.kernels.gpu.memory_bytes
    kv: Number = 0
    total: Number = 0
    for pieces in np.unique(chosen).tolist():
        kv, used = _memory(placement, machine, phase, replica, pieces)
        total = np.where(chosen == pieces, used + engine_reserve(capacity, usable_memory), total)
    return Points(b, c, q, best, np.broadcast_to(kv, b.shape), np.broadcast_to(total, b.shape), chosen)


def _pass(
    placement: Placement,
    machine: Machine,
    phase: Phase,
    replica: Sequences,
    micro: Number,
    pieces: int,
    order: Order | None,
) -> Number:
    """Seconds between two steps."""
    total: Number = 0.0
    slowest: Number = 0.0
    known: dict[Hashable, Number] = {}
    for stage in range(placement.strategy.pp):
        model = StageModel(placement, machine, phase, replica, stage, pieces, 0, (0, micro), order)
        kind = _kind(model)
        if kind not in known:
            known[kind] = _stage(model, model.classes("folded"))
        seconds = known[kind]
        total, slowest = total + seconds, larger(slowest, seconds)
    return larger(total, micro * slowest) if placement.strategy.pp > 1 else total


def _memory(
    placement: Placement, machine: Machine, phase: Phase, replica: Sequences, pieces: int
) -> tuple[Number, Number]:
    """KV bytes of the rank that holds most, and all bytes but the reserve of the rank that needs most."""
    program = lower(placement.model, placement.strategy, phase, pieces)
    buffers = CommunicationBuffers(program)
    kv: Number = 0
    total: Number = 0
    known: set[Hashable] = set()
    for stage in range(placement.strategy.pp):
        model = StageModel(placement, machine, phase, replica, stage, pieces)
        if (kind := _kind(model)) in known:
            continue
        known.add(kind)
        for rank in model.classes("folded").representatives:
            lane = Lane(rank, placement.cut, replica, placement.precision)
            held = placement.kv_bytes(stage, lane)
            weights = sum(placement.weights(stage, rank).values())
            used = weights + held + ActivationProfile(program, lane).bytes(lane) + buffers.bytes(lane)
            kv, total = larger(kv, held), larger(total, used)
    return kv, total


def _kind(model: StageModel) -> Hashable:
    """Equal for stages that do the same: their layers, whether they begin or end, and how they sit on the machine."""
    stages, machine = model.placement.stages, model.machine
    ends = (model.stage == 0, model.stage == len(stages) - 1)
    sits = machine.collectives.fabric.group_shape((*model.gpus_before, *model.gpus))
    speeds = tuple(map(machine.speed, model.gpus)) if machine.speeds else ()
    return (*ends, tuple(stages[model.stage]), sits, speeds)


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
