"""A sparse index with real numbers: its own keys, scores over all of them, and the tokens that attention then sees."""

from __future__ import annotations

import numpy as np

from sim import ops_compute as ops
from sim.proof.batch import Rows
from sim.proof.mathematics import rotate
from sim.proof.weights import Array
from sim.proof.world import Entries, Piece, Rank, World


def scores(queries: Array, weights: Array, keys: Array) -> Array:
    """Sum over the index heads of weight x ReLU(query . key): (heads, dim), (heads,), (tokens, dim) to (tokens,)."""
    return np.asarray(weights @ np.maximum(queries @ keys.T, 0.0))


def normed(keys: Array, weight: Array) -> Array:
    """Layer norm of index keys; ``weight`` holds scales and shifts one after the other."""
    scale, shift = np.split(weight, 2)
    centred = keys - keys.mean(axis=-1, keepdims=True)
    out: Array = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-6) * scale + shift
    return out


def best(found: Array, tokens: Rows, k: int) -> Array:
    """The ``k`` best (score, token), the earlier token first among equals; minus infinity where there are fewer."""
    order = np.lexsort((tokens, -found))[:k]
    out = np.full((k, 2), -np.inf)
    out[: len(order)] = np.stack([found[order], tokens[order]], axis=-1)
    return out


def index(op: ops.Index, rank: Rank, world: World) -> None:
    """Write the new keys that this rank keeps, and find the best tokens among all that it has."""
    assert op.attention.index
    q, k, weights = (rank.get(v) for v in op.inputs)
    batch, cut, top_k = world.batch, world.cut, op.attention.index.top_k
    at_tokens = batch.position_of[q.rows]
    keys = rotate(normed(k.array, rank.weight(world.layer, "index_k_norm").array), at_tokens, k.array.shape[-1])
    queries = rotate(q.array, at_tokens, q.array.shape[-1])
    mine = cut.mesh.index(rank.number, cut.kv_axes)
    out = np.full((len(q.rows), top_k, 2), -np.inf)
    for n in dict.fromkeys(batch.sequence_of[q.rows].tolist()):
        at = np.flatnonzero(batch.sequence_of[q.rows] == n)
        tokens = batch.position_of[q.rows[at]]
        length = batch.lengths[n]
        kept = [
            i
            for i, token in enumerate(tokens.tolist())
            if cut.whole_index or cut.ownership.owner(token, cut.kv_ranks, length, batch.generated) == mine
        ]
        new = Entries(tokens[kept], keys[at][kept], keys[at][kept])
        if old := rank.index.get((world.layer, n)):
            new = Entries(*(np.concatenate(pair) for pair in zip(old, new, strict=True)))
        rank.index[world.layer, n] = new
        for row in at.tolist():
            seen = new.tokens <= batch.position_of[q.rows[row]]
            found = scores(queries[row], weights.array[row], new.keys[seen])
            out[row] = best(found, new.tokens[seen], top_k)
    piece = Piece(out, q.rows, ((0, top_k), (0, 2)))
    world.put(op, rank, op.outputs[0], piece)
    if not op.outputs[0].shares:
        _keep(rank, world, piece.rows, out)


def pick(op: ops.Pick, rank: Rank, world: World) -> None:
    """The best of all ranks' candidates."""
    x = rank.get(op.inputs[0])
    k = x.array.shape[-2]
    every = np.concatenate(list(x.array), axis=1)  # (rows, ranks x k, 2)
    out = np.stack([best(row[:, 0], row[:, 1], k) for row in every]) if len(every) else x.array[0]
    world.put(op, rank, op.outputs[0], Piece(out, x.rows, x.ranges))
    _keep(rank, world, x.rows, out)


def _keep(rank: Rank, world: World, rows: Rows, picked: Array) -> None:
    for row, pairs in zip(rows.tolist(), picked, strict=True):
        tokens = pairs[np.isfinite(pairs[:, 0]), 1].astype(np.int64)
        positions = rank.picked.setdefault(int(world.batch.sequence_of[row]), {})
        positions[int(world.batch.position_of[row])] = tokens
