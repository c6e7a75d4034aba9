"""Which rank holds which token: three rules, each counted and asked token by token."""

from __future__ import annotations

import numpy as np
import pytest

from sim.errors import LayoutError
from sim.ownership import Ownership

ROUND = Ownership(rule="round_robin", block=16)
HELIX = Ownership(rule="prompt_decode", block=32)
RUNS = Ownership(rule="contiguous", block=32)


def _held(owner: Ownership, context: int, ranks: int, generated: int = 0) -> list[int]:
    return [owner.held(context, ranks, rank, generated) for rank in range(ranks)]


def test_one_rank_holds_everything():
    for owner in (ROUND, HELIX, RUNS):
        assert _held(owner, 77, 1) == [77]


def test_blocks_are_dealt_out_in_turn():
    assert _held(ROUND, 100, 4) == [32, 32, 20, 16]
    assert [ROUND.owner(token, 4, 100) for token in (0, 15, 16, 63, 64, 99)] == [0, 0, 1, 3, 0, 2]


def test_generated_tokens_start_at_rank_0_again():
    """100 prompt tokens end on rank 3; the first 32 generated ones go to rank 0 all the same."""
    assert _held(HELIX, 100, 4) == [32, 32, 32, 4]
    assert _held(HELIX, 133, 4, generated=33) == [64, 33, 32, 4]
    assert [HELIX.owner(token, 4, 133, 33) for token in (99, 100, 131, 132)] == [3, 0, 0, 1]


def test_sequences_that_start_together_write_on_the_same_rank():
    """16 sequences, 10 steps: all 160 appends go to rank 0."""
    writes = [0] * 4
    for step in range(1, 11):
        for rank in range(4):
            before, after = (HELIX.held(512 + n, 4, rank, n) for n in (step - 1, step))
            writes[rank] += 16 * (after - before)
    assert writes == [160, 0, 0, 0]


def test_contiguous_runs_of_blocks():
    assert _held(RUNS, 100, 3) == [64, 32, 4]
    assert [RUNS.owner(token, 3, 100) for token in (0, 63, 64, 95, 96, 99)] == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize("owner", [ROUND, HELIX, RUNS], ids=lambda o: o.rule)
def test_fewer_tokens_than_ranks_leave_shards_empty(owner):
    assert _held(owner, 5, 8) == [5, 0, 0, 0, 0, 0, 0, 0]
    assert sum(_held(Ownership(rule=owner.rule, block=1), 3, 8)) == 3


def test_only_the_first_tokens():
    """What has left a window is the difference of two prefixes."""
    assert [ROUND.held(100, 4, rank, 0, 40) for rank in range(4)] == [16, 16, 8, 0]
    assert [RUNS.held(100, 3, rank, 0, 70) for rank in range(3)] == [64, 6, 0]


@pytest.mark.parametrize("owner", [ROUND, HELIX, RUNS], ids=lambda o: o.rule)
def test_contexts_may_be_arrays(owner):
    contexts = np.array([1, 5, 31, 32, 33, 100, 1_000_003])
    for rank in range(3):
        expected = [owner.held(int(c), 3, rank) for c in contexts]
        assert owner.held(contexts, 3, rank).tolist() == expected


def test_iterations_count_from_one():
    assert [HELIX.decode_owner(i, 4) for i in (1, 32, 33, 129)] == [0, 0, 1, 0]
    with pytest.raises(LayoutError) as error:
        HELIX.decode_owner(0, 4)
    assert str(error.value) == "decode iterations count from 1, not from 0"


def test_the_largest_imbalance_is_one_block_of_prompt_and_one_of_decode():
    worst = max(
        max(_held(HELIX, context, 4, generated)) - min(_held(HELIX, context, 4, generated))
        for context in range(200, 520, 7)
        for generated in range(0, 200, 13)
    )
    assert worst == 64
