"""The arithmetic of a transformer step that ranks and reference share: only plain functions of arrays and caches."""

from __future__ import annotations

from typing import Any

import numpy as np

from sim import ops_compute as ops
from sim.model import Attention, LatentAttention
from sim.proof.weights import Array, Held
from sim.proof.world import Entries, Piece, ProofError, Rank, Routed, World


def rms(x: Array, weight: Array) -> Array:
    """RMS norm over the first ``len(weight)`` features; the rest passes (MLA's rope key behind its latent)."""
    n = len(weight)
    part = x[..., :n]
    normed = part / np.sqrt((part**2).mean(axis=-1, keepdims=True) + 1e-6) * weight
    return np.concatenate([normed, x[..., n:]], axis=-1)


def activate(x: Array) -> Array:
    """SwiGLU of (rows, 2, width), SiLU of (rows, 1, width)."""
    gate = x[..., 0, :]
    silu = gate / (1 + np.exp(-gate))
    out: Array = silu * x[..., 1, :] if x.shape[-2] == 2 else silu
    return out


def rotate(x: Array, positions: np.ndarray[Any, Any], last: int) -> Array:
    """Rotary embedding of the last ``last`` features of (rows, ..., features)."""
    half = last // 2
    angle = positions[:, None] / 100.0 ** (np.arange(half) / half)
    angle = angle.reshape(len(positions), *([1] * (x.ndim - 2)), half)
    head, a, b = x[..., : x.shape[-1] - last], x[..., -last : -last + half], x[..., -last + half :][..., :half]
    return np.concatenate([head, a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle)], axis=-1)


def top_k(logits: Array, k: int) -> tuple[np.ndarray[Any, np.dtype[np.int64]], Array]:
    """The experts with the largest logits, and the softmax of these logits."""
    chosen = np.argsort(-logits, axis=-1, kind="stable")[:, :k]
    best = np.take_along_axis(logits, chosen, axis=-1)
    weights = np.exp(best - best.max(axis=-1, keepdims=True))
    return chosen.astype(np.int64), weights / weights.sum(axis=-1, keepdims=True)


def experts(x: Array, routing: Routed, local: np.ndarray[Any, np.dtype[np.bool_]], up: Held, down: Held) -> Array:
    """Weighted outputs of the slots that are held here, summed over each row's choices."""
    start, count = up.ranges[0]
    y = np.zeros((len(x), down.array.shape[-1]))
    for slot in range(start, start + count):
        rows, choices = np.nonzero((routing.slots == slot) & local)
        if len(rows):
            wide = np.tensordot(x[rows], up.array[slot - start], 1)
            out = activate(wide) @ down.array[slot - start]
            np.add.at(y, rows, out * routing.weights[rows, choices][:, None])
    return y


def append(rank: Rank, world: World, a: Attention, rows: Any, keys: Array, values: Array) -> None:
    """Write the new tokens that this rank owns, and drop those that left the window of every coming query."""
    batch, cut = world.batch, world.cut
    mine = cut.mesh.index(rank.number, cut.kv_axes)
    for n in dict.fromkeys(batch.sequence_of[rows].tolist()):
        at = np.flatnonzero(batch.sequence_of[rows] == n)
        length = batch.lengths[n]
        tokens = batch.position_of[rows[at]]
        owners = [cut.ownership.owner(int(t), cut.kv_ranks, length, batch.generated) for t in tokens]
        owned = [i for i, owner in enumerate(owners) if owner == mine]
        old = rank.cache.get((world.layer, n))
        new = Entries(tokens[owned], keys[at][owned], values[at][owned])
        if old is not None:
            if set(old.tokens.tolist()) & set(new.tokens.tolist()):
                raise ProofError(f"rank {rank.number} writes a token of sequence {n} twice")
            new = Entries(*(np.concatenate(pair) for pair in zip(old, new, strict=True)))
        if a.window and n not in batch.prompts:
            new = new.since(length - batch.seen(n, a.window))
        rank.cache[world.layer, n] = new


def attend(op: ops.Attend, rank: Rank, world: World, q: Piece, expanded: Piece | None) -> tuple[Array, Array]:
    """Softmax shares over the local cache: outputs (rows, heads, v), statistics (rows, heads, 2)."""
    a, batch = op.attention, world.batch
    start, count = q.ranges[0]
    first, held = world.cut.kv_heads(a, rank.number)
    group = a.query_heads // a.cached_heads
    serve = np.arange(start, start + count) // group - first
    if count and (serve.min() < 0 or serve.max() >= held):
        raise ProofError(f"rank {rank.number}, layer {world.layer}: attends query heads without their KV head")
    qk = a.nope_dim + a.rope_dim if isinstance(a, LatentAttention) else a.head_dim
    width = op.outputs[0].dims[1].size
    out = np.zeros((len(q.rows), count, width))
    statistics = np.zeros((len(q.rows), count, 2))
    statistics[..., 0] = -np.inf
    sequences = batch.sequence_of[q.rows]
    for n in dict.fromkeys(sequences.tolist()):
        at = np.flatnonzero(sequences == n)
        entries = rank.cache.get((world.layer, n))
        if entries is None or not len(entries.tokens):
            continue
        if expanded is not None and isinstance(a, LatentAttention):
            keys, values = _expanded(rank, world, a, n, entries, expanded)
        else:
            keys, values = entries.keys[:, serve], entries.values[:, serve]
        scores = np.einsum("rhk,thk->rht", q.array[at], keys) / np.sqrt(qk)
        position = batch.position_of[q.rows[at]][:, None]
        seen = entries.tokens[None, :] <= position
        if a.chunked and a.window:
            seen &= entries.tokens[None, :] // a.window == position // a.window
        elif a.window:
            seen &= entries.tokens[None, :] > position - a.window
        if isinstance(a, LatentAttention) and a.index:
            picked = rank.picked[n]
            seen &= np.stack([np.isin(entries.tokens, picked[int(p)]) for p in position[:, 0]])
        scores = np.where(seen[:, None, :], scores, -np.inf)
        maximum = scores.max(axis=-1)
        finite = np.isfinite(maximum)
        weights = np.exp(scores - np.where(finite, maximum, 0.0)[..., None])
        total = weights.sum(axis=-1)
        mixed = np.einsum("rht,thv->rhv", weights, values)
        out[at] = mixed / np.where(total > 0, total, 1.0)[..., None]
        statistics[at] = np.stack([maximum, total], axis=-1)
    return out, statistics


def expand(rank: Rank, world: World, latent: Array) -> Array:
    """Keys and values of this rank's heads from (rows, latent): (rows, heads, nope + v)."""
    uk, uv = (rank.weight(world.layer, name).array for name in ("uk", "uv"))
    keys = np.einsum("rc,hkc->rhk", latent, uk)
    return np.concatenate([keys, np.einsum("rc,hcv->rhv", latent, uv)], axis=-1)


def _expanded(
    rank: Rank, world: World, a: LatentAttention, n: int, entries: Entries, expanded: Piece
) -> tuple[Array, Array]:
    """MLA prefill: this rank's heads' keys and values of a whole prompt, in the order of the cache."""
    at = np.flatnonzero(world.batch.sequence_of[expanded.rows] == n)
    order = {int(p): i for p, i in zip(world.batch.position_of[expanded.rows[at]], at, strict=True)}
    both = expand(rank, world, entries.keys[:, 0, : a.kv_lora_rank])  # what was cached before this step
    for i, token in enumerate(entries.tokens.tolist()):
        if token in order:
            both[i] = expanded.array[order[token]]
    rope = np.repeat(entries.keys[:, :, a.kv_lora_rank :], both.shape[1], axis=1)
    return np.concatenate([both[..., : a.nope_dim], rope], axis=-1), both[..., a.nope_dim :]
