"""Linear attention with real numbers: the state of each value head, and what its convolution remembers.

The learned functions of the gates differ between the families; here the decay is a sigmoid, which is all that matters
for who holds and moves what. Ranks go on from their state; the reference starts every sequence again from its first
token, so a state that is lost, stale or another head's shows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sim import ops_compute as ops
from sim.model import LinearAttention
from sim.proof.weights import Array
from sim.proof.world import Piece, Rank, World

Parts = tuple[Array, ...]


class State(NamedTuple):
    """The state of one sequence in one layer on one rank."""

    matrix: Array  # (value heads, key_dim, value_dim)
    memory: Parts  # the last taps - 1 inputs of the convolution: (taps - 1, heads, dim) of q, k and v

    def bytes(self, a: LinearAttention) -> int:
        """Bytes of these arrays as an engine stores them: the matrix in its own format, the memory in 16 bit."""
        return self.matrix.size * a.state_bytes + 2 * sum(part.size for part in self.memory)


class Learned(NamedTuple):
    """The small weights of a block on a rank."""

    taps: Parts
    biases: Parts | None
    scalars: Array | None
    decay_bias: Array | None
    norm: Array
    key_of: np.ndarray[tuple[int], np.dtype[np.int64]]
    """For each value head here, its key head here."""


def learned(a: LinearAttention, get: dict[str, Array], first_key: int, first_value: int) -> Learned:
    """Collect the weights by name; ``first_*`` are the global numbers of the first heads."""
    parts = ("q", "k", "v")
    heads = get["state_v"].shape[1]
    key_of = np.arange(first_value, first_value + heads) // (a.value_heads // a.key_heads) - first_key
    return Learned(
        tuple(get[f"state_convolution_{p}"] for p in parts),
        tuple(get[f"state_convolution_bias_{p}"] for p in parts) if a.convolution_bias else None,
        get.get("state_scalars"),
        get.get("state_decay_bias"),
        get["state_norm"],
        key_of,
    )


def empty(a: LinearAttention, key_heads: int, value_heads: int) -> State:
    """The state before the first token."""
    before = a.convolution - 1
    keys = np.zeros((before, key_heads, a.key_dim))
    return State(
        np.zeros((value_heads, a.key_dim, a.value_dim)),
        (keys, keys.copy(), np.zeros((before, value_heads, a.value_dim))),
    )


def token(a: LinearAttention, w: Learned, state: State, new: Parts) -> tuple[Array, State]:
    """One token: ``new`` is q, k, v, z, gates and perhaps decay, without rows.

    Returns what the value heads read, (heads, value_dim), and the state after it.
    """
    seen = [np.concatenate([old, x[None]]) for old, x in zip(state.memory, new, strict=False)]
    mixed = [(part * taps).sum(axis=0) for part, taps in zip(seen, w.taps, strict=True)]
    if w.biases:
        mixed = [m + bias for m, bias in zip(mixed, w.biases, strict=True)]
    q, k, v = (m / (1 + np.exp(-m)) for m in mixed)
    k = k / np.sqrt((k**2).sum(axis=-1, keepdims=True) + 1e-6)
    q, k = q[w.key_of], k[w.key_of]
    z, gates = new[3], new[4]
    if w.decay_bias is not None:
        keep = _sigmoid(new[5] + w.decay_bias)[..., None]
    else:
        keep = _sigmoid(gates[:, 0] + (w.scalars[:, 0] if w.scalars is not None else 0.0))[:, None, None]
    strength = _sigmoid(gates[:, -1])[:, None]
    matrix = state.matrix * keep
    change = v - np.einsum("hk,hkv->hv", k, matrix) if a.rule == "delta" else v
    matrix = matrix + k[:, :, None] * (strength * change)[:, None, :]
    read = np.einsum("hk,hkv->hv", q, matrix)
    normed = read / np.sqrt((read**2).mean(axis=-1, keepdims=True) + 1e-6) * w.norm
    return normed * z / (1 + np.exp(-z)), State(matrix, tuple(part[1:] for part in seen))


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def recur(op: ops.Recur, rank: Rank, world: World) -> None:
    """Every new token of this rank's sequences, one after the other."""
    a, pieces = op.linear, [rank.get(v) for v in op.inputs]
    rows, heads = pieces[2].rows, pieces[2].ranges[0]
    weights = {name: held.array for (layer, name), held in rank.weights.items() if layer == world.layer}
    w = learned(a, weights, pieces[0].ranges[0][0], heads[0])
    out = np.zeros((len(rows), heads[1], a.value_dim))
    for row, n in enumerate(world.batch.sequence_of[rows].tolist()):
        state = rank.states.get((world.layer, n)) or empty(a, pieces[0].ranges[0][1], heads[1])
        new = tuple(piece.array[row] for piece in pieces)
        out[row], rank.states[world.layer, n] = token(a, w, state, new)
    world.put(op, rank, op.outputs[0], Piece(out, rows, pieces[2].ranges))


def cut_state(state: State, keys: tuple[int, int], heads: tuple[int, int]) -> State:
    """The part of a whole state that a rank keeps, by (start, count) of its key and value heads."""
    k, v = slice(keys[0], sum(keys)), slice(heads[0], sum(heads))
    q_memory, k_memory, v_memory = state.memory
    return State(state.matrix[v], (q_memory[:, k], k_memory[:, k], v_memory[:, v]))
