"""Claims of the field about attention and hardware, each as a sweep with the check that it must pass.

Exact where FLOPs and bytes decide; where kernels do, relations that hold for any sensible constants.
"""

from __future__ import annotations

import itertools
from functools import lru_cache
from math import log2

import pytest

from sim.kernels import Kernels, load_constants
from sim.program import Work
from sim.run import compare, load, rooflines
from sim.scenario import parse_scenario
from sim.shapes import Gemm

BASE = {
    "model": "qwen3-32b",
    "topology": "hgx-8",
    "precision": {"weights": "fp8", "kv_cache": "fp8"},
    "layouts": [{"strategy": "tp", "tp": 1}],
}
GROUPS = [1, 2, 4, 8, 16, 32, 64]
GPUS = ["h200-sxm", "b200-sxm"]


@lru_cache(maxsize=32)
def core(gpu: str, phase: str, context: int, groups: tuple[int, ...] = (8,), contexts: tuple[int, ...] = ()):
    """Attention's row of each variant."""
    work = {"phase": phase, "batch": 1 if phase == "prefill" else 64, "context": context}
    vary = {"model.attention.group_size": list(groups), "workload.context": list(contexts) or [context]}
    report = rooflines(parse_scenario(BASE | {"gpu": gpu, "workload": work, "vary": vary}))
    return [next(row for row in layout.rows if row.name == "attention.core") for layout in report.layouts]


@pytest.mark.parametrize("gpu", GPUS)
def test_decode_attention_halves_per_doubling_of_the_group_until_it_flattens(gpu):
    rows = core(gpu, "decode", 131072, tuple(GROUPS))
    bandwidth = parse_scenario(BASE | {"gpu": gpu, "workload": {"batch": 1, "context": 1}}).gpu.bandwidth
    reads = [row.kv_bytes / bandwidth / row.seconds for row in rows]
    ratios = [a.seconds / b.seconds for a, b in itertools.pairwise(rows)]
    halved = [ratio for ratio, a, b in zip(ratios, reads, reads[1:], strict=False) if min(a, b) >= 0.9]
    assert len(halved) >= 2
    assert halved == pytest.approx([2] * len(halved), rel=0.05)
    assert ratios[-1] < 1.5
    assert [a.kv_bytes / b.kv_bytes for a, b in itertools.pairwise(rows)] == [2] * 6


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize(("context", "most"), [(16384, 0.05), (131072, 0.01)])
def test_prefill_attention_hardly_depends_on_the_group(gpu, context, most):
    """At 16k the keys and values of 64 KV heads, rotated and written, still show (the claim has 1 % there too)."""
    rows = core(gpu, "prefill", context, tuple(GROUPS))
    seconds = [row.seconds for row in rows]
    assert max(seconds) / min(seconds) - 1 < most
    assert len({row.flops for row in rows}) == 1


@pytest.mark.parametrize("gpu", GPUS)
def test_prefill_attention_is_quadratic_and_decode_linear(gpu):
    contexts = tuple(1024 * 2**i for i in range(9))
    for phase, slope, within in (("prefill", 2, 0.05), ("decode", 1, 0.02)):
        rows = core(gpu, phase, 1024, (8,), contexts)
        slopes = [log2(b.seconds / a.seconds) for a, b in itertools.pairwise(rows)]
        assert slopes[-1] == pytest.approx(slope, abs=within)
        assert slopes[0] < slopes[-1]


@pytest.mark.parametrize("gpu", GPUS)
def test_heads_of_64_are_slower_than_of_128_at_the_same_work(gpu):
    shape = [("head_dim", 64, 128, 16), ("head_dim", 128, 64, 8)]
    vary = [
        {"model.attention.head_dim": d, "model.attention.query_heads": q, "model.attention.kv_heads": k}
        for _, d, q, k in shape
    ]
    work = {"phase": "prefill", "batch": 1, "context": 16384}
    report = rooflines(parse_scenario(BASE | {"gpu": gpu, "workload": work, "vary": vary}))
    narrow, wide = (next(r for r in layout.rows if r.name == "attention.core") for layout in report.layouts)
    assert narrow.flops == wide.flops
    assert narrow.seconds > 1.05 * wide.seconds


def test_attention_takes_a_growing_part_of_the_prefill_of_r1():
    """12.5 and 82.1 % of all FLOPs at 4k and 128k; of the time more, because attention reaches less of its peak."""
    report = rooflines(load("deepseek_r1_prefill"))
    parts = []
    for layout in report.layouts:
        rows = {row.name: row for row in layout.rows}
        attention = rows["attention.core"].flops
        whole = rows["step"].flops - rows["logits.lm_head"].flops
        parts.append(100 * attention / whole)
    assert parts[0] == pytest.approx(12.5, abs=1)
    assert parts[-1] == pytest.approx(82.1, abs=1)


def test_few_kv_heads_leave_tensor_parallelism_as_the_context_grows():
    report = compare(load("few_kv_heads"))
    kv = {layout.tag: layout.memory.kv_bytes for layout in report.layouts}
    for context in ("8k", "128k", "1M"):
        plain = kv[f"tp8-ep8 context {context}"]
        others = [size for tag, size in kv.items() if tag.endswith(f" {context}") and not tag.startswith("tp8-ep8")]
        assert [plain / size for size in others] == [2] * 4
    lines = [line for line in report.findings if ": fastest " in line]
    assert len(lines) == 3
    assert "tp8-ep8" not in lines[2]
    assert "dcp" in lines[2] or "kvp" in lines[2]


def test_speculation_raises_the_intensity_of_attention_and_nothing_it_reads():
    vary = {"workload.query_tokens": [1, 2, 4, 8, 16]}
    work = {"phase": "decode", "batch": 64, "context": 32768}
    report = rooflines(parse_scenario(BASE | {"gpu": "h200-sxm", "workload": work, "vary": vary}))
    rows = [next(r for r in layout.rows if r.name == "attention.core") for layout in report.layouts]
    assert [row.kv_intensity for row in rows] == [2 * 8 * q for q in (1, 2, 4, 8, 16)]
    assert len({row.kv_bytes for row in rows}) == 1
    products = [next(r for r in layout.rows if r.name == "ffn.gate_up") for layout in report.layouts]
    assert [row.bound for row in products] == ["memory"] * 2 + ["compute"] * 3
    assert [row.flops / products[0].flops for row in products] == [1, 2, 4, 8, 16]


def test_tensor_parallelism_beyond_the_kv_heads_stops_reading_less():
    work = {"phase": "decode", "batch": 64, "context": 32768}
    layouts = [{"strategy": "tp", "tp": tp} for tp in (1, 2, 4, 8)]
    vary = {"model.attention.kv_heads": [1, 2, 4, 8]}
    report = rooflines(parse_scenario(BASE | {"gpu": "h200-sxm", "workload": work, "layouts": layouts, "vary": vary}))
    rows = [next(r for r in layout.rows if r.name == "attention.core") for layout in report.layouts]
    one_head = 64 * 64 * 32768 * 2 * 128
    assert [row.kv_bytes / one_head for row in rows] == [max(1, k // tp) for k in (1, 2, 4, 8) for tp in (1, 2, 4, 8)]


def test_the_second_product_of_a_4_bit_ffn():
    """N = 8192, K = 512 on a GB300: 0.14, 1.15 and 9.16 us of arithmetic, 0.30, 0.37 and 0.89 us of reading."""
    gpu = parse_scenario(BASE | {"gpu": "gb300", "topology": "nvl72", "workload": {"batch": 1, "context": 1}}).gpu
    kernels = Kernels(gpu, load_constants(gpu.constants))
    n, k = 8192, 512
    for m, compute, read in ((256, 0.143, 0.304), (2048, 1.145, 0.369), (16384, 9.163, 0.885)):
        operands = (m * k + n * k) * 4.5 / 8
        work = Work(Gemm(m, n, k), 2 * m * n * k, "nvfp4", n * k * 4.5 / 8, 0, m * k * 4.5 / 8)
        assert 1e6 * work.flops / gpu.peak["fp4"] == pytest.approx(compute, rel=0.01)
        assert 1e6 * operands / gpu.bandwidth == pytest.approx(read, rel=0.01)
        assert 1e6 * kernels.cost(work).floor == pytest.approx(max(compute, read), rel=0.01)
