"""Prove a layout: execute it, compare with the unsharded reference, and account for every byte."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from sim.errors import InputError
from sim.lower import cut_of
from sim.model import LinearAttention, Model
from sim.placement import Placement
from sim.proof import account
from sim.proof.batch import Batch, Rows
from sim.proof.execute import Execution, Watch
from sim.proof.instance import describe, scaled, small_blocks
from sim.proof.recur import cut_state
from sim.proof.reference import Reference
from sim.proof.result import Proof
from sim.proof.weights import Array, Weights
from sim.proof.world import Entries, ProofError, Rank
from sim.strategy import Strategy
from sim.workload import Phase, Precision

TOLERANCE = 1e-10
STEPS = (1, 1, 3, 2)
"""Query tokens of the decode steps that are run one after the other."""


class _Tally:
    """Sums of what was counted and claimed, and the first difference."""

    def __init__(self) -> None:
        self.held = self.claimed_held = self.sent = self.claimed_sent = 0
        self.duplication = self.duplication_claimed = 1.0
        self.error = 0.0
        self.steps = 0
        self.difference = ""

    def differ(self, what: str) -> None:
        """Remember the first difference."""
        self.difference = self.difference or what

    def counts(self, counts: Iterable[account.Count]) -> Iterator[account.Count]:
        """Pass counts on; the first one that is not what was claimed is remembered."""
        for count in counts:
            if count.counted != count.claimed:
                self.differ(f"{count.what}: {count.counted:,} counted, {count.claimed:,} claimed")
            yield count


def prove(
    model: Model, strategy: Strategy, precision: Precision | None = None, phase: Phase = "decode", seed: int = 0
) -> Proof:
    """Execute one layout of a model on a small instance of the same shape.

    Decode runs several steps, with one and with several query tokens, over sequences of different lengths whose number
    the degrees do not divide; prefill runs whole prompts and then a chunk behind them; mixed does both at once.

    Raises
    ------
    InputError
        If the layout cannot exist for this model.
    """
    precision = (precision or Precision()).resolve(model)
    if problems := strategy.check(model, phase):
        raise InputError(problems)
    small = scaled(model, strategy, precision)
    if problems := strategy.check(small, phase):
        raise InputError([p._replace(message=f"cannot be scaled down: {p.message}") for p in problems])
    tally = _Tally()
    try:
        with np.errstate(invalid="raise", over="raise"):
            _run(small, strategy, precision, phase, seed, tally)
    except ProofError as error:
        tally.differ(str(error))
    except (KeyError, IndexError, ValueError, FloatingPointError) as error:
        tally.differ(f"the program cannot be executed: {type(error).__name__}: {error}")
    if not tally.error <= TOLERANCE:
        tally.differ(f"results differ from the reference by {tally.error:.2g}")
    return Proof(
        tag=strategy.label,
        strategy=strategy.kind,
        ok=not tally.difference,
        max_relative_error=tally.error,
        held_bytes=tally.held,
        claimed_held_bytes=tally.claimed_held,
        sent_bytes=tally.sent,
        claimed_sent_bytes=tally.claimed_sent,
        duplication_counted=tally.duplication,
        duplication_claimed=tally.duplication_claimed,
        difference=tally.difference,
        ranks=strategy.gpus(small),
        steps=tally.steps,
        scaling=describe(model, small),
    )


def _run(small: Model, strategy: Strategy, precision: Precision, phase: Phase, seed: int, tally: _Tally) -> None:
    cut = small_blocks(cut_of(strategy, small))
    weights = Weights(small, seed)
    placement = Placement(small, strategy, precision)
    rng = np.random.default_rng([seed, 7])
    batch = strategy.replicas * (strategy.pp * cut.sequence_groups + 1) + 1
    lengths = {n: int(rng.integers(1, 12)) for n in range(batch)}
    lengths[0] = 1  # fewer tokens than ranks: empty shards
    if batch > 1:
        lengths[1] = min(2 * cut.kv_ranks + 3, 40)  # enough to reach many ranks
    pieces = max(strategy.pieces(4))
    for replica in range(strategy.replicas):
        numbers = list(range(batch))[replica :: strategy.replicas]
        run = _Replica(Execution(placement, cut, weights, phase, pieces, precision), numbers, tally, rng)
        run.weights()
        {"prefill": run.prefill, "mixed": run.mixed, "decode": run.decode}[phase](lengths)


class _Work(NamedTuple):
    """One step: lengths after it, new tokens, which sequences are prompts, and tokens generated so far."""

    lengths: dict[int, int]
    new: dict[int, int]
    prompts: Collection[int]
    generated: int = 0


class _Replica:
    """One replica's execution beside its reference."""

    def __init__(self, execution: Execution, numbers: Sequence[int], tally: _Tally, rng: np.random.Generator):
        self.execution, self.numbers, self.tally, self.rng = execution, list(numbers), tally, rng
        self.reference = Reference(execution.weights)
        self.logits: Array = np.zeros((0, 0))
        group = -(-len(self.numbers) // execution.cut.sequence_groups)
        self.micro = max(1, min(execution.strategy.pp, group))

    def weights(self) -> None:
        """Account for the weights."""
        for count in self.tally.counts(account.weights(self.execution)):
            if count.what.endswith("bytes of weights"):
                self.tally.held += count.counted
                self.tally.claimed_held += count.claimed

    def _cached(self, lengths: dict[int, int]) -> None:
        """A cache that is laid out as a prompt."""
        prompt = Batch(self.execution.cut, self.numbers, lengths, lengths, lengths, 0)
        self.reference.step(self._ids(prompt), prompt.sequence_of, prompt.position_of)
        self._lay_out(lengths, lengths, 0)

    def prefill(self, lengths: dict[int, int]) -> None:
        """A step over whole prompts, and one over the next chunk of each."""
        self._step(_Work(lengths, lengths, lengths))
        new = {n: 1 + (5 * n) % 7 for n in lengths}
        self._step(_Work({n: length + new[n] for n, length in lengths.items()}, new, lengths))

    def mixed(self, lengths: dict[int, int]) -> None:
        """Two steps in which some sequences decode and others get a chunk of their prompt, the others in turn."""
        self._cached(lengths)
        for turn in range(2):
            prompts = [n for i, n in enumerate(sorted(lengths)) if (i // 2 + turn) % 2]
            new = {n: 3 + n % 5 if n in prompts else 1 + turn for n in lengths}
            lengths = {n: length + new[n] for n, length in lengths.items()}
            self._step(_Work(lengths, new, prompts))

    def decode(self, lengths: dict[int, int]) -> None:
        """Several steps on a cache that is laid out as a prompt."""
        self._cached(lengths)
        generated = 0
        for new in STEPS:
            before, lengths = lengths, {n: length + new for n, length in lengths.items()}
            generated += new
            if self.execution.cut.ownership.rule == "contiguous":  # the runs move with every step
                self._lay_out(before, lengths, generated)
            self._step(_Work(lengths, dict.fromkeys(lengths, new), (), generated))

    def _ids(self, batch: Batch) -> Rows:
        return self.rng.integers(0, self.execution.placement.model.vocab, len(batch.sequence_of))

    def _lay_out(self, tokens: dict[int, int], lengths: dict[int, int], generated: int) -> None:
        """Hand every rank the cached tokens that it owns in a cache of ``lengths``."""
        e, cut = self.execution, self.execution.cut
        for stage, ranks in enumerate(e.stages):
            for rank in ranks:
                group, mine = cut.mesh.index(rank.number, cut.sequence_axes), cut.mesh.index(rank.number, cut.kv_axes)
                for number in e.layers[stage]:
                    if linear := e.weights.layers[number].linear:
                        self._give_states(rank, number, linear, self.numbers[group :: cut.sequence_groups])
                    if not (a := e.weights.attention(number)):
                        continue
                    start, count = cut.kv_heads(a, rank.number)
                    for n in self.numbers[group :: cut.sequence_groups]:
                        owners = [cut.ownership.owner(t, cut.kv_ranks, lengths[n], generated) for t in range(tokens[n])]
                        own = np.flatnonzero(np.array(owners, np.int64) == mine)
                        keys = self.reference.keys[number, n][own][:, start : start + count]
                        values = self.reference.values[number, n][own][:, start : start + count]
                        entries = Entries(own, keys, values)
                        if a.index_bytes:
                            own = np.arange(tokens[n]) if cut.whole_index else own
                            index = self.reference.index[number, n][own]
                            rank.index[number, n] = Entries(own, index, index)
                        rank.cache[number, n] = entries.since(tokens[n] - a.window) if a.window else entries

    def _give_states(self, rank: Rank, number: int, linear: LinearAttention, numbers: Sequence[int]) -> None:
        """Hand a rank that has this block the states of its sequences."""
        cut = self.execution.cut
        if (number, "state_v") in rank.weights:
            keys = cut.range(cut.dim("state_keys", linear.key_heads, linear), rank.number)
            heads = cut.range(cut.dim("state_heads", linear.value_heads), rank.number)
            for n in numbers:
                rank.states[number, n] = cut_state(self.reference.recurrent[number, n], keys, heads)

    def _step(self, work: _Work) -> None:
        """One step of every micro-batch, checked against the reference."""
        e, tally = self.execution, self.tally
        for micro in range(self.micro):
            batch = Batch(e.cut, self.numbers, *work, (micro, self.micro))
            ids = self._ids(batch)
            self.logits = self.reference.step(ids, batch.sequence_of, batch.position_of)
            for ranks in e.stages:
                for rank in ranks:
                    rank.sent.clear()
            self._compare(e.step(batch, ids, self._watch(batch)), batch)
            for count in tally.counts(account.sent(e, batch, self.reference.chosen)):
                tally.sent += count.counted
                tally.claimed_sent += count.claimed
        self._caches(work)
        tally.steps += 1

    def _watch(self, batch: Batch) -> Watch:
        """Compare hidden states after every layer, so that the first difference is found where it arises."""

        def watch(rank: Rank, layer: int, rows: Rows, states: Array) -> None:
            self._close(f"stage {rank.stage} rank {rank.number} layer {layer} hidden state", rows, states, layer, batch)

        return watch

    def _close(self, where: str, rows: Rows, found: Array, layer: int | None, batch: Batch) -> None:
        """Compare (rows, features) with the reference's states of a layer, or with its logits."""
        if not len(rows):
            return
        expected = self.logits if layer is None else self.reference.states[layer]
        right = expected[rows]
        error = float(np.abs(found - right).max() / np.abs(expected).max())
        if layer is None or not error <= TOLERANCE:
            self.tally.error = max(self.tally.error, error) if error == error else float("inf")
        if not error <= TOLERANCE:
            row, column = np.unravel_index(int(np.abs(found - right).argmax()), found.shape)
            n, position = int(batch.sequence_of[rows[row]]), int(batch.position_of[rows[row]])
            self.tally.differ(
                f"{where}: element {int(column)} of token {position} of sequence {n} is {found[row, column]:.6g}, "
                f"the reference has {right[row, column]:.6g}"
            )

    def _compare(self, found: dict[tuple[int, int], tuple[Rows, Array]], batch: Batch) -> None:
        """Logits of every rank that has them; every row that needs them must be somewhere."""
        seen: set[int] = set()
        for (stage, rank), (rows, logits) in found.items():
            seen.update(rows.tolist())
            self._close(f"stage {stage} rank {rank} logits", rows, logits, None, batch)
        if missing := set(np.flatnonzero(batch.wanted).tolist()) - seen:
            n = int(batch.sequence_of[min(missing)])
            self.tally.differ(f"no rank has the logits of sequence {n}")

    def _caches(self, work: _Work) -> None:
        """Account for the cache of all micro-batches, element by element."""
        e, tally = self.execution, self.tally
        self._forget(work)
        batch = Batch(e.cut, self.numbers, *work)
        claimed = 0
        for count in tally.counts(account.cache(e, batch)):
            if count.what.endswith("bytes of KV cache"):
                tally.held += count.counted
                tally.claimed_held += count.claimed
                claimed += count.claimed
        found = account.identity(e, batch, self.reference)
        if found.missing:
            tally.differ(found.missing)
        unique = e.placement.unique_kv_bytes(batch.sequences)
        if found.unique != unique:
            tally.differ(f"unique bytes of KV: {found.unique:,} counted, {unique:,} claimed")
        if unique:
            tally.duplication = found.held / unique
            tally.duplication_claimed = claimed / unique
            if found.held != claimed:
                tally.differ(f"KV bytes over all ranks by identity: {found.held:,} counted, {claimed:,} claimed")

    def _forget(self, work: _Work) -> None:
        """Behind a prompt windowed layers keep their window."""
        for rank in chain.from_iterable(self.execution.stages):
            for (number, n), entries in list(rank.cache.items()):
                a = self.execution.weights.attention(number)
                if a and a.window and n in work.prompts:
                    rank.cache[number, n] = entries.since(work.lengths[n] - a.window)
