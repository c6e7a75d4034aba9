"""The compute half of the builder: writes a program and type-checks it while it is written.

A strategy calls these methods in the order in which a rank issues the operations; each returns the value that a
rank then holds. A collective over axes that do not exist (degree 1) is not issued at all, so a strategy is written
once for all degrees. ``ProgramError`` says which operation was asked to work on a value that does not allow it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sim import ops_compute as compute
from sim.cut import Cut, Dim
from sim.errors import ProgramError
from sim.model import LatentAttention, Layer, Model, MoeFfn, TensorShape
from sim.program import DECODING, PROMPTS, Alias, Op, Segment, Value
from sim.workload import Phase


def show_axes(axes: tuple[str, ...]) -> str:
    """Axes as an error names them."""
    return "·".join(axes) if axes else "no axis"


def show_dim(dim: Dim) -> str:
    """A dimension as an error names it."""
    return f"{dim.size} {dim.role} split over {show_axes(dim.axes)}"


class ComputeBuilder:
    """Collects the operations of one segment: the compute half.

    Parameters
    ----------
    model, cut, phase
        What is computed, how it is cut, and in which phase.
    layer
        The layer this segment is for, or None outside the layers.
    pieces
        Into how many pieces the attention phase cuts the batch.
    """

    def __init__(self, model: Model, cut: Cut, phase: Phase, layer: Layer | None = None, pieces: int = 1):
        self.model, self.cut, self.phase, self.layer = model, cut, phase, layer
        self.pieces = pieces
        self.mesh = cut.mesh
        self.ops: list[Op] = []
        self._section = ""
        self.output_gate: Value | None = None
        """The gate that the attention's output waits for."""
        self.tensors = {t.name: t for t in model.tensors(layer)}

    # -- bookkeeping -------------------------------------------------------------------------------------

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        """Operations issued inside are called ``name.operation``."""
        before, self._section = self._section, f"{name}."
        yield
        self._section = before

    def named(self, name: str) -> str:
        """The name of an operation in this section."""
        return self._section + name

    def fail(self, op: str, why: str) -> ProgramError:
        """The error of an operation that does not type-check."""
        return ProgramError(f"{self.named(op)}: {why}")

    def whole(self, op: str, *values: Value) -> None:
        """Refuse values that still owe something. Raises ``ProgramError``."""
        for v in values:
            if not v.whole:
                owed = [
                    f"{what} over {'·'.join(axes)}"
                    for what, axes in (
                        ("a sum", v.partial),
                        ("a softmax merge", v.shares),
                        ("a merge of stacked shares", v.stacked),
                    )
                    if axes
                ]
                raise self.fail(op, f"{v.name} still owes {' and '.join(owed)}")

    def segment(self, entry: tuple[Value, ...], exit_: tuple[Value, ...]) -> Segment:
        """What was written, as a segment. Raises ``ProgramError`` if a value is used that nobody made."""
        known = {(v.name, v.chunk) for v in entry}
        for op in self.ops:
            for v in op.inputs:
                if (v.name, v.chunk) not in known:
                    raise ProgramError(f"{op.name}: nobody made {v.name} before it is read")
            for v in op.outputs:
                if (v.name, v.chunk) in known:
                    raise ProgramError(f"{op.name}: {v.name} is made twice")
                known.add((v.name, v.chunk))
        return Segment(tuple(self.ops), entry, exit_)

    def value(self, name: str, tokens: tuple[str, ...], *dims: Dim, only: tuple[tuple[str, int], ...] = ()) -> Value:
        """A value that comes from outside this segment."""
        return Value(name, self.cut.trim(tokens), dims, only=only)

    def hidden(self, name: str, tokens: tuple[str, ...] = ()) -> Value:
        """A hidden state from outside this segment, with tokens split over ``tokens``."""
        return self.value(name, tokens, Dim("hidden", self.model.hidden))

    def split(self, x: Value, parts: int) -> list[Value]:
        """The batch in ``parts`` pieces by sequence; no data moves."""
        return [x] if parts == 1 else self._pieces(x, [(i, parts) for i in range(parts)])

    def by_phase(self, x: Value) -> list[Value]:
        """What decodes and what belongs to prompts, of a mixed step; no data moves."""
        return self._pieces(x, [DECODING, PROMPTS])

    def _pieces(self, x: Value, which: list[tuple[int, int]]) -> list[Value]:
        pieces = tuple(x._replace(chunk=(*x.chunk, one)) for one in which)
        self.ops.append(Alias(self.named("split"), (x,), pieces))
        return list(pieces)

    def prefills(self, x: Value) -> bool:
        """Whether the tokens of a value belong to prompts."""
        return self.phase == "prefill" or x.chunk[-1:] == (PROMPTS,)

    def decodes(self, x: Value) -> bool:
        """Whether none of them do."""
        return self.phase == "decode" or x.chunk[-1:] == (DECODING,)

    def concat(self, parts: list[Value]) -> Value:
        """Pieces of a batch put together again; no data moves."""
        if len(parts) == 1:
            return parts[0]
        joined = parts[0]._replace(chunk=parts[0].chunk[:-1])
        of = parts[0].chunk[-1][1]
        expected = [joined._replace(chunk=(*joined.chunk, (i, of))) for i in range(len(parts))]
        if [p._replace(name=joined.name) for p in parts] != expected or len(parts) != (of or 2):
            raise self.fail("concat", "the pieces are not the pieces of one batch in order")
        self.ops.append(Alias(self.named("concat"), tuple(parts), (joined,)))
        return joined

    # -- compute -----------------------------------------------------------------------------------------

    def tokens(self, split: tuple[str, ...]) -> Value:
        """Ids of the tokens of this step."""
        y = self.value("ids", split, Dim("id", 1))
        self.ops.append(Alias(self.named("tokens"), (), (y,)))
        return y

    def embed(self, ids: Value) -> Value:
        """Hidden states of token ids; a sum is owed over the axes that split the vocabulary."""
        table = self.tensors["embedding"]
        axes = self.cut.axes("vocab")
        y = self.hidden("embedded", ids.tokens)._replace(
            partial=self.mesh.real(axes), only=self.cut.holds(table), chunk=ids.chunk
        )
        self.ops.append(compute.Lookup(self.named("lookup"), (ids,), (y,), table))
        return y

    def zeros(self, like: Value) -> Value:
        """An empty residual for the first layer."""
        y = like._replace(name="zeros")
        self.ops.append(Alias("zeros", (), (y,)))
        return y

    def norm(self, x: Value, weight: str) -> Value:
        """RMS or layer norm."""
        self.whole("norm", x)
        if any(d.axes for d in x.dims):
            raise self.fail("norm", f"{x.name} is split over its features")
        y = x._replace(name=f"{x.name}.norm")
        self._held("norm", self.tensors[weight], x)
        self.ops.append(compute.Norm(self.named("norm"), (x,), (y,), self.tensors[weight]))
        return y

    def add_norm(self, x: Value, residual: Value | None, weight: str) -> tuple[Value, Value]:
        """Residual addition fused with the norm after it: (normed, new residual)."""
        if residual is None:
            return self.norm(x, weight), x
        self.whole("add_norm", x, residual)
        if (x.tokens, x.dims, x.chunk, x.only) != (residual.tokens, residual.dims, residual.chunk, residual.only):
            raise self.fail("add_norm", f"{x.name} and {residual.name} are not split alike")
        self._held("add_norm", self.tensors[weight], x)
        total = x._replace(name=f"{x.name}.residual")
        y = x._replace(name=f"{x.name}.norm")
        self.ops.append(compute.Norm(self.named("add_norm"), (x, residual), (y, total), self.tensors[weight]))
        return y, total

    def _held(self, op: str, tensor: TensorShape, x: Value) -> None:
        missing = [f"{axis}={at}" for axis, at in self.cut.holds(tensor) if (axis, at) not in x.only]
        if missing:
            raise self.fail(op, f"{tensor.name} is held only where {', '.join(missing)}, but {x.name} is everywhere")

    def project(self, x: Value, weights: list[str], name: str, owed: bool = False) -> list[Value]:
        """One GEMM with one or several weights; a sum is owed over the axes that split what is contracted.

        With ``owed`` a sum that ``x`` owes is still owed afterwards, because a product is linear.
        """
        self.whole(name, x._replace(partial=()) if owed else x)
        mixer = self.layer.mixer if self.layer else None
        made, shapes = [], []
        for weight in weights:
            tensor = self.tensors[weight]
            self._held(name, tensor, x)
            dims = [self.cut.dim(role, size, mixer) for role, size in tensor.dims]
            if dims[-1].role == x.dims[0].role:
                dims.reverse()  # embedding tables list the vocabulary first
            taken, out = dims[: len(x.dims)], dims[len(x.dims) :]
            for mine, theirs in zip(x.dims, taken, strict=True):
                if mine.size != theirs.size or mine.axes != theirs.axes:
                    raise self.fail(name, f"{x.name} has {show_dim(mine)} where {weight} has {show_dim(theirs)}")
            partial = x.partial or self.mesh.real(tuple(a for d in taken for a in d.axes))
            renamed = tuple(d._replace(role="heads") if d.role.endswith("_heads") else d for d in out)
            made.append(x._replace(name=self.named(weight), dims=renamed, partial=partial))
            shapes.append(tensor)
        if len({y.partial for y in made}) > 1:
            raise self.fail(name, "the weights are not cut alike")
        self.ops.append(compute.Project(self.named(name), (x,), tuple(made), tuple(shapes)))
        return made

    def per_head(self, x: Value, weight: str, out: int, name: str) -> Value:
        """One small GEMM per head; ``out`` features come out."""
        self.whole(name, x._replace(shares=()))  # linear in each head's values, so a share stays a share
        tensor = self.tensors[weight]
        held = self.cut.dim(*tensor.dims[0])
        if held.axes != x.dims[0].axes[: len(held.axes)]:
            raise self.fail(name, f"{x.name} has {show_dim(x.dims[0])} where {weight} has {show_dim(held)}")
        y = x._replace(name=self.named(weight), dims=(x.dims[0], Dim("head_dim", out)))
        self.ops.append(compute.HeadProject(self.named(name), (x,), (y,), tensor))
        return y

    def append_kv(self, *values: Value) -> tuple[Value, ...]:
        """Rope, and the cache entries of the new tokens written by their owners. Returns the values after rope."""
        assert self.layer
        assert self.layer.attention
        self.whole("append_kv", *values)
        for v in values:
            self._own_sequences("append_kv", v)
        rotated = tuple(v._replace(name=f"{v.name}.rope") for v in values)
        self.ops.append(compute.AppendKv(self.named("append_kv"), values, rotated, self.layer.attention))
        return rotated

    def _own_sequences(self, op: str, x: Value) -> None:
        if x.tokens != self.cut.sequence_axes:
            raise self.fail(op, f"{x.name} does not have exactly the tokens of this rank's sequences")

    def attend(self, q: Value, out: int, *expanded: Value) -> Value:
        """Local query heads over local tokens; a softmax merge is owed over the axes that split the tokens.

        ``expanded`` are keys and values that are not in the cache in this form (MLA prefill).
        """
        assert self.layer
        assert self.layer.attention
        self.whole("attend", q)
        self._own_sequences("attend", q)
        expected = self.cut.axes("attention_heads")
        if q.dims[0].axes != expected:
            raise self.fail(
                "attend", f"{q.name} has {show_dim(q.dims[0])}; the cache's KV heads serve {show_axes(expected)}"
            )
        shares = self.mesh.real(self.cut.kv_axes)
        y = q._replace(name=f"{q.name}.attended", dims=(q.dims[0], Dim("head_dim", out)), shares=shares)
        prefill = self.prefills(q)
        name = "prefill_core" if prefill and self.phase == "mixed" else "core"
        self.ops.append(compute.Attend(self.named(name), (q, *expanded), (y,), self.layer.attention, prefill))
        return y

    def expand_latent(self, latent: Value, attention: LatentAttention) -> Value:
        """Keys and values of this rank's heads from the latent (MLA prefill)."""
        self.whole("expand_latent", latent)
        heads = self.cut.dim("attention_heads", attention.query_heads)
        y = latent._replace(
            name=self.named("kv"), dims=(heads, Dim("head_dim", attention.nope_dim + attention.v_head_dim))
        )
        weights = (self.tensors["uk"], self.tensors["uv"])
        self.ops.append(compute.ExpandLatent(self.named("kv_b"), (latent,), (y,), attention, weights))
        return y

    def index(self, queries: Value, keys: Value, weights: Value) -> Value:
        """The best tokens of the index keys that are here: (score, token) of each; a share where they are split.

        Which tokens a rank then attends lies in its memory, like its cache, until the next index picks others.
        """
        assert self.layer
        assert isinstance(self.layer.attention, LatentAttention)
        assert self.layer.attention.index
        self.whole("index", queries, keys, weights)
        for x in (queries, keys):
            self._own_sequences("index", x)
        shares = () if self.cut.whole_index else self.mesh.real(self.cut.kv_axes)
        dims = (Dim("candidates", self.layer.attention.index.top_k), Dim("pair", 2))
        found = queries._replace(name=self.named("candidates"), dims=dims, shares=shares)
        prefill = self.prefills(queries)
        name = "prefill_index" if prefill and self.phase == "mixed" else "index"
        inputs = (queries, keys, weights)
        self.ops.append(compute.Index(self.named(name), inputs, (found,), self.layer.attention, prefill))
        return found

    def pick(self, candidates: Value) -> None:
        """The best of everybody's candidates are what attention then reads."""
        if candidates.shares:
            raise self.fail("pick", f"{candidates.name} are those of one rank, not of all that share the sequence")
        if candidates.stacked:
            picked = candidates._replace(name=self.named("picked"), stacked=())
            self.ops.append(compute.Pick(self.named("pick"), (candidates,), (picked,)))

    def recur(self, q: Value, k: Value, v: Value, z: Value, gates: Value, *decay: Value) -> Value:
        """State of linear attention: convolution, update, read-out and gated norm."""
        assert self.layer
        assert self.layer.linear
        self.whole("recur", q, k, v, z, gates, *decay)
        for x in (q, v):
            self._own_sequences("recur", x)
        y = v._replace(name=self.named("read"))
        self.ops.append(compute.Recur(self.named("recur"), (q, k, v, z, gates, *decay), (y,), self.layer.linear))
        return y

    def merge(self, x: Value) -> Value:
        """Stacked softmax shares merged by their statistics."""
        if not x.stacked:
            return x
        y = x._replace(name=f"{x.name}.merged", stacked=())
        self.ops.append(compute.Merge(self.named("merge"), (x,), (y,)))
        return y

    def rescale(self, x: Value, statistics: Value | None) -> Value:
        """A softmax share scaled by everybody's statistics: what is left is a sum."""
        if not x.shares:
            return x
        if statistics is None or statistics.stacked != x.shares:
            raise self.fail("rescale", f"{x.name} needs the statistics of {'·'.join(x.shares)}")
        y = x._replace(name=f"{x.name}.rescaled", shares=(), partial=x.shares)
        self.ops.append(compute.Rescale(self.named("rescale"), (x, statistics), (y,)))
        return y

    def activate(self, x: Value) -> Value:
        """SwiGLU or another activation: (halves, width) in, (width,) out."""
        self.whole("activation", x)
        y = x._replace(name=f"{x.name}.activated", dims=x.dims[-1:])
        self.ops.append(compute.Activate(self.named("activation"), (x,), (y,)))
        return y

    def gate(self, x: Value, gate: Value) -> Value:
        """Each head's output times the sigmoid of its gate."""
        self.whole("gate", x, gate)
        if (x.dims[0], x.tokens, x.chunk) != (gate.dims[0], gate.tokens, gate.chunk):
            raise self.fail("gate", f"{x.name} has {show_dim(x.dims[0])}, {gate.name} {show_dim(gate.dims[0])}")
        y = x._replace(name=f"{x.name}.gated")
        self.ops.append(compute.Gate(self.named("gate"), (x, gate), (y,)))
        return y

    def add(self, x: Value, y: Value) -> Value:
        """Sum of two values that owe the same."""
        if x._replace(name="", dims=()) != y._replace(name="", dims=()) or x.dims != y.dims:
            raise self.fail("add", f"{x.name} and {y.name} are not split alike or owe different sums")
        total = x._replace(name=f"{x.name}+{y.name}")
        self.ops.append(compute.Add(self.named("add"), (x, y), (total,)))
        return total

    def experts(self, x: Value, routing: Value, ffn: MoeFfn, imbalance: float) -> Value:
        """Routed experts of this rank on the rows routed to it; a sum is owed over all axes that cut the experts."""
        self.whole("experts", x, routing)
        roles = ("experts", "expert_ffn")
        axes = tuple(a for role in roles for a in self.cut.axes(role))
        y = x._replace(name=self.named("routed"), partial=self.mesh.real(axes))
        weights = tuple(self.tensors[f"experts_{half}"] for half in ("gate_up", "down"))
        self.ops.append(compute.Experts(self.named("experts"), (x, routing), (y,), ffn, weights, imbalance))
        return y

    def last_tokens(self, x: Value) -> Value:
        """The rows that the LM head needs: all in decode, the last one of each prompt in prefill."""
        y = x._replace(name=f"{x.name}.last", per_sequence=self.phase != "decode")
        self.ops.append(Alias(self.named("last"), (x,), (y,)))
        return y

    def sample(self, logits: Value) -> None:
        """Next token of each row."""
        self.whole("sample", logits)
        ids = logits._replace(name="sampled", dims=(Dim("id", 1),))
        self.ops.append(compute.Sample(self.named("sample"), (logits,), (ids,)))
        self.ops.append(compute.Host("host", (ids,), ()))
