"""Attention with a state instead of a cache: gated DeltaNet (Qwen3-Next, Qwen3.5), Mamba-2 and their relatives.

Each value head keeps a matrix of key_dim x value_dim per sequence, whatever the context; a step reads and writes it
once. Mamba-2 in these words: groups are key heads, the state size is the key dimension, heads are value heads.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from sim.noun import Noun
from sim.tensors import Positive, TensorShape


class LinearAttention(Noun):
    """One block: projections, a short convolution over the last tokens, the state, a gated norm, the output."""

    key_heads: Positive
    value_heads: Positive
    key_dim: Positive
    value_dim: Positive
    convolution: Annotated[int, Field(ge=1, le=64)] = 4
    """Tokens that the convolution over queries, keys and values sees."""
    gates: Annotated[int, Field(ge=1, le=8)] = 2
    """Learned scalars per value head and token: decay and write strength (Mamba-2: the time step alone)."""
    state_bytes: Annotated[int, Field(ge=1, le=8)] = 4
    """Bytes per element of the state; engines keep it in fp32."""

    @property
    def channels(self) -> int:
        """Features that pass the convolution: queries, keys and values."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    def state(self, heads: int) -> int:
        """Bytes of the state of one sequence for ``heads`` value heads, with what the convolution remembers."""
        matrix = heads * self.key_dim * self.value_dim * self.state_bytes
        return matrix + self.channels * heads // self.value_heads * (self.convolution - 1) * 2

    def tensors(self, hidden: int) -> Iterator[TensorShape]:
        """Weights of one block, without the layer norm in front of it."""
        keys, values = ("state_keys", self.key_heads), ("state_heads", self.value_heads)
        k, v = ("head_dim", self.key_dim), ("head_dim", self.value_dim)
        yield TensorShape("state_q", (("hidden", hidden), keys, k), "attention")
        yield TensorShape("state_k", (("hidden", hidden), keys, k), "attention")
        yield TensorShape("state_v", (("hidden", hidden), values, v), "attention")
        yield TensorShape("state_z", (("hidden", hidden), values, v), "attention")
        yield TensorShape("state_gates", (("hidden", hidden), values, ("gates", self.gates)), "attention", False)
        yield TensorShape(
            "state_convolution", (("taps", self.convolution), ("channels", self.channels)), "attention", False
        )
        yield TensorShape("state_scalars", (values, ("scalars", self.gates)), "attention", False)
        yield TensorShape("state_norm", (v,), "attention", False)
        yield TensorShape("state_o", (values, v, ("hidden", hidden)), "attention")


class SparseIndex(Noun):
    """The lightning indexer of DeepSeek sparse attention: it scores the whole context and keeps ``top_k`` tokens.

    Its keys are cached in fp8 with one fp32 scale, whatever the format of the latent (DeepSeek-V3.2 report).
    """

    heads: Positive
    head_dim: Positive
    top_k: Positive

    @property
    def token_bytes(self) -> int:
        """Bytes of one cached token in one layer."""
        return self.head_dim + 4

    def tensors(self, hidden: int, query_rank: int) -> Iterator[TensorShape]:
        """Weights of the indexer; every rank holds all of them."""
        query = (("q_rank", query_rank), ("index_heads", self.heads), ("head_dim", self.head_dim))
        yield TensorShape("index_q", query, "attention")
        yield TensorShape("index_k", (("hidden", hidden), ("index_dim", self.head_dim)), "attention")
        yield TensorShape("index_weights", (("hidden", hidden), ("index_heads", self.heads)), "attention", False)
        yield TensorShape("index_k_norm", (("norm", 2 * self.head_dim),), "attention", False)
