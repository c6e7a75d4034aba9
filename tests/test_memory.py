"""Memory of a rank by part: what is alive at once, what libraries register, and what is left for the cache."""

from __future__ import annotations

import pytest
from strategies_for_tests import MOE, evaluate, gqa, lane, machine, mla, model, placement

from sim.lower import lower
from sim.memory import CUSTOM_ALL_REDUCE_BYTES, ActivationProfile, CommunicationBuffers, low_latency_buffer
from sim.program import Program
from sim.workload import Workload

WORK = Workload(batch=8, context=1000)
HIDDEN, WIDTH = 96, 768


def _program(placed, phase="decode") -> Program:
    return lower(placed.model, placed.strategy, phase)


def _activations(placed, work=WORK, rank=0) -> int:
    on = lane(placed, work, rank)
    return ActivationProfile(_program(placed, work.phase), on).bytes(on)


def test_the_peak_is_where_most_is_alive():
    """One rank: SwiGLU with the residual, both halves of the FFN and their product. Eight: logits in fp32, gathered."""
    placed = placement(model(gqa(24, 24)), "tp", tp=1)
    assert _activations(placed) == 8 * (HIDDEN + 2 * WIDTH + WIDTH) * 2
    vocabulary, ranks = 960, 8
    assert _activations(placement(placed.model, "tp", tp=ranks)) == 8 * (vocabulary + vocabulary // ranks) * 4


def test_gathered_tokens_are_paid_for():
    """Attention DP gathers all replicas' tokens in front of the FFN, so more replicas do not shrink the peak there."""
    few, many = (
        _activations(placement(model(gqa(24, 24)), "attention_dp", dp=dp), Workload(batch=8, context=10))
        for dp in (2, 8)
    )
    local = _activations(placement(model(gqa(24, 24)), "tp", tp=8), Workload(batch=1, context=10))
    assert few >= many > local


def test_activations_grow_with_tokens():
    placed = placement(model(gqa(24, 4)), "tp", tp=2)
    one, many = (_activations(placed, Workload(batch=batch, context=1000)) for batch in (1, 64))
    assert many == 64 * one
    assert _activations(placed, Workload(batch=8, context=5)) == 8 * one
    assert _activations(placed, Workload(batch=8, context=5, query_tokens=2)) == 16 * one
    prefill = Workload(phase="prefill", batch=2, context=500)
    assert _activations(placed, prefill) > 100 * one


def _buffers(placed, work=WORK) -> int:
    return CommunicationBuffers(_program(placed)).bytes(lane(placed, work))


def test_buffers_of_the_communication_libraries():
    dense, sparse = model(gqa(24, 4)), model(mla(), MOE)
    assert CUSTOM_ALL_REDUCE_BYTES == 8_388_608
    assert _buffers(placement(dense, "tp", tp=1)) == 0
    assert _buffers(placement(dense, "tp", tp=2)) == 8_388_608
    # rank-major buffers: 4 ranks x 2 tokens x (dispatch + combine) in 16 bit
    assert _buffers(placement(sparse, "wide_ep", dp=4)) == 4 * 2 * (96 * 2 + 96 * 2)
    low_latency = placement(sparse, "wide_ep", dp=4, copies="per_expert")
    assert _buffers(low_latency) == low_latency_buffer(96, 48, 2)


def test_low_latency_buffers_are_aligned():
    for tokens in range(1, 50):
        size = low_latency_buffer(7168, 256, tokens)
        assert size % 128 == 0
        assert size >= 4 * 256 * tokens * (16 + 14336)


def test_parts_add_up_to_the_total():
    placed = placement(model(mla(), MOE), "wide_ep", dp=4)
    m = evaluate(placed, WORK).memory()
    parts = m.attention_bytes + m.dense_ffn_bytes + m.routed_experts_bytes + m.shared_experts_bytes + m.embeddings_bytes
    assert parts == m.weights_bytes
    assert m.total_bytes == (
        m.weights_bytes + m.kv_bytes + m.activations_bytes + m.communication_bytes + m.reserve_bytes
    )
    assert m.capacity_bytes == machine(64).kernels.gpu.memory_bytes


@pytest.mark.parametrize(("usable", "reserve"), [(1.0, 0), (0.9, 19_867_474_330), (0.5, 99_337_371_648)])
def test_what_the_engine_leaves_alone(usable, reserve):
    m = evaluate(placement(model(gqa(24, 4)), "tp", tp=1), WORK, usable_memory=usable).memory()
    assert m.capacity_bytes == 198_674_743_296
    assert m.reserve_bytes == reserve


def test_the_headline_is_the_fullest_rank():
    """The first group of vanilla KV parallelism has the FFN as well; a worker has its cache only."""
    report = evaluate(placement(model(gqa(24, 4)), "kvp", kvp=2, tp=2), WORK).report()
    master, worker = report.ranks
    assert master.weights_bytes > worker.weights_bytes
    assert report.memory.weights_bytes == master.weights_bytes
    assert report.memory.total_bytes == master.total_bytes > worker.total_bytes


def test_limits_of_a_model_that_does_not_fit_at_all():
    """R1 in 16 bit on one GPU: no batch and no context."""
    memory = evaluate(placement("deepseek-r1", "tp", tp=1), Workload(batch=1, context=100)).memory()
    assert memory.total_bytes > memory.capacity_bytes
    assert (memory.max_batch, memory.max_context) == (0, 0)


def test_windows_bound_the_context_that_fits_by_nothing():
    """A cache that stops growing lets any context fit."""
    placed = placement(model(gqa(24, 4, window=128)), "tp", tp=1)
    assert evaluate(placed, Workload(batch=8, context=1000)).memory().max_context == 2**40
