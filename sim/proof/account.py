"""Bytes that were really held and really sent, against the bytes that the report would claim: as integers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from sim.cut import Cut
from sim.handover import handover
from sim.lane import Lane
from sim.model import LinearAttention, MoeFfn
from sim.ops_communication import Combine, Dispatch
from sim.program import CommunicationOp, Program, Segment
from sim.proof.batch import Batch
from sim.proof.execute import Execution
from sim.proof.recur import cut_state
from sim.proof.reference import Reference
from sim.proof.world import Rank, Replicas
from sim.workload import Precision

Copies = Callable[[CommunicationOp], int]
Chosen = Mapping[int, np.ndarray[Any, np.dtype[np.int64]]]


class Count(NamedTuple):
    """One figure, counted and claimed."""

    what: str
    counted: int
    claimed: int


def lane_of(cut: Cut, batch: Batch, rank: int, precision: Precision, copies: Copies | None = None) -> Lane:
    """The figures that the report would use for a rank."""
    work = (batch.sequences, precision, batch.generated)
    return Lane(rank, cut, *work, copies, batch.micro if batch.micro[1] > 1 else None)


def weights(execution: Execution) -> Iterator[Count]:
    """Every weight of every rank, and each rank's total as the memory report adds it up."""
    placement, cut, precision = execution.placement, execution.cut, execution.precision
    for stage, ranks in enumerate(execution.stages):
        for number in execution.layers[stage]:
            ffn = execution.weights.layers[number].ffn
            if isinstance(ffn, MoeFfn):
                table, dim = cut.slot_table(ffn.experts), cut.dim("experts", ffn.experts)
                starts = [cut.range(dim, rank.number) for rank in ranks]
                somewhere = {e for start, count in starts for e in table[start : start + count]}
                yield Count(f"stage {stage} layer {number}: experts that some rank holds", len(somewhere), ffn.experts)
        for rank in ranks:
            total = 0
            for number in (-1, *execution.layers[stage]):
                for name in execution.names(stage, number):
                    tensor = execution.weights.shapes[number, name]
                    fmt = precision.of(tensor.part, tensor.quantised)
                    held = rank.weights.get((number, name))
                    counted = fmt.bytes(held.array.size) if held else 0
                    claimed = fmt.bytes(cut.local(tensor, execution.weights.mixer(number), rank.number))
                    yield Count(f"stage {stage} rank {rank.number} layer {number} {name}: bytes held", counted, claimed)
                    total += counted
            claimed = sum(placement.weights(stage, rank.number).values())
            yield Count(f"stage {stage} rank {rank.number}: bytes of weights", total, claimed)


def cache(execution: Execution, batch: Batch) -> Iterator[Count]:
    """The KV cache of every rank."""
    kv = execution.precision.kv
    for stage, ranks in enumerate(execution.stages):
        for rank in ranks:
            counted = 0
            for number in execution.layers[stage]:
                if a := execution.weights.attention(number):
                    heads = execution.cut.kv_heads(a, rank.number)[1]
                    for n in batch.numbers:
                        if keys := rank.index.get((number, n)):
                            counted += len(keys.tokens) * a.index_bytes
                        if entries := rank.cache.get((number, n)):
                            have, tokens = entries.keys.shape[1], len(entries.tokens)
                            if have != heads:
                                where = f"stage {stage} rank {rank.number} layer {number}: KV heads"
                                yield Count(where, have, heads)
                            counted += tokens * kv.bytes(have * a.cache_elements)
                if linear := execution.weights.layers[number].linear:
                    kept = [rank.states[number, n] for n in batch.numbers if (number, n) in rank.states]
                    counted += sum(state.bytes(linear) for state in kept)
            lane = lane_of(execution.cut, batch, rank.number, execution.precision)
            claimed = execution.placement.kv_bytes(stage, lane)
            yield Count(f"stage {stage} rank {rank.number}: bytes of KV cache", counted, claimed)


class Identity(NamedTuple):
    """The cache by the identity of its elements."""

    held: int
    """Bytes over all ranks."""
    unique: int
    """Bytes of the elements that some rank holds."""
    missing: str
    """The first element that no rank holds, or that differs from the reference."""


def identity(execution: Execution, batch: Batch, reference: Reference) -> Identity:
    """Count how many ranks hold each (token, KV head) of each sequence and layer."""
    kv = execution.precision.kv
    held = unique = 0
    missing = ""
    for stage, ranks in enumerate(execution.stages):
        for number in execution.layers[stage]:
            if linear := execution.weights.layers[number].linear:
                here, once, wrong = _states(execution, stage, number, linear, batch, reference)
                held, unique, missing = held + here, unique + once, missing or wrong
            if not (a := execution.weights.attention(number)):
                continue
            size = kv.bytes(a.cached_heads * a.cache_elements) / a.cached_heads
            for n in batch.numbers:
                length = batch.lengths[n]
                first = length - batch.seen(n, a.window)
                holders = np.zeros((length, a.cached_heads), np.int64)
                if a.index_bytes:
                    here, wrong = _index_holders(ranks, number, n, length, reference)
                    held, unique = held + here * a.index_bytes, unique + length * a.index_bytes
                    missing = missing or wrong
                for rank in ranks:
                    entries = rank.cache.get((number, n))
                    if entries is None or not len(entries.tokens):
                        continue
                    start, count = execution.cut.kv_heads(a, rank.number)
                    holders[np.ix_(entries.tokens, np.arange(start, start + count))] += 1
                    right = reference.keys[number, n][entries.tokens][:, start : start + count]
                    if not missing and not np.allclose(entries.keys, right, rtol=1e-9, atol=1e-11):
                        token = int(entries.tokens[int(np.abs(entries.keys - right).max(axis=(1, 2)).argmax())])
                        missing = f"stage {stage} rank {rank.number} layer {number}: key of sequence {n} token {token}"
                held += round(holders[first:].sum() * size)
                unique += round((holders[first:] > 0).sum() * size)
                gaps = np.argwhere(holders[first:] == 0)
                if len(gaps) and not missing:
                    token, head = (int(g) for g in gaps[0])
                    missing = f"layer {number}: no rank holds KV head {head} of token {token + first} of sequence {n}"
    return Identity(held, unique, missing)


def _index_holders(ranks: list[Rank], number: int, n: int, length: int, reference: Reference) -> tuple[int, str]:
    """Index keys of a sequence over all ranks, and the first that is nowhere or wrong."""
    holders, wrong = np.zeros(length, np.int64), ""
    for rank in ranks:
        if entries := rank.index.get((number, n)):
            holders[entries.tokens] += 1
            if not np.allclose(entries.keys, reference.index[number, n][entries.tokens], rtol=1e-9, atol=1e-11):
                wrong = wrong or f"rank {rank.number} layer {number}: an index key of sequence {n}"
    if len(gaps := np.flatnonzero(holders == 0)):
        wrong = wrong or f"layer {number}: no rank holds the index key of token {int(gaps[0])} of sequence {n}"
    return int(holders.sum()), wrong


def _states(
    execution: Execution, stage: int, number: int, linear: LinearAttention, batch: Batch, reference: Reference
) -> tuple[int, int, str]:
    """Bytes of the states of a layer over all ranks and once, and the first that is nowhere or wrong."""
    cut, held, unique, wrong = execution.cut, 0, 0, ""
    dims = cut.dim("state_keys", linear.key_heads, linear), cut.dim("state_heads", linear.value_heads)
    for n in batch.numbers:
        right = reference.recurrent[number, n]
        somewhere: set[int] = set()
        unique += right.bytes(linear)
        for rank in execution.stages[stage]:
            if not (state := rank.states.get((number, n))):
                continue
            keys, heads = (cut.range(dim, rank.number) for dim in dims)
            held += state.bytes(linear)
            somewhere.update(range(heads[0], sum(heads)))
            part = cut_state(right, keys, heads)
            pairs = zip((state.matrix, *state.memory), (part.matrix, *part.memory), strict=True)
            if not all(x.shape == y.shape and np.allclose(x, y, rtol=1e-9, atol=1e-11) for x, y in pairs):
                wrong = wrong or f"stage {stage} rank {rank.number} layer {number}: state of sequence {n}"
        if lost := set(range(linear.value_heads)) - somewhere:
            wrong = wrong or f"layer {number}: no rank holds the state of head {min(lost)} of sequence {n}"
    return held, unique, wrong


def sent(execution: Execution, batch: Batch, chosen: Chosen) -> Iterator[Count]:
    """Bytes that every rank sent in the step of one micro-batch, by operation."""
    program: Program = execution.program
    between = handover(execution.cut, program.end.entry)
    for stage, ranks in enumerate(execution.stages):
        segments: list[tuple[int, Segment]] = [(-1, between if stage else program.begin)]
        segments += [(n, program.layers[execution.weights.layers[n]]) for n in execution.layers[stage]]
        if stage == len(execution.stages) - 1:
            segments.append((-1, program.end))
        for rank in ranks:
            claimed: dict[str, int] = dict.fromkeys(rank.sent, 0)
            for number, segment in segments:
                copies = copies_of(execution.cut, batch, chosen.get(number), rank.number)
                lane = lane_of(execution.cut, batch, rank.number, execution.precision, copies)
                for op in segment.ops:
                    if isinstance(op, CommunicationOp) and rank.has(op.only):
                        claimed[op.name] = claimed.get(op.name, 0) + op.message(lane).sent
            for name, value in claimed.items():
                yield Count(f"stage {stage} rank {rank.number} {name}: bytes sent", rank.sent.get(name, 0), value)


def copies_of(cut: Cut, batch: Batch, chosen: np.ndarray[Any, np.dtype[np.int64]] | None, rank: int) -> Copies:
    """Token copies that a rank sends under the routing of a step, from the slot table alone."""

    def copies(op: CommunicationOp) -> int:
        assert isinstance(op, (Dispatch, Combine))
        assert chosen is not None
        homes = Replicas.of(cut.slot_table(op.ffn.experts), op.ffn.experts)
        owner = np.array(cut.slot_owner(op.ffn.experts))
        out = isinstance(op, Dispatch)
        tokens = op.inputs[0] if out else op.outputs[0]
        sources = [rank] if out else [r for r in range(cut.mesh.size) if r != rank]
        rows = np.concatenate([batch.rows(tokens, source) for source in sources])
        targets = np.sort(owner[homes.choose(chosen[rows], rows)], axis=1)
        counted = targets != rank if out else targets == rank
        if not op.per_expert:  # one copy per rank, however many of a token's experts it holds
            counted[:, 1:] &= targets[:, 1:] != targets[:, :-1]
        return int(counted.sum())

    return copies
