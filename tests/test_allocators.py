"""What engines set aside, against start-up logs and by hand; the bytes that a model keeps are never above it."""

from __future__ import annotations

import pytest
from strategies_for_tests import gqa, lane, placement

from sim.allocators import allocator_names, load_allocator
from sim.errors import InputError
from sim.model import Layer, LayerRun, Model
from sim.workload import Precision, Workload

# engine, model, layout, format of the cache, bytes a token and rank that the log shows (within 0.1 %)
LOGS = {
    "M036": ("vllm", "gpt-oss-120b", ("tp", {"tp": 1}), "bf16", 73_728),
    "M041": ("sglang", "nemotron-3-nano-30b-a3b", ("tp", {"tp": 4}), "bf16", 3_072),
    "M067": ("sglang", "glm-5", ("tp", {"tp": 8}), "bf16", 100_152),
    "M079": ("vllm", "glm-5.1", ("tp", {"tp": 8}), "fp8", 61_464),
    "M081": ("vllm", "glm-5.1", ("dcp", {"tp": 8, "dcp": 4}), "fp8", 15_366),
}


@pytest.mark.parametrize("row", LOGS)
def test_bytes_per_token_are_those_of_the_log(row):
    engine, name, (kind, degrees), kv, expected = LOGS[row]
    placed = placement(name, kind, Precision(kv_cache=kv), **degrees)
    on = lane(placed, Workload(batch=1, context=8192))
    assert load_allocator(engine).token_bytes(placed, 0, on) == expected


def test_vllm_gives_windows_of_another_geometry_the_pages_of_the_largest_layer():
    layers = (LayerRun(count=50, layer=Layer(attention=gqa(32, 16, 256, window=1024))),)
    full = LayerRun(count=10, layer=Layer(attention=gqa(32, 4, 512)))
    gemma = Model(name="gemma-4-31b", hidden=96, vocab=960, pattern=(*layers, full))
    placed = placement(gemma, "tp", tp=1)
    on = lane(placed, Workload(batch=1, context=8192))
    assert load_allocator("vllm").token_bytes(placed, 0, on) == 983_040
    assert load_allocator("sglang").token_bytes(placed, 0, on) == 0.8 * 50 * 16_384 + 10 * 8_192
    assert load_allocator("trtllm").token_bytes(placed, 0, on) == 10 * 8_192


def test_sglang_counts_the_index_on_every_rank_that_shares_a_sequence():
    placed = placement("glm-5.1", "dcp", Precision(kv_cache="fp8"), tp=8, dcp=4)
    on = lane(placed, Workload(batch=1, context=8192))
    assert load_allocator("sglang").token_bytes(placed, 0, on) == 78 * (656 + 4 * 132) / 4


def test_blocks_of_a_windowed_layer():
    windowed = Model(
        name="w",
        hidden=96,
        vocab=960,
        pattern=tuple(LayerRun(count=1, layer=Layer(attention=gqa(8, 2, 16, window=w))) for w in (128, None)),
    )
    placed = placement(windowed, "tp", tp=1)
    on = lane(placed, Workload(batch=3, context=1000))
    page = 16 * 2 * 2 * 16 * 2
    assert load_allocator("vllm").reserved(placed, 0, on) == 3 * (9 + 63) * page  # ceil(128/16) + 1, ceil(1000/16)


@pytest.mark.parametrize("engine", allocator_names())
@pytest.mark.parametrize(
    "name",
    ["llama-3.1-8b", "gpt-oss-120b", "gemma-4-26b-a4b", "glm-5.2", "qwen3-next-80b-a3b", "nemotron-3-nano-30b-a3b"],
)
@pytest.mark.parametrize(("kind", "degrees"), [("tp", {"tp": 2}), ("dcp", {"tp": 4, "dcp": 2})])
def test_what_is_set_aside_holds_what_is_kept(engine, name, kind, degrees):
    placed = placement(name, kind, **degrees)
    policy = load_allocator(engine)
    for context in (1, 17, 1000, 8192):
        for rank in range(placed.cut.mesh.size):
            on = lane(placed, Workload(batch=2, context=context), rank)
            assert policy.reserved(placed, 0, on) >= placed.kv_bytes(0, on)


def test_every_policy_states_its_version_and_source():
    assert allocator_names() == ["sglang", "trtllm", "vllm"]
    assert all(policy.version and policy.source for policy in map(load_allocator, allocator_names()))
    with pytest.raises(InputError, match="choose one of sglang, trtllm, vllm"):
        load_allocator("mine")
