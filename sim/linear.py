"""Attention with a state instead of a cache: gated DeltaNet (Qwen3-Next, Qwen3.5), Mamba-2, Kimi Delta Attention.

Each value head keeps a matrix of key_dim x value_dim per sequence, whatever the context; a step reads and writes it
once. Mamba-2 in these words: groups are key heads (B and C are keys and queries), the state size is the key dimension,
heads are value heads. A rank has the key heads that its value heads need, as engines lay groups out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, model_validator

from sim.noun import Noun
from sim.tensors import Positive, TensorShape

Rule = Literal["delta", "sum"]


class LinearAttention(Noun):
    """One block: projections, a short convolution over the last tokens, the state, a gated norm, the output.

    ``rule``: how a token changes the state. ``delta`` replaces what the key reads (gated DeltaNet), ``sum`` adds to
    what is left after the decay (Mamba-2).
    """

    key_heads: Positive
    value_heads: Positive
    key_dim: Positive
    value_dim: Positive
    rule: Rule = "delta"
    convolution: Annotated[int, Field(ge=1, le=64)] = 4
    """Tokens that the convolution over queries, keys and values sees."""
    convolution_bias: bool = False
    gates: Annotated[int, Field(ge=1, le=8)] = 2
    """Learned scalars per value head and token: decay and write strength (Mamba-2: the time step alone)."""
    scalars: Annotated[int, Field(ge=0, le=8)] = 2
    """Constants per value head: decay rate and bias of the step, and Mamba-2's skip."""
    channel_decay: Positive | None = None
    """Rank of the projection to a decay of each key channel (Kimi Delta Attention); without it, one per head."""
    wide_norm: bool = False
    """The gated norm has weights for every head, not one head's worth for all (Mamba-2)."""
    state_bytes: Annotated[int, Field(ge=1, le=8)] = 4
    """Bytes per element of the state; engines keep it in fp32."""

    @model_validator(mode="after")
    def _groups(self) -> LinearAttention:
        if self.value_heads % self.key_heads:
            raise ValueError(f"{self.value_heads} value heads are not a multiple of {self.key_heads} key heads")
        return self

    @property
    def served_heads(self) -> int:
        """Heads that the key heads are shared out to."""
        return self.value_heads

    def state(self, heads: int, key_heads: int) -> int:
        """Bytes of the state of one sequence for these heads, with what the convolution remembers (16 bit)."""
        channels = 2 * key_heads * self.key_dim + heads * self.value_dim
        return heads * self.key_dim * self.value_dim * self.state_bytes + channels * (self.convolution - 1) * 2

    def tensors(self, hidden: int) -> Iterator[TensorShape]:
        """Weights of one block, without the layer norm in front of it."""
        keys, values = ("state_keys", self.key_heads), ("state_heads", self.value_heads)
        k, v = ("head_dim", self.key_dim), ("head_dim", self.value_dim)
        for name, heads, dim in (("q", keys, k), ("k", keys, k), ("v", values, v)):
            yield TensorShape(f"state_{name}", (("hidden", hidden), heads, dim), "attention")
            taps = ("taps", self.convolution)
            yield TensorShape(f"state_convolution_{name}", (taps, heads, dim), "attention", False)
            if self.convolution_bias:
                yield TensorShape(f"state_convolution_bias_{name}", (heads, dim), "attention", False)
        yield TensorShape("state_z", (("hidden", hidden), values, v), "attention")
        yield TensorShape("state_gates", (("hidden", hidden), values, ("gates", self.gates)), "attention", False)
        if self.scalars:
            yield TensorShape("state_scalars", (values, ("scalars", self.scalars)), "attention", False)
        if rank := self.channel_decay:
            yield TensorShape("state_decay_down", (("hidden", hidden), ("decay_rank", rank)), "attention")
            yield TensorShape("state_decay_up", (("decay_rank", rank), values, k), "attention")
            yield TensorShape("state_decay_bias", (values, k), "attention", False)
        yield TensorShape("state_norm", (values, v) if self.wide_norm else (v,), "attention", False)
        yield TensorShape("state_o", (values, v, ("hidden", hidden)), "attention")


class SparseIndex(Noun):
    """The lightning indexer of DeepSeek sparse attention: it scores the whole context and keeps ``top_k`` tokens.

    Its keys are cached in fp8 with one fp32 scale, whatever the format of the latent (DeepSeek-V3.2 report).
    """

    heads: Positive
    head_dim: Positive
    top_k: Positive
    shared: bool = False
    """This layer has no indexer: it attends the tokens that the last layer with one has picked (GLM-5.2)."""

    @property
    def token_bytes(self) -> int:
        """Bytes of one cached token in one layer."""
        return 0 if self.shared else self.head_dim + 4

    def tensors(self, hidden: int, query_rank: int) -> Iterator[TensorShape]:
        """Weights of the indexer; every rank holds all of them."""
        if self.shared:
            return
        query = (("q_rank", query_rank), ("index_heads", self.heads), ("head_dim", self.head_dim))
        yield TensorShape("index_q", query, "attention")
        yield TensorShape("index_k", (("hidden", hidden), ("index_dim", self.head_dim)), "attention")
        yield TensorShape("index_weights", (("hidden", hidden), ("index_heads", self.heads)), "attention", False)
        yield TensorShape("index_k_norm", (("norm", 2 * self.head_dim),), "attention", False)
