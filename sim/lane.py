"""A lane: the figures of one rank (or of a class of equal ranks) that operations ask for.

Extents are numbers, or arrays with one entry per point of a sweep; every method is a few integer operations and
its answer is kept, because all layers ask the same questions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sim.cut import Cut, Dim
from sim.model import Attention, LinearAttention
from sim.program import Chunk, CommunicationOp, Value
from sim.workload import Group, Number, Precision, Sequences, larger, smaller


class Lane:
    """What rank ``rank`` works on in one step.

    Parameters
    ----------
    rank
        Rank inside the stage.
    cut
        The strategy's cut.
    sequences
        All sequences of the instance, before they are split.
    precision
        Formats by use.
    generated
        As in ``Workload``.
    micro
        (index, of): only this micro-batch of each group's sequences.
    copies
        Token copies that an expert exchange sends off this rank under a given routing; without it, expectations.
    """

    def __init__(
        self,
        rank: int,
        cut: Cut,
        sequences: Sequences,
        precision: Precision,
        generated: int = 0,
        copies: Callable[[CommunicationOp], int] | None = None,
        micro: tuple[int, Number] | None = None,
    ):
        self.rank = rank
        self.cut = cut
        self.generated = generated
        self.copies = copies
        self.micro = micro
        self.precision = precision
        self.activation = precision.activation_bytes
        self._all = sequences
        self._groups = cut.sequence_groups
        self._mine = cut.mesh.index(rank, cut.sequence_axes)
        self._kv_ranks = cut.kv_ranks
        self._kv_rank = cut.mesh.index(rank, cut.kv_axes)
        self._kept: dict[Any, Any] = {}

    @property
    def even(self) -> bool:
        """Whether all sequences of the instance have one length, so that groups differ by one sequence at most."""
        return len(self._all.groups) == 1

    def size(self, dim: Dim) -> int:
        """Local length of a feature dimension."""
        if not dim.axes:
            return dim.size
        key = dim[1:]
        if key not in self._kept:
            self._kept[key] = self.cut.range(dim, self.rank)[1]
        found: int = self._kept[key]
        return found

    def sequences(self, chunk: Chunk = (), group: int | None = None) -> Sequences:
        """The sequences of this rank's group (or of another one), or the part of them in ``chunk``."""
        key = ("sequences", chunk, group)
        if key not in self._kept:
            share = self._all.share(self._mine if group is None else group, self._groups)
            if self.micro:
                share = share.share(*self.micro)
            for index, of in chunk:
                share = share.share(index, of)
            self._kept[key] = share
        found: Sequences = self._kept[key]
        return found

    def rows(self, value: Value) -> Number:
        """Token rows of a value on this rank."""
        return self.rows_over(value.tokens, value.chunk, value.per_sequence)

    def rows_over(self, tokens: tuple[str, ...], chunk: Chunk = (), per_sequence: bool = False) -> Number:
        """Token rows on this rank when tokens are split over the axes ``tokens``."""
        key = ("rows", tokens, chunk, per_sequence)
        if key not in self._kept:
            self._kept[key] = self._rows(tokens, chunk, per_sequence)
        return self._kept[key]

    def _rows(self, tokens: tuple[str, ...], chunk: Chunk, per_sequence: bool) -> Number:
        mesh, split = self.cut.mesh, self.cut.sequence_axes
        if all(axis in tokens for axis in split):
            rows = self._new_tokens(self.sequences(chunk), per_sequence)
        elif not chunk and not self.micro:
            rows = self._new_tokens(self._all, per_sequence)
        else:
            rows = sum(self._new_tokens(self.sequences(chunk, g), per_sequence) for g in range(self._groups))
        sliced = tuple(a for a in tokens if a not in split)
        if sliced:
            of = mesh.count(sliced)
            rows = rows // of + (mesh.index(self.rank, sliced) < rows % of)
        return rows

    def _new_tokens(self, sequences: Sequences, per_sequence: bool) -> Number:
        return sum(g.count * (1 if per_sequence and g.prompt else g.new) for g in sequences.groups)

    def kv_tokens(self, window: int | None, chunk: Chunk = ()) -> Number:
        """Cached tokens that this rank keeps, and reads in a decode step, summed over its sequences."""
        key = ("kv", window, chunk)
        if key not in self._kept:
            self._kept[key] = sum(g.count * self._held(g, window) for g in self.sequences(chunk).groups)
        return self._kept[key]

    def read_tokens(self, attention: Attention, chunk: Chunk = ()) -> Number:
        """Cached tokens that some query of a decode step sees on this rank: of chunks, those of the current one."""
        size = attention.window
        if not attention.chunked or size is None:
            return self.kv_tokens(size, chunk)
        key = ("read", size, chunk)
        if key not in self._kept:
            total: Number = 0
            for g in self.sequences(chunk).groups:
                seen = g.length - (g.length - g.new) // size * size
                total = total + g.count * (self._first(g.length) - self._first(g.length, seen))
            self._kept[key] = total
        return self._kept[key]

    def index_tokens(self, chunk: Chunk = ()) -> Number:
        """Tokens whose index keys this rank keeps, summed over its sequences."""
        return self.sequences(chunk).tokens if self.cut.whole_index else self.kv_tokens(None, chunk)

    def index_appended(self, chunk: Chunk = ()) -> Number:
        """Tokens whose index keys this rank writes in this step."""
        return self._new_tokens(self.sequences(chunk), False) if self.cut.whole_index else self.appended(chunk)

    def _first(self, length: Number, without: Number = 0) -> Number:
        """Tokens that this rank holds of the first ``length - without`` ones of a cache of ``length``."""
        return self.cut.ownership.held(length, self._kv_ranks, self._kv_rank, self.generated, length - without)

    def _held(self, group: Group, window: int | None) -> Number:
        """Tokens that this rank keeps of a sequence: all, or those that a query of this step or the next one sees."""
        length = group.length
        if window is None:
            return self._first(length)
        seen = smaller(length, window + (0 if group.prompt else group.new - 1))
        if self._kv_ranks == 1:
            return seen
        return self._first(length) - self._first(length, seen)  # - those that left the window

    def appended(self, chunk: Chunk = ()) -> Number:
        """Tokens that this rank writes to its cache in this step, summed over its sequences."""
        key = ("appended", chunk)
        if key not in self._kept:
            total: Number = 0
            for g in self.sequences(chunk).groups:
                total = total + g.count * (self._first(g.length) - self._first(g.length, g.new))
            self._kept[key] = total
        return self._kept[key]

    def pairs(self, window: int | None, chunk: Chunk = (), chunked: bool = False) -> Number:
        """Causal (query, key) pairs of the new tokens, summed over this rank's sequences."""

        def below(length: Number) -> Number:
            """Pairs of the first ``length`` queries."""
            if chunked and window is not None:
                whole, rest = length // window, length % window
                return whole * (window * (window + 1) // 2) + rest * (rest + 1) // 2
            inside = length if window is None else smaller(length, window)
            return inside * (inside + 1) // 2 + (length - inside) * inside

        return sum(g.count * (below(g.length) - below(g.length - g.new)) for g in self.sequences(chunk).groups)

    def reread(self, attention: Attention, chunk: Chunk = ()) -> Number:
        """Tokens cached before this step that a new one sees, summed over this rank's sequences."""
        total: Number = 0
        for g in self.sequences(chunk).groups:
            before = g.length - g.new
            if attention.window:
                size = attention.window
                before = before % size if attention.chunked else smaller(before, size - 1)
            total = total + g.count * before
        return total

    def queries(self, chunk: Chunk = ()) -> Number:
        """New tokens per sequence; where sequences differ, the mean over what their queries meet."""
        groups = self.sequences(chunk).groups
        if len({id(g.new) if isinstance(g.new, np.ndarray) else g.new for g in groups}) == 1:
            return groups[0].new
        return sum(g.count * g.length * g.new for g in groups) / sum(g.count * g.length for g in groups)

    def longest(self, window: int | None, chunk: Chunk = ()) -> Number:
        """Keys that the last query of a prompt sees, the most of this rank's sequences."""
        longest: Number = 0
        for g in self.sequences(chunk).groups:
            longest = larger(longest, g.length if window is None else smaller(g.length, window))
        return longest

    def kv_heads(self, attention: Attention) -> int:
        """KV heads that this rank caches."""
        key = ("kv_heads", attention.query_heads, attention.cached_heads)
        if key not in self._kept:
            self._kept[key] = self.cut.kv_heads(attention, self.rank)[1]
        found: int = self._kept[key]
        return found

    def selected(self, top_k: int, chunk: Chunk = ()) -> Number:
        """Cached tokens that this rank reads when an index keeps ``top_k`` of each sequence, spread evenly."""
        total: Number = 0
        for g in self.sequences(chunk).groups:
            held = self._held(g, None)
            total = total + g.count * smaller(held, -(-top_k * held // g.length))
        return total

    def states(self, linear: LinearAttention) -> Number:
        """Bytes of the states that this rank keeps in one layer: none where it has nothing of the block."""
        return self.sequences().count * self.state(linear)

    def state(self, linear: LinearAttention) -> int:
        """Bytes of the state of one sequence on this rank in one layer."""
        tensors = {tensor.name: tensor for tensor in linear.tensors(1)}
        if any(self.cut.mesh.coordinate(self.rank, axis) != at for axis, at in self.cut.holds(tensors["state_v"])):
            return 0
        heads = self.size(self.cut.dim("state_heads", linear.value_heads))
        return linear.state(heads, self.size(self.cut.dim("state_keys", linear.key_heads, linear)))

    def latent_bytes_per_token(self, attention: Attention) -> int:
        """Bytes that one cached token takes on this rank in one layer, without the keys of an index."""
        return self.precision.kv.bytes(self.kv_heads(attention) * attention.cache_elements)

    def kv_bytes_per_token(self, attention: Attention) -> int:
        """Bytes that one cached token takes on this rank in one layer."""
        return self.latent_bytes_per_token(attention) + attention.index_bytes
