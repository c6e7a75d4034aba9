"""Simulated ranks: what each one holds, and nothing else.

A rank's operations see its own values, weights and cache only. Every value that an operation makes is checked against
its type: the rows and the global indices that the type says must be the ones that are there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from sim.cut import Cut
from sim.errors import ShardwiseError
from sim.program import Chunk, Op, Value
from sim.proof.batch import Batch, Rows
from sim.proof.weights import Array, Held, Ranges, Weights
from sim.workload import Precision

Key = tuple[str, Chunk]


class ProofError(ShardwiseError):
    """Execution shows that a layout is wrong: names the rank, the layer, the operation and what differs."""


class Routed(NamedTuple):
    """Which slots the rows of a value go to, and with which weight."""

    slots: np.ndarray[Any, np.dtype[np.int64]]  # (rows, top_k)
    weights: Array  # (rows, top_k)


class Replicas(NamedTuple):
    """The slots that hold each expert, and how many there are: which copy a token goes to is its number modulo that."""

    slots: np.ndarray[Any, np.dtype[np.int64]]  # (experts, most copies)
    copies: np.ndarray[Any, np.dtype[np.int64]]  # (experts,)

    @classmethod
    def of(cls, table: tuple[int, ...], experts: int) -> Replicas:
        """From the expert in each slot."""
        homes: list[list[int]] = [[] for _ in range(experts)]
        for slot, expert in enumerate(table):
            homes[expert].append(slot)
        most = max(map(len, homes))
        padded = np.array([h + [-1] * (most - len(h)) for h in homes], np.int64)
        return cls(padded, np.array([len(h) for h in homes], np.int64))

    def choose(self, experts: np.ndarray[Any, Any], rows: Rows) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The slot of each choice: (rows, top_k). Raises ``ProofError`` for an expert that is in no slot."""
        count = self.copies[experts]
        if experts.size and count.min() == 0:
            raise ProofError(f"no rank holds expert {int(experts[count == 0][0])}")
        found: np.ndarray[Any, np.dtype[np.int64]] = self.slots[experts, rows[:, None] % np.maximum(count, 1)]
        return found


class Sent(NamedTuple):
    """Rows that dispatch brought to a rank: from whom, and for which slots."""

    source: Rows  # sending rank of each row
    local: np.ndarray[Any, np.dtype[np.bool_]]  # (rows, top_k): choices that this copy is for
    routed: Routed


@dataclass(slots=True)
class Piece:
    """A rank's part of a value: (rows, *features), or (shares, rows, *features) where shares are stacked."""

    array: Array
    rows: Rows
    ranges: Ranges
    statistics: Array | None = None
    """Softmax maximum and sum per row and head: (rows, heads, 2), or with shares in front."""
    sent: Sent | None = None


class Entries(NamedTuple):
    """The cache of one sequence in one layer on one rank: token numbers, and (tokens, heads, elements)."""

    tokens: Rows
    keys: Array
    values: Array

    def since(self, token: int) -> Entries:
        """The entries from ``token`` on."""
        kept = self.tokens >= token
        return Entries(self.tokens[kept], self.keys[kept], self.values[kept])


@dataclass(slots=True)
class Rank:
    """One simulated GPU."""

    stage: int
    number: int
    cut: Cut
    weights: dict[tuple[int, str], Held] = field(default_factory=dict)
    cache: dict[tuple[int, int], Entries] = field(default_factory=dict)
    """By (layer, sequence)."""
    index: dict[tuple[int, int], Entries] = field(default_factory=dict)
    """Keys of a sparse index, by (layer, sequence); they have no values."""
    picked: dict[int, dict[int, Rows]] = field(default_factory=dict)
    """Tokens that the last index picked, by sequence and position of the query."""
    states: dict[tuple[int, int], Any] = field(default_factory=dict)
    """What linear attention keeps instead (``sim.proof.recur.State``), by (layer, sequence)."""
    values: dict[Key, Piece] = field(default_factory=dict)
    sent: dict[str, int] = field(default_factory=dict)
    """Bytes this rank sent, by operation."""

    def has(self, only: tuple[tuple[str, int], ...]) -> bool:
        """Whether this rank has the coordinates."""
        return all(self.cut.mesh.coordinate(self.number, axis) == at for axis, at in only)

    def get(self, value: Value) -> Piece:
        """A value that this rank holds. Raises ``ProofError`` if it does not."""
        try:
            return self.values[value.name, value.chunk]
        except KeyError:
            raise ProofError(f"rank {self.number} reads {value.name}, which it does not hold") from None

    def weight(self, layer: int, name: str) -> Held:
        """A weight that this rank holds. Raises ``ProofError`` if it does not."""
        try:
            return self.weights[layer, name]
        except KeyError:
            where = f"rank {self.number}, layer {layer}"
            raise ProofError(f"{where}: reads weight {name}, which this rank does not hold") from None


@dataclass(slots=True)
class World:
    """All ranks of one pipeline stage, and the step they are in."""

    cut: Cut
    weights: Weights
    ranks: list[Rank]
    batch: Batch
    precision: Precision
    layer: int = -1
    ids: Rows = field(default_factory=lambda: np.zeros(0, np.int64))
    """Token id of every row."""
    replicas: dict[int, Replicas] = field(default_factory=dict)
    """Where the copies of each expert are, by number of experts."""

    def homes(self, experts: int) -> Replicas:
        """The slots of every expert under the layout's slot table."""
        if experts not in self.replicas:
            self.replicas[experts] = Replicas.of(self.cut.slot_table(experts), experts)
        return self.replicas[experts]

    def put(self, op: Op, rank: Rank, value: Value, piece: Piece) -> None:
        """Store what an operation made, after checking it against the value's type.

        Raises ``ProofError`` naming the first row or index that differs.
        """
        where = f"rank {rank.number}, layer {self.layer}, {op.name}"
        if piece.sent is None:
            expected = self.batch.rows(value, rank.number)
            if piece.rows is not expected and not np.array_equal(piece.rows, expected):
                has, says = _short(piece.rows), _short(expected)
                raise ProofError(f"{where}: {value.name} has rows {has}, its type says {says}")
        ranges = tuple(self.cut.range(dim, rank.number) for dim in value.dims)
        if piece.ranges != ranges:
            raise ProofError(f"{where}: {value.name} has indices {piece.ranges}, its type says {ranges}")
        shape = (len(piece.rows), *(count for _, count in ranges))
        if value.stacked:
            shape = (self.cut.mesh.count(value.stacked), *shape)
        if piece.array.shape != shape:
            raise ProofError(f"{where}: {value.name} has shape {piece.array.shape}, its type says {shape}")
        rank.values[value.name, value.chunk] = piece

    def group(self, rank: Rank, axes: tuple[str, ...]) -> list[Rank]:
        """The ranks that a rank talks to over ``axes``."""
        return [self.ranks[r] for r in self.cut.mesh.group(rank.number, axes)]


def _short(rows: Rows) -> str:
    text = ", ".join(map(str, rows[:6]))
    return f"[{text}{', ...' if len(rows) > 6 else ''}]"
