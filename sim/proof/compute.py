"""Compute operations with real numbers, on what one rank holds."""

from __future__ import annotations

from functools import singledispatch

import numpy as np

from sim import ops_compute as ops
from sim.model import GroupedQueryAttention, LatentAttention, MoeFfn
from sim.program import Op
from sim.proof.index import index, pick
from sim.proof.mathematics import activate, append, attend, expand, experts, rms, rotate, top_k
from sim.proof.recur import recur
from sim.proof.weights import Held
from sim.proof.world import Piece, ProofError, Rank, Routed, World


@singledispatch
def compute(op: Op, rank: Rank, world: World) -> None:
    """Run one operation on one rank. Raises ``ProofError`` for an operation that cannot be executed."""
    raise ProofError(f"{op.name}: operation {type(op).__name__} has no executable form")


def _weight(op: Op, rank: Rank, world: World, name: str) -> Held:
    return rank.weight(world.layer, name)


def _match(op: Op, rank: Rank, piece: Piece, held: Held, dims: int, weight: str) -> None:
    """The value's features must be the weight's, index by index."""
    if piece.ranges != held.ranges[:dims]:
        raise ProofError(
            f"rank {rank.number}, {op.name}: the value has indices {piece.ranges}, {weight} has {held.ranges[:dims]}"
        )


@compute.register
def _(op: ops.Lookup, rank: Rank, world: World) -> None:
    ids, held = rank.get(op.inputs[0]), _weight(op, rank, world, op.weight.name)
    start, count = held.ranges[0]
    wanted = ids.array[:, 0].astype(np.int64) - start
    inside = (wanted >= 0) & (wanted < count)
    array = np.where(inside[:, None], held.array[np.where(inside, wanted, 0)], 0.0)
    world.put(op, rank, op.outputs[0], Piece(array, ids.rows, (held.ranges[1],)))


@compute.register
def _(op: ops.Norm, rank: Rank, world: World) -> None:
    pieces = [rank.get(v) for v in op.inputs]
    total = pieces[0].array if len(pieces) == 1 else pieces[0].array + pieces[1].array
    held = _weight(op, rank, world, op.weight.name)
    first = pieces[0]
    world.put(op, rank, op.outputs[0], Piece(rms(total, held.array), first.rows, first.ranges))
    if len(op.outputs) > 1:
        world.put(op, rank, op.outputs[1], Piece(total, first.rows, first.ranges))


@compute.register
def _(op: ops.Project, rank: Rank, world: World) -> None:
    x = rank.get(op.inputs[0])
    dims = len(x.ranges)
    for tensor, value in zip(op.weights, op.outputs, strict=True):
        held = _weight(op, rank, world, tensor.name)
        if tensor.name in ("embedding", "lm_head"):  # these list the vocabulary first
            held = Held(held.array.T, held.ranges[::-1])
        _match(op, rank, x, held, dims, tensor.name)
        array = np.tensordot(x.array, held.array, dims)
        world.put(op, rank, value, Piece(array, x.rows, held.ranges[dims:]))


@compute.register
def _(op: ops.HeadProject, rank: Rank, world: World) -> None:
    x, held = rank.get(op.inputs[0]), _weight(op, rank, world, op.weight.name)
    start, count = x.ranges[0]
    first, have = held.ranges[0]
    if start < first or start + count > first + have:
        have_heads = f"{op.weight.name} {held.ranges[0]}"
        raise ProofError(f"rank {rank.number}, {op.name}: heads {x.ranges[0]} are not all in {have_heads}")
    matrix = held.array[start - first : start - first + count]
    k = matrix.shape[1]
    raised = np.einsum("rhk,hkn->rhn", x.array[..., :k], matrix)
    array = np.concatenate([raised, x.array[..., k:]], axis=-1)  # MLA: the rope part of a query passes through
    ranges = (x.ranges[0], (0, array.shape[-1]))
    world.put(op, rank, op.outputs[0], Piece(array, x.rows, ranges, x.statistics))


@compute.register
def _(op: ops.ExpandLatent, rank: Rank, world: World) -> None:
    latent = rank.get(op.inputs[0])
    array = expand(rank, world, latent.array[:, : op.attention.kv_lora_rank])
    heads = _weight(op, rank, world, op.weights[0].name).ranges[0]
    world.put(op, rank, op.outputs[0], Piece(array, latent.rows, (heads, (0, array.shape[-1]))))


@compute.register
def _(op: ops.AppendKv, rank: Rank, world: World) -> None:
    a = op.attention
    pieces = [rank.get(v) for v in op.inputs]
    positions = world.batch.position_of[pieces[0].rows]
    rotated = []
    for number, piece in enumerate(pieces):
        array = piece.array
        if isinstance(a, LatentAttention):
            array = rotate(array, positions, a.rope_dim)
        elif number < 2:  # queries and keys, not values
            array = rotate(array, positions, a.head_dim)
        rotated.append(Piece(array, piece.rows, piece.ranges))
    for value, piece in zip(op.outputs, rotated, strict=True):
        world.put(op, rank, value, piece)
    if isinstance(a, GroupedQueryAttention):
        keys = rotated[1].array
        values = pieces[1].array[..., : a.v_head_dim] if a.shared_kv else rotated[2].array
    else:
        keys = rotated[1].array[:, None, :]
        values = keys[..., : a.kv_lora_rank]
    append(rank, world, a, pieces[0].rows, keys, values)


@compute.register
def _(op: ops.Attend, rank: Rank, world: World) -> None:
    q = rank.get(op.inputs[0])
    expanded = rank.get(op.inputs[1]) if len(op.inputs) > 1 else None
    array, statistics = attend(op, rank, world, q, expanded)
    ranges = (q.ranges[0], (0, array.shape[-1]))
    world.put(op, rank, op.outputs[0], Piece(array, q.rows, ranges, statistics))


@compute.register
def _(op: ops.Index, rank: Rank, world: World) -> None:
    index(op, rank, world)


@compute.register
def _(op: ops.Pick, rank: Rank, world: World) -> None:
    pick(op, rank, world)


@compute.register
def _(op: ops.Recur, rank: Rank, world: World) -> None:
    recur(op, rank, world)


@compute.register
def _(op: ops.Merge, rank: Rank, world: World) -> None:
    x = rank.get(op.inputs[0])
    assert x.statistics is not None
    maximum = x.statistics[..., 0].max(axis=0)
    part = x.statistics[..., 1] * np.exp(x.statistics[..., 0] - maximum)
    array = (x.array * (part / part.sum(axis=0))[..., None]).sum(axis=0)
    world.put(op, rank, op.outputs[0], Piece(array, x.rows, x.ranges))


@compute.register
def _(op: ops.Rescale, rank: Rank, world: World) -> None:
    x, everyone = rank.get(op.inputs[0]), rank.get(op.inputs[1])
    assert x.statistics is not None
    maximum = everyone.array.max(axis=0)
    total = np.exp(everyone.array - maximum).sum(axis=0)
    mine = x.statistics[..., 1] * np.exp(x.statistics[..., 0] - maximum)
    world.put(op, rank, op.outputs[0], Piece(x.array * (mine / total)[..., None], x.rows, x.ranges))


@compute.register
def _(op: ops.Activate, rank: Rank, world: World) -> None:
    x = rank.get(op.inputs[0])
    world.put(op, rank, op.outputs[0], Piece(activate(x.array), x.rows, x.ranges[-1:]))


@compute.register
def _(op: ops.Gate, rank: Rank, world: World) -> None:
    x, gate = (rank.get(v) for v in op.inputs)
    world.put(op, rank, op.outputs[0], Piece(x.array / (1 + np.exp(-gate.array)), x.rows, x.ranges))


@compute.register
def _(op: ops.Add, rank: Rank, world: World) -> None:
    x, y = (rank.get(v) for v in op.inputs)
    world.put(op, rank, op.outputs[0], Piece(x.array + y.array, x.rows, x.ranges))


@compute.register
def _(op: ops.Experts, rank: Rank, world: World) -> None:
    x = rank.get(op.inputs[0])
    if x.sent is None:
        routing = route(rank.get(op.inputs[1]), world, op.ffn)
        local = np.ones(routing.slots.shape, np.bool_)
    else:
        routing, local = x.sent.routed, x.sent.local
    up, down = (_weight(op, rank, world, t.name) for t in op.weights)
    array = experts(x.array, routing, local, up, down)
    world.put(op, rank, op.outputs[0], Piece(array, x.rows, x.ranges, sent=x.sent))


def route(logits: Piece, world: World, ffn: MoeFfn) -> Routed:
    """The slots that each row goes to: its top experts, each replica in turn by row number."""
    chosen, weights = top_k(logits.array, ffn.top_k)
    return Routed(world.homes(ffn.experts).choose(chosen, logits.rows), weights)


@compute.register
def _(op: ops.Sample, rank: Rank, world: World) -> None:
    logits = rank.get(op.inputs[0])
    best = logits.array.argmax(axis=-1)[:, None].astype(np.float64)
    world.put(op, rank, op.outputs[0], Piece(best, logits.rows, ((0, 1),)))


@compute.register
def _(op: ops.Host, rank: Rank, world: World) -> None:
    """Nothing to compute."""
