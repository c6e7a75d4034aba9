"""What holds for every layout, model and batch: drawn by hypothesis, the same examples every time."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st
from strategies_for_tests import DEGREES, evaluate, gqa, lane, layouts, machine, model, models, placement, workloads

from sim import engine
from sim.kernels import Kernels, load_constants
from sim.kernels.constants import FAMILIES
from sim.lower import lower
from sim.machine import Machine
from sim.network.collectives import Collectives
from sim.network.constants import load_fabric_constants
from sim.ops_communication import AllGather, AllReduce, ExchangeShares, ReduceScatter
from sim.ownership import Ownership
from sim.placement import Placement
from sim.program import CommunicationOp
from sim.sweep import sweep
from sim.workload import Precision, Workload

FEW = settings(max_examples=120)
CLOSE = {"rel": 1e-9, "abs": 0.0}


@st.composite
def placements(draw, **options) -> Placement:
    """A model with a layout that exists for it."""
    found = draw(models())
    strategy = draw(layouts(found, **options))
    note(f"{found.name}: {strategy.kind} {strategy!r}")
    return Placement(found, strategy, Precision())


# -- what is held -------------------------------------------------------------------------------------------


@given(placements(extra=False), workloads())
@settings(max_examples=100)
def test_every_query_head_meets_every_token_of_its_kv_head_once(placed, work):
    """Per head and sequence group, the tokens on the ranks that attend with the head add up to the context."""
    cut, attention = placed.cut, next(iter(placed.model.kinds)).attention
    heads = cut.dim("attention_heads", attention.query_heads)
    group = attention.query_heads // attention.cached_heads
    tokens: dict[tuple[int, int], dict[int, int]] = {}
    for rank in range(cut.mesh.size):
        on = lane(placed, work, rank)
        kv_first, kv_count = cut.kv_heads(attention, rank)
        first, count = cut.range(heads, rank)
        for head in range(first, first + count):
            assert kv_first <= head // group < kv_first + kv_count
            where = (head, cut.mesh.index(rank, cut.sequence_axes))
            tokens.setdefault(where, {})[cut.mesh.index(rank, cut.kv_axes)] = on.kv_tokens(None)
    assert len(tokens) == attention.query_heads * cut.sequence_groups
    for (_, mine), shards in tokens.items():
        assert sum(shards.values()) == work.sequences.share(mine, cut.sequence_groups).tokens


@given(placements(extra=False), workloads())
@FEW
def test_every_new_token_is_appended_on_one_rank_per_head_group(placed, work):
    cut = placed.cut
    written: dict[int, dict[int, int]] = {}
    for rank in range(cut.mesh.size):
        mine = cut.mesh.index(rank, cut.sequence_axes)
        written.setdefault(mine, {})[cut.mesh.index(rank, cut.kv_axes)] = lane(placed, work, rank).appended()
    new = {g: work.sequences.share(g, cut.sequence_groups).count * work.query_tokens for g in written}
    assert {g: sum(shards.values()) for g, shards in written.items()} == new


@given(
    st.sampled_from(("round_robin", "prompt_decode", "contiguous")),
    st.integers(1, 64),
    st.integers(1, 9),
    st.integers(1, 700),
    st.data(),
)
@settings(max_examples=150)
def test_every_token_has_one_owner(rule, block, ranks, context, data):
    owner, generated = Ownership(rule=rule, block=block), data.draw(st.integers(0, context))
    owners = [owner.owner(token, ranks, context, generated) for token in range(context)]
    for rank in range(ranks):
        assert owner.held(context, ranks, rank, generated) == owners.count(rank)
        below = data.draw(st.integers(0, context))
        assert owner.held(context, ranks, rank, generated, below) == owners[:below].count(rank)


@given(placements())
@FEW
def test_slices_of_every_weight_cover_it(placed):
    cut = placed.cut
    for stage in range(placed.strategy.pp):
        for tensor, attention, _ in placed.held(stage):
            dims = [cut.dim(role, size, attention) for role, size in tensor.dims]
            slices = {
                tuple(cut.range(dim, rank) for dim in dims)
                for rank in range(cut.mesh.size)
                if cut.local(tensor, attention, rank)
            }
            for position, dim in enumerate(dims):
                covered = {i for s in slices for i in range(s[position][0], sum(s[position]))}
                assert covered == set(range(dim.size)), tensor.name
            if not any(dim.serves for dim in dims):  # slices of KV heads may overlap, all others are apart or equal
                assert sum(math.prod(n for _, n in s) for s in slices) == math.prod(dim.size for dim in dims)


@given(placements(), workloads())
@FEW
def test_held_is_unique_times_duplication(placed, work):
    report = evaluate(placed, work).report()
    for held in (report.kv, report.weights):
        assert held.held_bytes == pytest.approx(held.unique_bytes * held.duplication, rel=1e-12)
        assert held.held_bytes >= held.unique_bytes
    assert sum(group.count for group in report.ranks) == report.gpus / placed.strategy.replicas
    total = sum(group.count * group.weights_bytes for group in report.ranks)
    assert total * placed.strategy.replicas == report.weights.held_bytes


def test_the_same_scenario_gives_the_same_bytes_in_every_process():
    """Twice in one process, and in others whose hashes of text differ."""
    code = (
        "from sim import compare, load; from sim.render.export import to_json; s = load('deepseek_r1_8xh200');"
        "a = to_json(compare(s)); b = to_json(compare(s)); assert a == b; print(a)"
    )
    root = str(Path(__file__).parent.parent)
    answers = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": root},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "4242")
    }
    assert len(answers) == 1


# -- what is sent -------------------------------------------------------------------------------------------


@given(placements(extra=False), workloads())
@FEW
def test_collectives_conserve_bytes(placed, work):
    """What a group sends is what arrives: (n−1) x contributions, 2(n−1) x the sum, all but the own slice."""
    cut, program = placed.cut, lower(placed.model, placed.strategy, "decode")
    for op in (op for segment in program.segments for op in segment.ops if isinstance(op, CommunicationOp)):
        for group in cut.mesh.groups(op.axes):
            messages = [op.message(lane(placed, work, rank)) for rank in group]
            size, sent, n = sum(m.size for m in messages), sum(m.sent for m in messages), len(group)
            if isinstance(op, AllGather):
                assert sent == (n - 1) * size
            elif isinstance(op, AllReduce):
                assert len({m.size for m in messages}) == 1
                assert sent == n * (2 * (n - 1) * messages[0].size // n)
            elif isinstance(op, ReduceScatter):
                assert sent == (n - 1) * messages[0].size
            elif isinstance(op, ExchangeShares):
                assert all(m.sent == op.buffer(lane(placed, work, group[0])) * (n - 1) // n for m in messages)


# -- time ---------------------------------------------------------------------------------------------------


@given(placements(), workloads())
@settings(max_examples=400)
def test_folded_ranks_and_recurrence_agree(placed, work):
    """Classes of equal ranks, every rank by itself, and the recurrence of sweeps give one answer."""
    folded = evaluate(placed, work).step()
    ranks = evaluate(placed, work, granularity="ranks").step()
    assert folded.seconds == pytest.approx(ranks.seconds, **CLOSE)
    assert folded.floor_seconds == pytest.approx(ranks.floor_seconds, **CLOSE)
    if not isinstance(work.context, tuple) and not work.generated:
        swept = sweep(placed, machine(64), work.batch, work.context, work.query_tokens).seconds[0]
        assert folded.seconds == pytest.approx(swept, **CLOSE)


@given(placements(), workloads())
@FEW
def test_a_step_is_what_its_parts_add_up_to_and_never_below_its_floor(placed, work):
    step = evaluate(placed, work).step()
    assert step.seconds >= step.floor_seconds > 0
    assert sum(step.breakdown.values()) == pytest.approx(step.seconds, **CLOSE)
    assert 0 <= step.exposed_communication_seconds <= step.seconds


def _faster(what: str) -> tuple[Machine, Machine]:
    """A machine of 8 H100, and the same one with something twice as good."""
    from sim.catalog.gpus import load_gpu
    from sim.catalog.topologies import parse_topology

    gpu = load_gpu("h100-sxm")
    fabric, constants = parse_topology("hgx-8"), load_constants(gpu.constants)
    changed, quicker = gpu, constants
    if what == "bandwidth":
        changed = gpu.model_copy(update={"bandwidth": gpu.bandwidth * 2})
    elif what == "peak":
        changed = gpu.model_copy(update={"peak": {rate: flops * 2 for rate, flops in gpu.peak.items()}})
    elif what == "links":
        links = gpu.nvlink.model_copy(update={"link_bandwidth": gpu.nvlink.link_bandwidth * 2})
        changed = gpu.model_copy(update={"nvlink": links})
    else:
        families = {
            family: tuple(fit.model_copy(update={"launch": fit.launch / 2}) for fit in constants.fits(family))
            for family in FAMILIES
        }
        quicker = constants.model_copy(update=families)
    return tuple(
        Machine(Kernels(g, k), Collectives(fabric.build(g), g, load_fabric_constants()))
        for g, k in ((gpu, constants), (changed, quicker))
    )


@pytest.mark.parametrize("what", ["bandwidth", "peak", "links", "launch"])
@given(placed=placements(extra=False), work=workloads())
@settings(max_examples=30)
def test_a_better_machine_is_never_slower(what, placed, work):
    if placed.cut.mesh.size > 8:
        return
    slow, fast = (evaluate(placed, work, on).step() for on in _MACHINES[what])
    assert fast.seconds <= slow.seconds * (1 + 1e-12)
    assert fast.floor_seconds <= slow.floor_seconds * (1 + 1e-12)


_MACHINES = {what: _faster(what) for what in ("bandwidth", "peak", "links", "launch")}


@given(placements(), st.integers(1, 40), st.integers(4, 3000), st.integers(1, 3), st.data())
@FEW
def test_more_work_is_never_faster(placed, batch, context, query_tokens, data):
    """A longer cache, more tokens a sequence, and (without a pipeline, which fills with batches) more sequences.

    Ranks that share a sequence's tokens take turns in writing the newest one, so caches are compared at the same turn.
    """
    first = evaluate(placed, Workload(batch=batch, context=context, query_tokens=query_tokens)).step().seconds
    cut = placed.cut
    turn = cut.ownership.block * cut.kv_ranks if cut.kv_ranks > 1 else 1
    longer = context + turn * data.draw(st.integers(1, 3000 // turn + 1))
    more = [Workload(batch=batch, context=longer, query_tokens=query_tokens)]
    more.append(Workload(batch=batch, context=context, query_tokens=query_tokens + 1))
    if placed.strategy.pp == 1:
        grown = batch + data.draw(st.integers(1, 40))
        more.append(Workload(batch=grown, context=context, query_tokens=query_tokens))
    for work in more:
        assert evaluate(placed, work).step().seconds >= first * (1 - 1e-12), work


@given(placements(), workloads(), st.permutations(range(9)))
@FEW
def test_the_order_of_a_ragged_batch_does_not_change_what_one_group_holds(placed, work, order):
    """Where there are several groups, it decides which of them serves a sequence."""
    if not isinstance(work.context, tuple) or placed.cut.sequence_groups * placed.strategy.replicas > 1:
        return
    shuffled = tuple(work.context[i] for i in order if i < len(work.context))
    again = Workload(context=shuffled, query_tokens=work.query_tokens)
    assert evaluate(placed, again).kv() == evaluate(placed, work).kv()


# -- pipelines and memory -----------------------------------------------------------------------------------


@given(st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=5), st.integers(1, 6))
@FEW
def test_pipelines_settle_at_the_closed_form(stages, micro_batches):
    expected = max(sum(stages), micro_batches * max(stages))
    assert engine.pipeline_period([stages] * micro_batches) == pytest.approx(expected, rel=1e-9)


@given(placements(), workloads())
@settings(max_examples=40)
def test_the_largest_batch_and_context_are_exact(placed, work):
    """The figure fits and one more does not, asked again as a scenario of its own."""
    length = max(work.context) if isinstance(work.context, tuple) else work.context
    even = Workload(batch=work.sequences.count, context=length, query_tokens=work.query_tokens)
    memory = evaluate(placed, even).memory()
    replicas = placed.strategy.replicas
    batch, context = memory.max_batch, memory.max_context
    assert _fits(placed, even, batch=batch)
    assert not _fits(placed, even, batch=batch + replicas)
    if context < 2**40:
        assert _fits(placed, even, context=context)
        assert not _fits(placed, even, context=context + 1)


def _fits(placed: Placement, work: Workload, **changed: int) -> bool:
    """Total memory of the fullest rank, with the program of the first scenario (its pieces decide what is alive)."""
    evaluation = evaluate(placed, work)
    batch, context = changed.get("batch", work.batch), changed.get("context", work.context)
    replica = Workload(batch=batch, context=context, query_tokens=work.query_tokens).sequences
    return evaluation._fits(replica.share(0, placed.strategy.replicas))


@pytest.mark.parametrize("degree", DEGREES)
def test_memory_of_one_more_sequence_is_its_cache_and_its_rows(degree):
    placed = placement(model(gqa(24, 2)), "tp", tp=degree)
    one, two = (evaluate(placed, Workload(batch=n, context=500)).memory() for n in (1, 2))
    assert two.kv_bytes == 2 * one.kv_bytes
    assert two.activations_bytes == 2 * one.activations_bytes
    assert two.weights_bytes == one.weights_bytes
    extra = one.kv_bytes + one.activations_bytes
    assert two.total_bytes - one.total_bytes == extra
