"""The model: what its layers compute and which tensors they hold.

A tensor lists its dimensions by *role*. A strategy says which role is split over which axis of its mesh,
so this module knows nothing about parallelism, and the placement knows nothing about attention.

Roles of dimensions that can be split: ``q_heads`` (query projection), ``kv_heads`` (key and value
projection and the cache), ``uk_heads`` and ``uv_heads`` (MLA's absorbed halves of kv_b), ``o_heads`` (input
of the output projection), ``state_heads`` and ``state_keys`` (heads of linear attention), ``ffn``, ``experts``,
``expert_ffn``, ``shared_ffn``, ``vocab``. Any other is never split.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Annotated, Literal

from pydantic import Field, model_validator

from sim.feed_forward import DenseFfn as DenseFfn
from sim.feed_forward import MoeFfn as MoeFfn
from sim.linear import LinearAttention as LinearAttention
from sim.linear import SparseIndex as SparseIndex
from sim.noun import Noun
from sim.tensors import Part as Part
from sim.tensors import Positive
from sim.tensors import TensorShape as TensorShape

MOST_LAYERS = 10_000


class GroupedQueryAttention(Noun):
    """MHA, GQA and MQA: each KV head serves ``query_heads / kv_heads`` query heads.

    ``window`` keeps only the last that many tokens of the cache. With ``chunked`` a query sees only those of its own
    chunk of ``window`` tokens (Llama-4); the slots of a whole chunk stay a sequence's own.
    """

    kind: Literal["gqa"] = "gqa"
    query_heads: Positive
    kv_heads: Positive
    head_dim: Positive
    v_head_dim: Positive
    window: Positive | None = None
    chunked: bool = False
    shared_kv: bool = False
    """K and V come from one projection (Gemma-4's attention_k_eq_v). Both are cached: only K is rotated."""
    qkv_bias: bool = False
    o_bias: bool = False
    qk_norm: bool = False
    wide_qk_norm: bool = False
    """The norm of Q and K has weights for every head, not one head's worth for all (MiniMax-M2, OLMo-2)."""
    output_gate: Literal["element", "head"] | None = None
    """A learned gate on what each head returns, from the block's input: per element (Qwen3-Next) or head (Step-3)."""
    sinks: bool = False
    """One learned attention-sink logit per query head (gpt-oss)."""

    @model_validator(mode="after")
    def _groups(self) -> GroupedQueryAttention:
        if self.query_heads % self.kv_heads:
            raise ValueError(f"{self.query_heads} query heads are not a multiple of {self.kv_heads} KV heads")
        if self.chunked and not self.window:
            raise ValueError("chunked attention needs the length of a chunk: window")
        if self.shared_kv and self.head_dim != self.v_head_dim:
            raise ValueError("K and V can be shared only when their head dimensions are equal")
        return self

    @property
    def label(self) -> str:
        """MHA, GQA or MQA."""
        return {self.query_heads: "MHA", 1: "MQA"}.get(self.kv_heads, "GQA")

    @property
    def served_heads(self) -> int:
        """Heads that the KV heads are shared out to."""
        return self.query_heads

    @property
    def cached_heads(self) -> int:
        """Heads of the KV cache: the dimension that tensor parallelism can split."""
        return self.kv_heads

    @property
    def cache_elements(self) -> int:
        """Elements that one token and one cached head store in one layer."""
        return self.head_dim + self.v_head_dim

    @property
    def index_bytes(self) -> int:
        """No index picks tokens."""
        return 0

    def tensors(self, hidden: int) -> Iterator[TensorShape]:
        """Weights of one attention block, without the layer norm in front of it."""
        q, kv, d, v = self.query_heads, self.kv_heads, self.head_dim, self.v_head_dim
        yield TensorShape("q", (("hidden", hidden), ("q_heads", q), ("head_dim", d)), "attention")
        yield TensorShape("k", (("hidden", hidden), ("kv_heads", kv), ("head_dim", d)), "attention")
        if not self.shared_kv:
            yield TensorShape("v", (("hidden", hidden), ("kv_heads", kv), ("head_dim", v)), "attention")
        yield TensorShape("o", (("o_heads", q), ("head_dim", v), ("hidden", hidden)), "attention")
        if self.qkv_bias:
            yield TensorShape("q_bias", (("q_heads", q), ("head_dim", d)), "attention", False)
            yield TensorShape("k_bias", (("kv_heads", kv), ("head_dim", d)), "attention", False)
            if not self.shared_kv:
                yield TensorShape("v_bias", (("kv_heads", kv), ("head_dim", v)), "attention", False)
        if self.o_bias:
            yield TensorShape("o_bias", (("hidden", hidden),), "attention", False)
        if self.qk_norm:
            heads = q + kv if self.wide_qk_norm else 2
            yield TensorShape("qk_norm", (("norm", heads * d),), "attention", False)
        if self.output_gate:
            gate = (("o_heads", q), ("gate", v if self.output_gate == "element" else 1))
            yield TensorShape("o_gate", (("hidden", hidden), *gate), "attention")
        if self.sinks:
            yield TensorShape("sinks", (("q_heads", q),), "attention", False)


class LatentAttention(Noun):
    """Multi-head latent attention (DeepSeek-V2 paper, section 2.1): one latent per token serves all heads."""

    kind: Literal["mla"] = "mla"
    query_heads: Positive
    q_lora_rank: Positive | None
    kv_lora_rank: Positive
    rope_dim: Positive
    nope_dim: Positive
    v_head_dim: Positive
    index: SparseIndex | None = None
    """Attend only the tokens that an indexer picks (DeepSeek sparse attention)."""

    @model_validator(mode="after")
    def _index_reads_compressed_queries(self) -> LatentAttention:
        if self.index and not self.q_lora_rank:
            raise ValueError("an index reads compressed queries: q_lora_rank is missing")
        return self

    @property
    def label(self) -> str:
        """The field's name of this kind."""
        return "MLA"

    @property
    def window(self) -> None:
        """The whole context is attended."""
        return

    @property
    def chunked(self) -> bool:
        """No chunks either."""
        return False

    @property
    def served_heads(self) -> int:
        """Heads that the one latent serves."""
        return self.query_heads

    @property
    def cached_heads(self) -> int:
        """One latent head: tensor parallelism can only repeat it."""
        return 1

    @property
    def cache_elements(self) -> int:
        """Elements that one token stores in one layer: the latent and the rope key."""
        return self.kv_lora_rank + self.rope_dim

    @property
    def index_bytes(self) -> int:
        """Bytes of the index keys that one token stores in one layer, on every rank."""
        return self.index.token_bytes if self.index else 0

    def tensors(self, hidden: int) -> Iterator[TensorShape]:
        """Weights of one attention block, without the layer norm in front of it."""
        h, c = self.query_heads, self.kv_lora_rank
        qk = self.nope_dim + self.rope_dim
        q_in, q_role = (self.q_lora_rank, "q_rank") if self.q_lora_rank else (hidden, "hidden")
        if self.q_lora_rank:
            yield TensorShape("q_a", (("hidden", hidden), ("q_rank", self.q_lora_rank)), "attention")
            yield TensorShape("q_a_norm", (("q_rank", self.q_lora_rank),), "attention", False)
        yield TensorShape("q_b", ((q_role, q_in), ("q_heads", h), ("head_dim", qk)), "attention")
        yield TensorShape("kv_a", (("hidden", hidden), ("latent", c + self.rope_dim)), "attention")
        yield TensorShape("kv_a_norm", (("latent", c),), "attention", False)
        yield TensorShape("uk", (("uk_heads", h), ("head_dim", self.nope_dim), ("latent", c)), "attention")
        yield TensorShape("uv", (("uv_heads", h), ("latent", c), ("head_dim", self.v_head_dim)), "attention")
        yield TensorShape("o", (("o_heads", h), ("head_dim", self.v_head_dim), ("hidden", hidden)), "attention")
        if self.index and self.q_lora_rank:
            yield from self.index.tensors(hidden, self.q_lora_rank)


Attention = Annotated[GroupedQueryAttention | LatentAttention, Field(discriminator="kind")]
Mixer = GroupedQueryAttention | LatentAttention | LinearAttention
"""What mixes the tokens of a sequence in a layer."""
Ffn = Annotated[DenseFfn | MoeFfn, Field(discriminator="kind")]


class Layer(Noun):
    """One transformer layer: norm, attention, norm, feed-forward. ``None`` where the block is left out."""

    attention: Attention | None = None
    linear: LinearAttention | None = None
    """A block that keeps a state instead of a cache, in the place of ``attention``."""
    ffn: Ffn | None = None
    extra_norms: Annotated[int, Field(ge=0, le=8)] = 0
    """Norms of hidden size beyond the two in front of the blocks (Gemma's post-norms)."""

    @model_validator(mode="after")
    def _not_empty(self) -> Layer:
        if self.attention is None and self.linear is None and self.ffn is None:
            raise ValueError("a layer needs an attention block or a feed-forward block")
        if self.attention and self.linear:
            raise ValueError("a layer has attention with a cache or with a state, not both")
        return self

    @property
    def mixer(self) -> Mixer | None:
        """The attention of this layer, with a cache or with a state."""
        return self.attention or self.linear

    def tensors(self, hidden: int) -> Iterator[TensorShape]:
        """All weights of one layer of this kind."""
        if self.mixer:
            yield TensorShape("attn_norm", (("hidden", hidden),), "attention", False)
            yield from self.mixer.tensors(hidden)
        if self.ffn:
            part: Part = "dense_ffn" if self.ffn.kind == "dense" else "routed_experts"
            yield TensorShape("ffn_norm", (("hidden", hidden),), part, False)
            yield from self.ffn.tensors(hidden)
        if self.extra_norms:
            part = "attention" if self.mixer else "dense_ffn"
            yield TensorShape("extra_norms", (("norms", self.extra_norms), ("hidden", hidden)), part, False)


class LayerRun(Noun):
    """``count`` equal layers in a row."""

    count: Positive
    layer: Layer


class Model(Noun):
    """A decoder-only transformer, without multi-token-prediction heads and without vision parts.

    Layers are numbered in this order: ``head``, then ``pattern`` as often as ``period`` says (most models
    have no head and a period of 1), then ``tail``.
    """

    name: str
    hf_id: str = ""
    hidden: Positive
    vocab: Positive
    tied_embeddings: bool = False
    head: tuple[LayerRun, ...] = ()
    """Layers before the first repetition of the pattern."""
    pattern: tuple[LayerRun, ...] = Field(min_length=1)
    period: Positive = 1
    tail: tuple[LayerRun, ...] = ()
    """Layers after the last repetition of the pattern."""
    max_context: Positive | None = None
    quantisation: str | None = None
    """The format the checkpoint ships its linear weights in, if it says so."""
    unquantised: tuple[Part, ...] = ()
    """Parts whose linear weights the checkpoint leaves in 16 bit all the same (gpt-oss: attention)."""
    source: str = ""
    not_modelled: tuple[str, ...] = ()
    """What of this model the simulator leaves out; printed with every result."""

    @model_validator(mode="after")
    def _depth(self) -> Model:
        repeated = sum(run.count for run in self.pattern) * self.period
        total = repeated + sum(run.count for run in (*self.head, *self.tail))
        if total > MOST_LAYERS:
            raise ValueError(f"{total:,} layers are more than {MOST_LAYERS:,}")
        return self

    @cached_property
    def runs(self) -> tuple[tuple[int, Layer], ...]:
        """(count, layer) of equal layers in a row, from first to last; equal neighbours are joined."""
        joined: list[tuple[int, Layer]] = []
        for run in (*self.head, *self.pattern * self.period, *self.tail):
            if joined and joined[-1][1] == run.layer:
                joined[-1] = (joined[-1][0] + run.count, run.layer)
            else:
                joined.append((run.count, run.layer))
        return tuple(joined)

    @cached_property
    def kinds(self) -> dict[Layer, int]:
        """How many layers there are of each kind."""
        counts: dict[Layer, int] = {}
        for count, layer in self.runs:
            counts[layer] = counts.get(layer, 0) + count
        return counts

    @cached_property
    def layers(self) -> int:
        """Number of layers."""
        return sum(count for count, _ in self.runs)

    def tensors(self, layer: Layer | None = None) -> tuple[TensorShape, ...]:
        """Weights of one layer of a kind, or of what is outside the layers."""
        found = self._tensors.get(layer)
        if found is None:
            found = tuple(layer.tensors(self.hidden) if layer else self.outer_tensors())
            self._tensors[layer] = found
        return found

    @cached_property
    def _tensors(self) -> dict[Layer | None, tuple[TensorShape, ...]]:
        return {}

    def outer_tensors(self) -> Iterator[TensorShape]:
        """Weights outside the layers: embedding, final norm, LM head (absent when tied)."""
        table = (("vocab", self.vocab), ("hidden", self.hidden))
        yield TensorShape("embedding", table, "embeddings", False)
        yield TensorShape("final_norm", (("hidden", self.hidden),), "embeddings", False)
        if not self.tied_embeddings:
            yield TensorShape("lm_head", table, "embeddings", False)

    @cached_property
    def parameters(self) -> int:
        """Parameters of the whole model."""
        inner = sum(n * t.elements for layer, n in self.kinds.items() for t in self.tensors(layer))
        return inner + sum(t.elements for t in self.tensors())
