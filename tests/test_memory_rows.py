"""KV bytes per token that engines report when they start are what the placement says (tests/data/memory_rows.csv)."""

from __future__ import annotations

import csv
from fractions import Fraction
from pathlib import Path

import pytest
from strategies_for_tests import gqa, lane, model, placement

from sim.catalog.models import load_model
from sim.model import LatentAttention, Model
from sim.workload import Precision, Workload

LINES = (Path(__file__).parent / "data" / "memory_rows.csv").read_text("utf-8").splitlines()
ROWS = list(csv.DictReader(line for line in LINES if not line.startswith("#")))
CATALOGUE = {
    "Qwen3-235B-A22B-FP8": "qwen3-235b-a22b",
    "Llama-3.1-8B": "llama-3.1-8b",
    "Qwen3-8B": "qwen3-8b",
    "Qwen3-0.6B (1.2 GB weights)": "qwen3-0.6b",
    "Qwen3-30B-A3B": "qwen3-30b-a3b",
    "Qwen3-30B-A3B-FP8": "qwen3-30b-a3b",
    "gpt-oss-120b": "gpt-oss-120b",
    "Kimi-K2.5": "kimi-k2.5",
    "DeepSeek-V3/R1": "deepseek-v3",
}


def _model(row: dict[str, str]) -> Model:
    """The catalogue's model, or one with the layers and heads of the row."""
    if row["model"] in CATALOGUE:
        return load_model(CATALOGUE[row["model"]])
    layers, size = int(row["layers"]), int(row["head_dim_or_latent"])
    if row["attention"] == "MLA":
        latent = LatentAttention(
            query_heads=64, q_lora_rank=None, kv_lora_rank=size - 64, rope_dim=64, nope_dim=128, v_head_dim=128
        )
        return model(latent, layers=layers)
    heads = int(row["kv_heads"])
    return model(gqa(8 * heads, heads, size), layers=layers)


@pytest.mark.parametrize("row", ROWS, ids=[f"{r['row']}-{r['model'].split(' ')[0]}" for r in ROWS])
def test_bytes_of_one_token_on_one_rank(row):
    context, precision = 8192, Precision(kv_cache=row["kv_cache"])
    tp, dcp = int(row["tp"]), int(row["dcp"])
    placed = placement(_model(row), "dcp", precision, tp=tp, dcp=dcp)
    assert placed.model.layers == int(row["layers"])
    on = lane(placed, Workload(batch=1, context=context))
    # of a whole sequence, because ranks that share its tokens hold a part of them only
    bytes_ = Fraction(on.kv_tokens(None) * placed.kv_bytes_per_token(0, on), context)
    assert bytes_ == Fraction(row["formula_bytes"])
    assert float(bytes_) == pytest.approx(float(row["observed_bytes"]), rel=0.0035)


def test_rows_cover_both_kinds_of_attention_and_three_engines():
    assert len(ROWS) == 29
    assert {row["attention"] for row in ROWS} == {"GQA", "MLA"}
    assert {row["engine"].split(" ")[0].split("+")[0].split("-")[0] for row in ROWS} == {
        "vLLM",
        "SGLang",
        "TensorRT",
    }


@pytest.mark.parametrize(
    ("name", "degrees", "gib"),
    [
        *(("qwen3-235b-a22b", tp, 11.75) for tp in (4, 8, 16)),
        ("llama-3.1-70b", 16, 10.0),
        ("llama-3.3-70b", 16, 10.0),
        *(("deepseek-v3", tp, 17.16) for tp in (1, 2, 4, 8, 16, 32, 64, 128)),
    ],
)
def test_cache_of_32_sequences_of_8192_tokens(name, degrees, gib):
    """Beyond the KV heads more ranks do not shrink it, and a latent head is never split."""
    placed = placement(name, "tp", tp=degrees)
    work = Workload(batch=32, context=8192)
    sizes = {placed.kv_bytes(0, lane(placed, work, rank)) for rank in range(degrees)}
    assert [round(size / 2**30, 2) for size in sizes] == [gib]


@pytest.mark.parametrize(("degrees", "gib"), [(1, 47.0), (2, 23.5), (4, 11.75), (8, 11.75), (16, 11.75), (64, 11.75)])
def test_the_cache_of_qwen3_stops_shrinking_at_its_four_heads(degrees, gib):
    placed = placement("qwen3-235b-a22b", "tp", tp=degrees)
    assert placed.kv_bytes(0, lane(placed, Workload(batch=32, context=8192))) == gib * 2**30
