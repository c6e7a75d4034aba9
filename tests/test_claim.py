"""The claim: TP beyond the KV heads stores the cache more than once; DCP, Helix and attention DP do not.

A grid of models (MHA, GQA, MQA, MLA) and degrees, each asked through the placement's own sums over all ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import pytest
from strategies_for_tests import evaluate, gqa, lane, layout, mla, model, placement

from sim.placement import Placement
from sim.workload import Workload

DEGREES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
QUERY_HEADS = 192  # divides by every degree and by every number of KV heads below
HEADS = (1, 2, 3, 4, 6, 8, QUERY_HEADS)
MODELS = {f"{heads} KV heads": (model(gqa(QUERY_HEADS, heads)), heads) for heads in HEADS}
MODELS["latent"] = (model(mla(QUERY_HEADS)), 1)
WORK = Workload(batch=3, context=4800)


def over(where: Callable[[int, int], bool] = lambda heads, degree: True) -> pytest.MarkDecorator:
    """All models with the degrees for which ``where(KV heads, degree)`` holds."""
    cases = [(name, degree) for name, (_, heads) in MODELS.items() for degree in DEGREES if where(heads, degree)]
    return pytest.mark.parametrize(("name", "degree"), cases, ids=str)


grid = over()


def _copies(placed: Placement, work: Workload = WORK) -> Fraction:
    held = sum(placed.kv_bytes(0, lane(placed, work, rank)) for rank in range(placed.cut.mesh.size))
    return Fraction(held, placed.unique_kv_bytes(work.sequences))


def _needed(heads: int, degree: int) -> int:
    """Σ over ranks of the KV heads that a rank's contiguous query heads read."""
    each, group = QUERY_HEADS // degree, QUERY_HEADS // heads
    return sum(len({q // group for q in range(rank * each, (rank + 1) * each)}) for rank in range(degree))


@grid
def test_tensor_parallelism_duplicates_beyond_the_kv_heads(name, degree):
    found, heads = MODELS[name]
    copies = _copies(placement(found, "tp", tp=degree))
    if heads % degree == 0 or degree % heads == 0:
        assert copies == max(1, Fraction(degree, heads))
    else:
        assert copies == Fraction(_needed(heads, degree), heads)
        assert copies > 1


@pytest.mark.parametrize(("heads", "degree", "copies"), [(6, 4, "4/3"), (4, 6, "2"), (3, 4, "2"), (8, 12, "2")])
def test_copies_where_neither_divides_the_other(heads, degree, copies):
    assert _copies(placement(MODELS[f"{heads} KV heads"][0], "tp", tp=degree)) == Fraction(copies)


@over(lambda heads, degree: degree % heads == 0 or heads % degree == 0)
def test_bytes_per_rank_stop_falling_at_the_kv_heads(name, degree):
    found, heads = MODELS[name]
    placed = placement(found, "tp", tp=degree)
    whole = placed.unique_kv_bytes(WORK.sequences)
    sizes = {placed.kv_bytes(0, lane(placed, WORK, rank)) for rank in range(degree)}
    assert sizes == {whole // min(degree, heads)}


@over(lambda heads, degree: degree % heads == 0)
def test_dcp_over_the_copies_removes_them(name, degree):
    found, heads = MODELS[name]
    placed = placement(found, "dcp", tp=degree, dcp=degree // heads)
    assert _copies(placed) == 1
    fullest = max(placed.kv_bytes(0, lane(placed, WORK, rank)) for rank in range(degree))
    assert fullest == Fraction(placed.unique_kv_bytes(WORK.sequences), degree)


@over(lambda heads, degree: degree % (2 * heads) == 0)
def test_a_smaller_dcp_removes_a_part_of_the_copies(name, degree):
    found, heads = MODELS[name]
    for dcp in (2, 4):
        if degree % (heads * dcp) == 0:
            assert _copies(placement(found, "dcp", tp=degree, dcp=dcp)) == Fraction(degree, heads * dcp)


@grid
def test_helix_holds_every_byte_once(name, degree):
    found, heads = MODELS[name]
    for tpa in (1, 2, 3, 4, 8):
        if degree % tpa == 0 and heads % tpa == 0:
            placed = placement(found, "helix", tpa=tpa, kvp=degree // tpa)
            assert _copies(placed) == 1, tpa


@over(lambda heads, degree: QUERY_HEADS % (2 * heads * degree) == 0)
def test_helix_with_more_head_ranks_than_heads_duplicates_again(name, degree):
    found, heads = MODELS[name]
    assert _copies(placement(found, "helix", tpa=2 * heads, kvp=degree)) == 2


@grid
def test_attention_data_parallelism_holds_every_byte_once(name, degree):
    found, heads = MODELS[name]
    for tp in (1, 2, 3, 4, 8):
        if degree % tp == 0:
            copies = _copies(placement(found, "attention_dp", dp=degree // tp, tp=tp), Workload(batch=64, context=100))
            if heads % tp == 0:
                assert copies == 1, tp


@grid
def test_kv_parallelism_holds_every_byte_once(name, degree):
    found, heads = MODELS[name]
    for tp in (1, 2, 3, 4, 8):
        if degree % tp == 0 and heads % tp == 0:
            assert _copies(placement(found, "kvp", kvp=degree // tp, tp=tp)) == 1, tp


REPORTED = [
    ("tp", {"tp": 8}, 2.0),
    ("tp", {"tp": 6}, 2.0),  # two of the six ranks read two heads
    ("tp", {"tp": 4, "replicas": 2}, 1.0),
    ("tp", {"tp": 8, "pp": 3}, 2.0),
    ("dcp", {"tp": 8, "dcp": 2}, 1.0),
    ("dcp", {"tp": 16, "dcp": 2}, 2.0),
    ("helix", {"tpa": 4, "kvp": 2}, 1.0),
    ("attention_dp", {"dp": 8}, 1.0),
    ("attention_dp", {"dp": 2, "tp": 8}, 2.0),
    ("kvp", {"kvp": 2, "tp": 4}, 1.0),
]


@pytest.mark.parametrize(("kind", "degrees", "copies"), REPORTED, ids=str)
def test_reports_say_the_same(kind, degrees, copies):
    """Four KV heads, as in Qwen3-235B: what users read is held = unique x duplication."""
    kv = evaluate(placement(MODELS["4 KV heads"][0], kind, **degrees), Workload(batch=5, context=97)).kv()
    assert kv.duplication == copies
    assert kv.held_bytes == copies * kv.unique_bytes


def test_duplication_costs_batch():
    """What TP 64 wastes on copies of 8 heads is what DCP 8 serves more sequences with."""
    work = Workload(batch=1, context=2**20)
    tp, dcp = (
        evaluate(placement("llama-3.1-405b", kind, **degrees), work).memory().max_batch
        for kind, degrees in (("tp", {"tp": 64}), ("dcp", {"tp": 64, "dcp": 8}))
    )
    assert (tp, dcp) == (2, 19)


@pytest.mark.parametrize("heads", HEADS)
def test_every_layout_of_the_grid_exists(heads):
    found = MODELS[f"{heads} KV heads"][0]
    assert [d for d in DEGREES if layout("tp", tp=d).check(found)] == []
