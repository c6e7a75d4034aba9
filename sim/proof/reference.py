"""The reference: the same step as one process runs it, with nothing cut and nothing absorbed."""

from __future__ import annotations

from typing import Any

import numpy as np

from sim.model import Attention, GroupedQueryAttention, LatentAttention, LinearAttention, MoeFfn
from sim.proof.index import normed, scores
from sim.proof.mathematics import activate, rms, rotate, top_k
from sim.proof.recur import State, empty, learned, token
from sim.proof.weights import Array, Weights

Ints = np.ndarray[Any, np.dtype[np.int64]]


class Reference:
    """A plain transformer in float64 with a whole cache per layer and sequence: (tokens, heads, elements)."""

    def __init__(self, weights: Weights):
        self.w = weights
        self.keys: dict[tuple[int, int], Array] = {}
        self.values: dict[tuple[int, int], Array] = {}
        self.inputs: dict[tuple[int, int], tuple[Array, ...]] = {}
        """Everything that linear attention has seen of a sequence, by (layer, sequence)."""
        self.index: dict[tuple[int, int], Array] = {}
        """Keys of a sparse index, by (layer, sequence)."""
        self.picked: dict[int, Ints] = {}
        """Tokens that the last index picked for each row."""
        self.recurrent: dict[tuple[int, int], State] = {}
        """Its state after the last step."""
        self.states: dict[int, Array] = {}
        """Hidden states of every row after each layer of the last step."""
        self.chosen: dict[int, Ints] = {}
        """Experts of every row of the last step, by layer: (rows, top_k)."""

    def step(self, ids: Ints, sequences: Ints, positions: Ints) -> Array:
        """Logits of every row, after appending all rows to the caches."""
        w = self.w.arrays
        h = w[-1, "embedding"][ids]
        for number, layer in enumerate(self.w.layers):
            if layer.attention:
                x = rms(h, w[number, "attn_norm"])
                h = h + self._attention(number, layer.attention, x, sequences, positions)
            if layer.linear:
                x = rms(h, w[number, "attn_norm"])
                h = h + self._linear(number, layer.linear, x, sequences)
            if layer.ffn:
                x = rms(h, w[number, "ffn_norm"])
                h = h + (self._experts(number, layer.ffn, x) if isinstance(layer.ffn, MoeFfn) else self._mlp(number, x))
            self.states[number] = h
        head = w.get((-1, "lm_head"), w[-1, "embedding"])
        return rms(h, w[-1, "final_norm"]) @ head.T

    def _mlp(self, number: int, x: Array, up: str = "gate_up", down: str = "down") -> Array:
        wide = np.tensordot(x, self.w.arrays[number, up], 1)
        return activate(wide) @ self.w.arrays[number, down]

    def _experts(self, number: int, ffn: MoeFfn, x: Array) -> Array:
        w = self.w.arrays
        chosen, weights = top_k(x @ w[number, "router"], ffn.top_k)
        self.chosen[number] = chosen
        y = np.zeros_like(x)
        for row in range(len(x)):
            seen = x[row : row + 1] @ w[number, "latent_down"] if ffn.latent else x[row : row + 1]
            for expert, weight in zip(chosen[row], weights[row], strict=True):
                wide = np.tensordot(seen, w[number, "experts_gate_up"][expert], 1)
                out = activate(wide) @ w[number, "experts_down"][expert]
                y[row] += weight * (out @ w[number, "latent_up"] if ffn.latent else out)[0]
        if ffn.shared_width:
            y = y + self._mlp(number, x, "shared_gate_up", "shared_down")
        return y

    def _linear(self, number: int, a: LinearAttention, x: Array, sequences: Ints) -> Array:
        """Every sequence from its first token on, and the outputs of the new tokens."""
        w = {name: array for (layer, name), array in self.w.arrays.items() if layer == number}
        new = [np.tensordot(x, w[f"state_{part}"], 1) for part in ("q", "k", "v", "z", "gates")]
        if a.channel_decay:
            new.append(np.tensordot(x @ w["state_decay_down"], w["state_decay_up"], 1))
        small = learned(a, w, 0, 0)
        out = np.zeros((len(x), a.value_heads, a.value_dim))
        for n in dict.fromkeys(sequences.tolist()):
            at = np.flatnonzero(sequences == n)
            old = self.inputs.get((number, n), (None,) * len(new))
            seen = tuple(_longer(o, part[at]) for o, part in zip(old, new, strict=True))
            self.inputs[number, n] = seen
            state, reads = empty(a, a.key_heads, a.value_heads), []
            for t in range(len(seen[0])):
                read, state = token(a, small, state, tuple(part[t] for part in seen))
                reads.append(read)
            out[at] = reads[-len(at) :]
            self.recurrent[number, n] = state
        return np.asarray(np.tensordot(out, w["state_o"], 2))

    def _attention(self, number: int, a: Attention, x: Array, sequences: Ints, positions: Ints) -> Array:
        if isinstance(a, GroupedQueryAttention):
            q, k, v = self._grouped(number, a, x, positions)
        else:
            q, k, v = self._latent(number, a, x, positions, sequences)
        out = np.zeros((len(x), a.query_heads, a.v_head_dim))
        for n in dict.fromkeys(sequences.tolist()):
            at = np.flatnonzero(sequences == n)
            keys = self.keys[number, n] = _longer(self.keys.get((number, n)), k[at])
            values = self.values[number, n] = _longer(self.values.get((number, n)), v[at])
            for row in at:
                seen = self._seen(number, a, n, int(row), int(positions[row]))
                if isinstance(a, LatentAttention):
                    seen_k, seen_v = self._heads_of_latent(number, a, keys[seen, 0])
                else:
                    group = np.arange(a.query_heads) // (a.query_heads // a.kv_heads)
                    seen_k, seen_v = keys[seen][:, group], values[seen][:, group]
                scores = np.einsum("hk,thk->ht", q[row], seen_k) / np.sqrt(q.shape[-1])
                weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
                out[row] = np.einsum("ht,thv->hv", weights / weights.sum(axis=-1, keepdims=True), seen_v)
        if isinstance(a, GroupedQueryAttention) and a.output_gate:
            out = out / (1 + np.exp(-np.tensordot(x, self.w.arrays[number, "o_gate"], 1)))
        return np.asarray(np.tensordot(out, self.w.arrays[number, "o"], 2))

    def _seen(self, number: int, a: Attention, n: int, row: int, position: int) -> Ints:
        """The tokens that a query attends."""
        if isinstance(a, LatentAttention) and a.index:
            return self.picked[row]
        first = 0
        if a.window:
            first = position // a.window * a.window if a.chunked else max(0, position + 1 - a.window)
        return np.arange(first, position + 1)

    def _index(self, number: int, a: LatentAttention, down: Array, x: Array, sequences: Ints, positions: Ints) -> None:
        """Keys of the index, and the tokens that each row picks from all before it."""
        assert a.index
        w = self.w.arrays
        queries = rotate(np.tensordot(down, w[number, "index_q"], 1), positions, a.index.head_dim)
        weights = x @ w[number, "index_weights"]
        keys = rotate(normed(x @ w[number, "index_k"], w[number, "index_k_norm"]), positions, a.index.head_dim)
        for n in dict.fromkeys(sequences.tolist()):
            at = np.flatnonzero(sequences == n)
            every = self.index[number, n] = _longer(self.index.get((number, n)), keys[at])
            for row in at.tolist():
                found = scores(queries[row], weights[row], every[: positions[row] + 1])
                self.picked[row] = np.sort(np.argsort(-found, kind="stable")[: a.index.top_k]).astype(np.int64)

    def _grouped(self, number: int, a: GroupedQueryAttention, x: Array, at: Ints) -> tuple[Array, Array, Array]:
        w = self.w.arrays
        q = np.tensordot(x, w[number, "q"], 1)
        k = np.tensordot(x, w[number, "k"], 1)
        v = k if a.shared_kv else np.tensordot(x, w[number, "v"], 1)
        return rotate(q, at, a.head_dim), rotate(k, at, a.head_dim), v

    def _latent(
        self, number: int, a: LatentAttention, x: Array, at: Ints, sequences: Ints
    ) -> tuple[Array, Array, Array]:
        w = self.w.arrays
        down = rms(x @ w[number, "q_a"], w[number, "q_a_norm"]) if a.q_lora_rank else x
        if a.index and not a.index.shared:
            self._index(number, a, down, x, sequences, at)
        q = rotate(np.tensordot(down, w[number, "q_b"], 1), at, a.rope_dim)
        latent = rotate(rms(x @ w[number, "kv_a"], w[number, "kv_a_norm"]), at, a.rope_dim)
        return q, latent[:, None, :], latent[:, None, : a.kv_lora_rank]

    def _heads_of_latent(self, number: int, a: LatentAttention, latent: Array) -> tuple[Array, Array]:
        """Every head's keys and values of cached latents (tokens, latent + rope)."""
        w = self.w.arrays
        c = latent[:, : a.kv_lora_rank]
        keys = np.einsum("tc,hkc->thk", c, w[number, "uk"])
        rope = np.repeat(latent[:, None, a.kv_lora_rank :], a.query_heads, axis=1)
        return np.concatenate([keys, rope], axis=-1), np.einsum("tc,hcv->thv", c, w[number, "uv"])


def _longer(old: Array | None, new: Array) -> Array:
    return new if old is None else np.concatenate([old, new])
