"""Shapes of compute operations: what a kernel model needs to know besides FLOPs and bytes.

All figures are those of one rank, as numbers or as arrays with one entry per point of a sweep.
"""

from __future__ import annotations

from typing import NamedTuple

from sim.workload import Number


class Gemm(NamedTuple):
    """(rows, depth) x (depth, columns), ``count`` times side by side (one small matrix per head)."""

    rows: Number
    columns: Number
    depth: Number
    count: Number = 1


class DecodeAttention(NamedTuple):
    """New tokens of each sequence against its cache."""

    sequences: Number
    query_heads: Number
    kv_heads: Number
    tokens: Number
    """Cached tokens read, summed over the sequences."""
    queries: Number = 1
    """New tokens per sequence."""


class LatentDecode(DecodeAttention):
    """The same over the latent of MLA, which all query heads share as if it were one KV head."""

    __slots__ = ()


class PrefillAttention(NamedTuple):
    """Causal attention of many new tokens per sequence."""

    sequences: Number
    query_heads: Number
    kv_heads: Number
    width: Number
    """Mean of the query-key and the value dimension of a head."""
    rows: Number
    """New tokens, summed over the sequences."""
    pairs: Number
    """(query, key) pairs, summed over the sequences; a cached prefix and a window are in it."""
    span: Number
    """Keys that the last query of a sequence sees."""


class LatentPrefill(PrefillAttention):
    """The same over keys and values that MLA has expanded from the latent."""

    __slots__ = ()


class GroupedGemm(NamedTuple):
    """The whole module of routed experts: permutation, two grouped products, activation, sum."""

    rows: Number
    """(token, expert) pairs that this rank computes."""
    hit: Number
    """Experts of this rank that at least one row goes to."""
    slots: Number
    """(token, choice) pairs that this rank sorts, whether it has the expert or not."""
    hidden: Number = 0
    width: Number = 0
    """Columns of the first product on this rank, per half."""
    held: Number = 0
    """Experts on this rank."""
    experts: Number = 0
    """Experts in all."""
    choices: Number = 0
    """Experts that a token goes to."""


class Elementwise(NamedTuple):
    """Bytes in, bytes out."""


class Recurrence(NamedTuple):
    """The state of linear attention, read, updated and written."""

    sequences: Number


class TokenIndex(NamedTuple):
    """Scores of an indexer over a cache, and the choice of the best tokens."""

    sequences: Number


class Host(NamedTuple):
    """What the engine does between two steps."""

    sequences: Number


FAMILIES: dict[type, str] = {
    Gemm: "gemm",
    DecodeAttention: "decode_attention",
    LatentDecode: "mla_decode",
    PrefillAttention: "prefill_attention",
    LatentPrefill: "mla_prefill",
    GroupedGemm: "experts",
    Elementwise: "elementwise",
    Recurrence: "recurrence",
    TokenIndex: "index",
    Host: "host",
}
"""Which kernel model prices a shape."""
Shape = Gemm | DecodeAttention | PrefillAttention | GroupedGemm | Elementwise | Recurrence | TokenIndex | Host
