"""Collectives that move real arrays between ranks and count the bytes that leave each one."""

from __future__ import annotations

from collections.abc import Iterator
from functools import singledispatch

import numpy as np

from sim import ops_communication as ops
from sim.cut import block
from sim.handover import GatherSlices
from sim.model import MoeFfn
from sim.program import CommunicationOp
from sim.proof.compute import route
from sim.proof.weights import Array
from sim.proof.world import Piece, ProofError, Rank, Routed, Sent, World


@singledispatch
def communicate(op: CommunicationOp, world: World) -> None:
    """Run one collective on all its groups. Raises ``ProofError`` for one that cannot be executed."""
    raise ProofError(f"{op.name}: collective {type(op).__name__} has no executable form")


def _groups(op: CommunicationOp, world: World) -> Iterator[list[Rank]]:
    done: set[int] = set()
    for rank in world.ranks:
        if rank.number not in done and rank.has(op.only):
            members = world.group(rank, op.axes)
            done.update(m.number for m in members)
            yield members


def _count(op: CommunicationOp, rank: Rank, sent: int) -> None:
    rank.sent[op.name] = rank.sent.get(op.name, 0) + int(sent)


def _pick(piece: Piece, total: Array, world: World, op: CommunicationOp, rank: Rank) -> Piece:
    """The part of a whole array that the output's type gives to a rank."""
    value = op.outputs[0]
    wanted = world.batch.rows(value, rank.number)
    place = {int(r): i for i, r in enumerate(piece.rows)}
    missing = [int(r) for r in wanted if int(r) not in place]
    if missing:
        raise ProofError(f"rank {rank.number}, {op.name}: row {missing[0]} is not in what the group has")
    array = total[[place[int(r)] for r in wanted]]
    ranges = tuple(world.cut.range(dim, rank.number) for dim in value.dims)
    for axis, ((start, count), (have, _)) in enumerate(zip(ranges, piece.ranges, strict=True), start=1):
        array = np.take(array, range(start - have, start - have + count), axis=axis)
    return Piece(array, wanted, ranges)


@communicate.register
def _(op: ops.AllReduce, world: World) -> None:
    for members in _groups(op, world):
        pieces = [m.get(op.inputs[0]) for m in members]
        flat = [p.array.reshape(-1) for p in pieces]
        parts = [block(flat[0].size, i, len(members)) for i in range(len(members))]
        # two-shot: every rank sums its own part of the buffer, then hands it to the others
        sums = [sum((f[s : s + c] for f in flat), np.zeros(c)) for s, c in parts]
        for i, (rank, piece) in enumerate(zip(members, pieces, strict=True)):
            out = flat[i].size - parts[i][1]
            _count(op, rank, (out + (len(members) - 1) * parts[i][1]) * world.precision.activation_bytes)
            array = np.concatenate(sums).reshape(piece.array.shape)
            world.put(op, rank, op.outputs[0], Piece(array, piece.rows, piece.ranges))


@communicate.register
def _(op: ops.ReduceScatter, world: World) -> None:
    for members in _groups(op, world):
        pieces = [m.get(op.inputs[0]) for m in members]
        total = sum((p.array for p in pieces[1:]), pieces[0].array)
        for rank, piece in zip(members, pieces, strict=True):
            mine = _pick(piece, total, world, op, rank)
            _count(op, rank, (piece.array.size - mine.array.size) * world.precision.activation_bytes)
            world.put(op, rank, op.outputs[0], mine)


@communicate.register
def _(op: ops.AllGather, world: World) -> None:
    by_rows = op.inputs[0].tokens != op.outputs[0].tokens
    for members in _groups(op, world):
        pieces = [m.get(op.inputs[0]) for m in members]
        size = op.element_bytes or world.precision.activation_bytes
        for rank, piece in zip(members, pieces, strict=True):
            _count(op, rank, (len(members) - 1) * piece.array.size * size)
        if by_rows:
            rows = np.concatenate([p.rows for p in pieces])
            order = np.argsort(rows, kind="stable")
            whole = Piece(np.concatenate([p.array for p in pieces])[order], rows[order], pieces[0].ranges)
        else:
            first = pieces[0].ranges[0][0]
            joined = np.concatenate([p.array for p in pieces], axis=1)
            whole = Piece(joined, pieces[0].rows, ((first, joined.shape[1]), *pieces[0].ranges[1:]))
        for rank in members:
            world.put(op, rank, op.outputs[0], whole)


@communicate.register
def _(op: ops.AllGatherStatistics, world: World) -> None:
    for members in _groups(op, world):
        pieces = [m.get(op.inputs[0]) for m in members]
        stacked = np.stack([_log_sum(p) for p in pieces])
        for rank, piece in zip(members, pieces, strict=True):
            _count(op, rank, (len(members) - 1) * stacked[0].size * ops.STATISTIC_BYTES)
            world.put(op, rank, op.outputs[0], Piece(stacked, piece.rows, piece.ranges[:1]))


@communicate.register
def _(op: ops.AllGatherCandidates, world: World) -> None:
    for members in _groups(op, world):
        pieces = [m.get(op.inputs[0]) for m in members]
        stacked = np.stack([p.array for p in pieces])
        for rank, piece in zip(members, pieces, strict=True):
            _count(op, rank, (len(members) - 1) * stacked[0].size * ops.CANDIDATE_BYTES)
            world.put(op, rank, op.outputs[0], Piece(stacked, piece.rows, piece.ranges))


def _log_sum(piece: Piece) -> Array:
    """Log-sum-exp per row and head; minus infinity for an empty share."""
    assert piece.statistics is not None
    with np.errstate(divide="ignore"):
        return np.asarray(piece.statistics[..., 0] + np.log(piece.statistics[..., 1]))


def _statistics(piece: Piece, numbers: int) -> Array:
    """What travels beside a share: maximum and sum, or their log-sum-exp alone."""
    assert piece.statistics is not None
    if numbers == 2:
        return piece.statistics
    return np.stack([_log_sum(piece), np.ones(piece.array.shape[:2])], axis=-1)


@communicate.register
def _(op: ops.ExchangeShares, world: World) -> None:
    for members in _groups(op, world):
        pieces = [m.get(op.inputs[0]) for m in members]
        statistics = [_statistics(p, op.statistics) for p in pieces]
        width = pieces[0].array.shape[2]
        if op.width not in (None, width):
            priced = f"{op.width} features per head are priced, {width} exist"
            raise ProofError(f"{op.name}: {priced}: this is a price only, which no execution can show")
        for rank, own in zip(members, pieces, strict=True):
            start, count = world.cut.range(op.outputs[0].dims[0], rank.number)
            at = slice(start - own.ranges[0][0], start - own.ranges[0][0] + count)
            array = np.stack([p.array[:, at] for p in pieces])
            mixed = np.stack([s[:, at] for s in statistics])
            ranges = ((start, count), own.ranges[1])
            world.put(op, rank, op.outputs[0], Piece(array, own.rows, ranges, mixed))
            others = len(own.rows) * (own.array.shape[1] - count)
            _count(op, rank, others * (2 * width + op.statistics * ops.STATISTIC_BYTES))


@communicate.register
def _(op: ops.GatherShares, world: World) -> None:
    for members in _groups(op, world):
        pieces = [m.get(op.inputs[0]) for m in members]
        for rank, piece in zip(members[1:], pieces[1:], strict=True):
            rows, heads, width = piece.array.shape
            _count(op, rank, rows * heads * (2 * width + op.statistics * ops.STATISTIC_BYTES))
        array = np.stack([p.array for p in pieces])
        mixed = np.stack([_statistics(p, op.statistics) for p in pieces])
        root = pieces[0]
        world.put(op, members[0], op.outputs[0], Piece(array, root.rows, root.ranges, mixed))


@communicate.register
def _(op: ops.Broadcast, world: World) -> None:
    for members in _groups(op, world):
        root = members[0].get(op.inputs[0])
        _count(op, members[0], (len(members) - 1) * root.array.size * world.precision.activation_bytes)
        for rank in members:
            world.put(op, rank, op.outputs[0], Piece(root.array.copy(), root.rows, root.ranges))


def _slots(world: World, ffn: MoeFfn, rank: Rank) -> tuple[int, int]:
    start, count = world.cut.range(world.cut.dim("experts", ffn.experts), rank.number)
    return start, start + count


@communicate.register
def _(op: ops.Dispatch, world: World) -> None:
    for members in _groups(op, world):
        parcels: list[list[tuple[int, Piece, Sent]]] = [[] for _ in members]
        for source in members:
            x = source.get(op.inputs[0])
            routing = route(source.get(op.inputs[1]), world, op.ffn)
            for number, target in enumerate(members):
                first, last = _slots(world, op.ffn, target)
                local = (routing.slots >= first) & (routing.slots < last)
                rows = np.flatnonzero(local.any(axis=1))
                part = Routed(routing.slots[rows], routing.weights[rows])
                sent = Sent(np.full(len(rows), source.number), local[rows], part)
                parcels[number].append((source.number, Piece(x.array[rows], x.rows[rows], x.ranges), sent))
                if target is not source:
                    copies = int(local.sum()) if op.per_expert else len(rows)
                    _count(op, source, copies * world.precision.dispatched.bytes(x.array.shape[1]))
        for target, got in zip(members, parcels, strict=True):
            pieces, sents = [p for _, p, _ in got], [s for _, _, s in got]
            routed = Routed(*(np.concatenate([s.routed[i] for s in sents]) for i in range(2)))
            sent = Sent(np.concatenate([s.source for s in sents]), np.concatenate([s.local for s in sents]), routed)
            rows = np.concatenate([p.rows for p in pieces])
            array = np.concatenate([p.array for p in pieces])
            world.put(op, target, op.outputs[0], Piece(array, rows, pieces[0].ranges, sent=sent))


@communicate.register
def _(op: ops.Combine, world: World) -> None:
    value = op.outputs[0]
    for members in _groups(op, world):
        rows = [world.batch.rows(value, m.number) for m in members]
        totals = [np.zeros((len(r), value.dims[0].size)) for r in rows]
        place = {m.number: i for i, m in enumerate(members)}
        for holder in members:
            y = holder.get(op.inputs[0])
            if y.sent is None:
                raise ProofError(f"rank {holder.number}, {op.name}: these rows were not dispatched")
            for source in members:
                at = np.flatnonzero(y.sent.source == source.number)
                i = place[source.number]
                where = np.searchsorted(rows[i], y.rows[at])
                np.add.at(totals[i], where, y.array[at])
                if source is not holder:
                    copies = int(y.sent.local[at].sum()) if op.per_expert else len(at)
                    _count(op, holder, copies * 2 * y.array.shape[1])
        for rank, r, total in zip(members, rows, totals, strict=True):
            world.put(op, rank, value, Piece(total, r, ((0, value.dims[0].size),)))


@communicate.register
def _(op: GatherSlices, world: World) -> None:
    for members in _groups(op, world):
        for source, target in zip(op.inputs, op.outputs, strict=True):
            slices = [m.get(source) for m in members]
            for rank, piece in zip(members, slices, strict=True):
                _count(op, rank, (len(members) - 1) * piece.array.size * world.precision.activation_bytes)
            array = np.concatenate([p.array for p in slices], axis=1)
            for rank in members:
                world.put(op, rank, target, Piece(array, slices[0].rows, ((0, array.shape[1]),)))
