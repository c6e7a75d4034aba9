"""Operations on the compute stream, with their FLOPs and bytes per rank (spec sections 9.1 and 9.2)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sim import shapes
from sim.cut import Dim
from sim.lane import Lane
from sim.model import Attention, GroupedQueryAttention, LatentAttention, LinearAttention, MoeFfn, TensorShape
from sim.program import ComputeOp, Work
from sim.workload import Number


def _features(lane: Lane, dims: tuple[Dim, ...]) -> int:
    size = 1
    for dim in dims:
        size *= lane.size(dim)
    return size


@dataclass(frozen=True, slots=True)
class Elementwise(ComputeOp):
    """Reads its inputs and writes its outputs once."""

    def work(self, lane: Lane) -> Work:
        """Bytes of all inputs and outputs."""
        total: Number = 0
        for value in (*self.inputs, *self.outputs):
            stacked = lane.cut.mesh.count(value.stacked) if value.stacked else 1
            total = total + lane.rows(value) * _features(lane, value.dims) * stacked
        return Work(shapes.Elementwise(), io_bytes=total * lane.activation)


@dataclass(frozen=True, slots=True)
class Lookup(Elementwise):
    """Rows of the embedding table for token ids; ids that another rank's part of the vocabulary has give zeros."""

    weight: TensorShape


@dataclass(frozen=True, slots=True)
class Norm(Elementwise):
    """RMS norm; with a second input, of its sum with the first, which is the second output (fused residual)."""

    weight: TensorShape


@dataclass(frozen=True, slots=True)
class Activate(Elementwise):
    """SwiGLU of (gate, up) halves, or SiLU where there is one half."""


@dataclass(frozen=True, slots=True)
class Gate(Elementwise):
    """What the heads return times the sigmoid of a gate, per element or per head."""


@dataclass(frozen=True, slots=True)
class Merge(Elementwise):
    """Stacked softmax shares to one result, by their statistics."""


@dataclass(frozen=True, slots=True)
class Rescale(Elementwise):
    """A softmax share times its part of the whole, known from everybody's statistics."""


@dataclass(frozen=True, slots=True)
class Add(Elementwise):
    """Sum of two values."""


@dataclass(frozen=True, slots=True)
class Sample(Elementwise):
    """The next token of each row: the largest logit."""


@dataclass(frozen=True, slots=True)
class Project(ComputeOp):
    """One GEMM of a value with one or several weights side by side (QKV, gate and up)."""

    weights: tuple[TensorShape, ...]

    def work(self, lane: Lane) -> Work:
        """2·M·K·N FLOPs; weights, inputs and outputs read or written once."""
        (x,) = self.inputs
        rows, k = lane.rows(x), _features(lane, x.dims)
        n = weight_bytes = 0
        for tensor, y in zip(self.weights, self.outputs, strict=True):
            width = _features(lane, y.dims)
            n += width
            weight_bytes += lane.precision.of(tensor.part, tensor.quantised).bytes(k * width)
        fmt = lane.precision.of(self.weights[0].part, self.weights[0].quantised)
        io = rows * (k + n) * lane.activation
        return Work(shapes.Gemm(rows, n, k), 2 * rows * k * n, fmt.name, weight_bytes, io_bytes=io)


@dataclass(frozen=True, slots=True)
class HeadProject(ComputeOp):
    """A batched GEMM with one small matrix per head (MLA's absorbed W_UK and W_UV)."""

    weight: TensorShape

    def work(self, lane: Lane) -> Work:
        """2·rows·heads·K·N FLOPs for the heads that the value really has."""
        (x,), (y,) = self.inputs, self.outputs
        heads = lane.size(x.dims[0])
        k, n = (size for _, size in self.weight.dims[1:])
        fmt = lane.precision.of(self.weight.part, self.weight.quantised)
        rows = lane.rows(x)
        io = rows * heads * (x.dims[1].size + y.dims[1].size) * lane.activation
        shape = shapes.Gemm(rows, n, k, heads)
        return Work(shape, 2 * rows * heads * k * n, fmt.name, fmt.bytes(heads * k * n), io_bytes=io)


@dataclass(frozen=True, slots=True)
class ExpandLatent(ComputeOp):
    """Prefill of MLA: keys and values of every head from the latent (kv_b), one GEMM over new and cached tokens."""

    attention: LatentAttention
    weights: tuple[TensorShape, ...]

    def work(self, lane: Lane) -> Work:
        """2·rows·latent·heads·(nope + v) FLOPs."""
        (x,) = self.inputs
        a, heads = self.attention, lane.size(self.outputs[0].dims[0])
        cached = lane.reread(a, x.chunk)
        rows, n = lane.rows(x) + cached, heads * (a.nope_dim + a.v_head_dim)
        fmt = lane.precision.of("attention", True)
        k = a.kv_lora_rank
        io = (lane.rows(x) * k + rows * n) * lane.activation
        kv = cached * lane.latent_bytes_per_token(a)
        return Work(shapes.Gemm(rows, n, k), 2 * rows * k * n, fmt.name, fmt.bytes(k * n), kv, io)


@dataclass(frozen=True, slots=True)
class AppendKv(ComputeOp):
    """Rope on queries and keys, and the new tokens' entries written by the rank that owns them."""

    attention: Attention

    def work(self, lane: Lane) -> Work:
        """Query and key rows read and written, cache entries written."""
        moved: Number = 0
        for value in self.inputs:
            moved = moved + lane.rows(value) * _features(lane, value.dims)
        chunk = self.inputs[0].chunk
        written = lane.appended(chunk) * lane.latent_bytes_per_token(self.attention)
        if self.attention.index_bytes:
            written = written + lane.index_appended(chunk) * self.attention.index_bytes
        return Work(shapes.Elementwise(), kv_bytes=written, io_bytes=2 * moved * lane.activation)


@dataclass(frozen=True, slots=True)
class Index(ComputeOp):
    """The keys of the new tokens, scores over the index keys that are here, and the best tokens among them."""

    attention: LatentAttention
    prefill: bool

    def work(self, lane: Lane) -> Work:
        """2·heads·dim FLOPs per (query, key) pair; the index keys are read once."""
        index = self.attention.index
        assert index
        q = self.inputs[0]
        tokens = lane.index_tokens(q.chunk)
        pairs = lane.pairs(None, q.chunk) if self.prefill else tokens * lane.queries(q.chunk)
        io = lane.rows(q) * index.heads * index.head_dim * lane.activation
        flops = 2 * index.heads * index.head_dim * pairs
        return Work(shapes.TokenIndex(lane.sequences(q.chunk).count), flops, "fp8", 0, tokens * index.token_bytes, io)


@dataclass(frozen=True, slots=True)
class Pick(Elementwise):
    """The best tokens among the candidates of all ranks that share a sequence."""


@dataclass(frozen=True, slots=True)
class Recur(ComputeOp):
    """The convolution and the state of linear attention, with the gated norm behind it."""

    linear: LinearAttention

    def work(self, lane: Lane) -> Work:
        """The state is read and written once per step; 6·key·value FLOPs per head and token."""
        v = self.inputs[2]
        a, heads, rows = self.linear, lane.size(self.inputs[2].dims[0]), lane.rows(self.inputs[2])
        state = lane.sequences(v.chunk).count * lane.state(a)
        io: Number = 0
        for value in (*self.inputs, *self.outputs):
            io = io + rows * _features(lane, value.dims) * lane.activation
        flops = 6 * rows * heads * a.key_dim * a.value_dim
        return Work(shapes.Recurrence(lane.sequences(v.chunk).count), flops, "bf16", 0, 2 * state, io)


@dataclass(frozen=True, slots=True)
class Attend(ComputeOp):
    """Attention of local query heads over local tokens; the output carries its softmax statistics."""

    attention: Attention
    prefill: bool

    @property
    def dims(self) -> tuple[int, int]:
        """(query-key, value) dimensions per head as this phase computes them."""
        a = self.attention
        if isinstance(a, GroupedQueryAttention):
            return a.head_dim, a.v_head_dim
        if self.prefill:
            return a.nope_dim + a.rope_dim, a.v_head_dim
        return a.kv_lora_rank + a.rope_dim, a.kv_lora_rank

    def work(self, lane: Lane) -> Work:
        """4·B·q·heads·S·d FLOPs in decode, causal pairs in prefill; what was cached before is read once.

        A few new tokens of a prompt behind a long prefix are what decode sees too, so its kernel may run (not for MLA,
        whose keys and values are expanded in prefill).
        """
        if not self.prefill:
            return self._over_cache(lane)
        work = self._prompt(lane)
        again = self.attention.kind == "gqa" and np.any(lane.reread(self.attention, self.inputs[0].chunk))
        return work._replace(other=self._over_cache(lane)) if again else work

    def _figures(self, lane: Lane) -> tuple[int, Number, str]:
        """Heads of this rank, bytes of queries and results, and the format of the arithmetic."""
        q = self.inputs[0]
        heads = lane.size(q.dims[0])
        io = lane.rows(q) * heads * sum(self.dims) * lane.activation
        return heads, io, lane.precision.attention_arithmetic

    def _prompt(self, lane: Lane) -> Work:
        """New tokens among themselves and with what is cached."""
        chunk, rows, a = self.inputs[0].chunk, lane.rows(self.inputs[0]), self.attention
        heads, io, number = self._figures(lane)
        width = sum(self.dims)
        index = a.index if isinstance(a, LatentAttention) else None
        window = index.top_k if index else a.window
        pairs, span, cached = lane.pairs(window, chunk, a.chunked), lane.longest(window, chunk), lane.reread(a, chunk)
        count = lane.sequences(chunk).count
        flops = 2 * heads * width * pairs
        if a.kind == "gqa":
            keys = lane.kv_heads(a)
            io = io + rows * keys * a.cache_elements * lane.activation
            shape = shapes.PrefillAttention(count, heads, keys, width / 2, rows, pairs, span)
            return Work(shape, flops, number, 0, cached * lane.latent_bytes_per_token(a), io)
        expanded = heads * width * lane.activation  # keys and values of every head, those of cached tokens too
        shape = shapes.LatentPrefill(count, heads, heads, width / 2, rows, pairs, span)
        return Work(shape, flops, number, 0, cached * expanded, io + rows * expanded)

    def _over_cache(self, lane: Lane) -> Work:
        """A few new tokens over what is cached, themselves included."""
        chunk, a = self.inputs[0].chunk, self.attention
        heads, io, number = self._figures(lane)
        sparse = a.index if isinstance(a, LatentAttention) else None
        tokens = lane.selected(sparse.top_k, chunk) if sparse else lane.read_tokens(a, chunk)
        queries = lane.queries(chunk)
        flops = 2 * heads * sum(self.dims) * tokens * queries
        decode = shapes.LatentDecode if a.kind == "mla" else shapes.DecodeAttention
        shape = decode(lane.sequences(chunk).count, heads, lane.kv_heads(a), tokens, queries)
        return Work(shape, flops, number, 0, tokens * lane.latent_bytes_per_token(a), io)


@dataclass(frozen=True, slots=True)
class Experts(ComputeOp):
    """Grouped GEMM of this rank's expert slots on the rows that routing sends it (uniform expectation).

    Rows are shared out evenly over all slots; the distinct slots that ``t`` tokens hit follow
    slots·(1 − (1 − k/slots)^t) (spec section 7). ``imbalance`` multiplies the rows of this rank: the ratio of the
    fullest rank to the mean.
    """

    ffn: MoeFfn
    weights: tuple[TensorShape, ...]
    imbalance: float = 1.0

    def work(self, lane: Lane) -> Work:
        """6·rows·H·F FLOPs; the weights of the slots that are hit."""
        x, dim = self.inputs[0], lane.cut.dim("experts", self.ffn.experts)
        held = lane.size(dim)
        tokens = lane.rows_over((), x.chunk)  # every token of the group
        choices = self.ffn.top_k
        rows = tokens * choices * held / dim.size * self.imbalance
        hit = held * (1 - (1 - choices / dim.size) ** tokens)
        width = lane.size(lane.cut.dim("expert_ffn", self.ffn.width))
        hidden = x.dims[0].size
        halves = 3 if self.ffn.gated else 2
        fmt = lane.precision.of("routed_experts", True)
        elements = halves * hidden * width
        io = rows * (2 * hidden + halves * width) * lane.activation
        exchanged = self.inputs[1].tokens != x.tokens  # the router saw other tokens than arrive here
        slots = rows if exchanged else tokens * choices
        shape = shapes.GroupedGemm(rows, hit, slots, hidden, width, held, dim.size, choices)
        return Work(shape, 2 * rows * elements, fmt.name, hit * fmt.bytes(elements), 0, io)


@dataclass(frozen=True, slots=True)
class Host(ComputeOp):
    """What the engine does between two steps on the host: scheduling, sampling bookkeeping, graph launch."""

    def work(self, lane: Lane) -> Work:
        """No FLOPs; a share per sequence."""
        return Work(shapes.Host(lane.sequences().count))
