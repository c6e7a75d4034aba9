"""Degrees of engines become layouts, layouts become commands, and back."""

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sim.catalog.models import load_model
from sim.catalog.strategies import parse_layout
from sim.errors import LayoutError
from sim.launch import export_layout, parse, resolve
from sim.launch.layouts import layout_of
from sim.launch.tables import ENGINES

R1, QWEN, LLAMA = load_model("deepseek-r1"), load_model("qwen3-235b-a22b"), load_model("llama-3.1-70b")


@pytest.mark.parametrize(
    ("command", "layout"),
    [
        ("vllm serve deepseek-ai/DeepSeek-R1 -tp 8 -ep", {"strategy": "tp", "tp": 8, "ep": 8}),
        ("vllm serve deepseek-ai/DeepSeek-R1 -tp 8 -dcp 4", {"strategy": "dcp", "tp": 8, "dcp": 4}),
        ("vllm serve deepseek-ai/DeepSeek-R1 -dp 8 -ep", {"strategy": "attention_dp", "dp": 8, "ep": 8}),
        (
            "VLLM_ALL2ALL_BACKEND=deepep_low_latency vllm serve deepseek-ai/DeepSeek-R1 -dp 8 -ep",
            {"strategy": "wide_ep", "dp": 8, "copies": "per_expert"},
        ),
        ("vllm serve meta-llama/Llama-3.1-70B -dp 2 -tp 4", {"strategy": "tp", "tp": 4, "replicas": 2}),
        (
            "sglang serve --model deepseek-ai/DeepSeek-R1 --tp 8 --dp 4 --enable-dp-attention",
            {"strategy": "attention_dp", "dp": 4, "tp": 2},
        ),
        ("sglang serve --model deepseek-ai/DeepSeek-R1 --tp 8 --dp 2", {"strategy": "tp", "tp": 8, "replicas": 2}),
        (
            "sglang serve --model deepseek-ai/DeepSeek-R1 --tp 8 --dp 8 --enable-dp-attention --moe-a2a-backend deepep "
            "--deepep-mode normal",
            {"strategy": "wide_ep", "dp": 8},
        ),
        (
            "trtllm-serve deepseek-ai/DeepSeek-R1 --tp_size 8 --moe_tensor_parallel_size 2 --pp_size 2",
            {"strategy": "tp", "tp": 8, "ep": 4, "pp": 2, "stage_split": "trtllm"},
        ),
    ],
)
def test_what_degrees_mean(command, layout):
    assert resolve(parse(command)).layout == parse_layout(layout)


_POWER = st.sampled_from([1, 2, 4, 8, 16])
_EXCHANGE = st.sampled_from(["ag_rs", "a2a"])
_LAYOUTS = st.one_of(
    st.fixed_dictionaries({"strategy": st.just("tp"), "tp": _POWER, "ep": _POWER}),
    st.fixed_dictionaries(
        {"strategy": st.just("dcp"), "tp": _POWER, "dcp": _POWER, "ep": _POWER, "exchange": _EXCHANGE}
    ),
    st.fixed_dictionaries(
        {
            "strategy": st.just("attention_dp"), "dp": _POWER, "tp": _POWER, "ep": _POWER,
            "dense": st.sampled_from([None, "world", "attention_tp"]),
            "vocab": st.sampled_from([None, "world", "attention_tp"]),
        }
    ),
    st.fixed_dictionaries(
        {
            "strategy": st.just("wide_ep"), "dp": _POWER, "tp": _POWER, "redundant_experts": st.sampled_from([0, 32]),
            "copies": st.sampled_from(["per_rank", "per_expert"]),
            "placement": st.sampled_from(["linear", "round_robin"]),
        }
    ),
    st.fixed_dictionaries({"strategy": st.just("helix"), "tpa": _POWER, "kvp": _POWER, "dp": _POWER, "ep": _POWER}),
)  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(
    _LAYOUTS,
    st.sampled_from([1, 2]),
    st.sampled_from([1, 2]),
    st.sampled_from(ENGINES),
    st.sampled_from([R1, QWEN, LLAMA]),
)
def test_an_exported_layout_reads_back_as_itself(fields, pp, replicas, engine, model):
    fields = {key: value for key, value in fields.items() if value is not None}
    layout = parse_layout({**fields, "pp": pp, "replicas": replicas})
    assume(not layout.check(model))
    try:
        found = export_layout(layout, model, engine)
    except LayoutError:
        return
    back = layout_of(parse(found.command, options=found.options or None), model)
    if found.exact:
        assert back == layout
    else:
        assert (type(back), back.degrees(), back.pp) == (type(layout), layout.degrees(), layout.pp)
        changed = {note.partition(":")[0] for note in found.notes}
        assert {n for n in type(layout).model_fields if getattr(back, n) != getattr(layout, n)} <= changed


@pytest.mark.parametrize(
    ("engine", "layout"),
    [
        ("vllm", {"strategy": "tp", "tp": 8, "ep": 8, "pp": 2}),
        ("vllm", {"strategy": "dcp", "tp": 8, "dcp": 8, "exchange": "a2a", "block": 16}),
        ("vllm", {"strategy": "attention_dp", "dp": 8, "ep": 8}),
        ("vllm", {"strategy": "wide_ep", "dp": 8, "tp": 2, "copies": "per_expert", "redundant_experts": 32}),
        ("sglang", {"strategy": "attention_dp", "dp": 4, "tp": 2, "ep": 8}),
        ("sglang", {"strategy": "attention_dp", "dp": 4, "tp": 2}),
        ("sglang", {"strategy": "tp", "tp": 8, "ep": 4, "replicas": 2}),
        ("sglang", {"strategy": "wide_ep", "dp": 8}),
        ("trtllm", {"strategy": "helix", "tpa": 2, "kvp": 4, "ep": 4, "block": 64}),
        ("trtllm", {"strategy": "helix", "tpa": 1, "kvp": 4, "dp": 2, "ep": 8}),
        ("trtllm", {"strategy": "attention_dp", "dp": 8, "ep": 8}),
        ("trtllm", {"strategy": "wide_ep", "dp": 8}),
    ],
)
def test_layouts_that_an_engine_expresses_exactly(engine, layout):
    assert export_layout(parse_layout(layout), R1, engine).exact


def test_what_an_engine_cannot_do():
    with pytest.raises(LayoutError, match="vllm has no flags for helix"):
        export_layout(parse_layout({"strategy": "helix", "kvp": 8}), R1, "vllm")
    with pytest.raises(LayoutError, match="tp8-ep8 instead of tp8-ep4"):
        export_layout(parse_layout({"strategy": "tp", "tp": 8, "ep": 4}), R1, "vllm")
    found = export_layout(parse_layout({"strategy": "tp", "tp": 8, "rank_order": list(range(8))}), R1, "vllm")
    assert found.notes == ("rank_order: None in vllm instead of (0, 1, 2, 3, 4, 5, 6, 7)",)


def test_degrees_that_contradict_each_other_are_reasons():
    launch = resolve(parse("sglang serve --model deepseek-ai/DeepSeek-R1 --tp 8 --dp 3 --enable-dp-attention"))
    assert launch.layout is None
    assert launch.reasons == ("attention dp 3 does not divide tp 8",)
