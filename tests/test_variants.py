"""Scenarios that vary fields: what a path changes, how rows are named, and what cannot be varied."""

from __future__ import annotations

import pytest

from sim.catalog.models import load_model
from sim.errors import InputError
from sim.run import compare, load
from sim.scenario import parse_scenario
from sim.study.definition import Study
from sim.variants import apply, changed, expand

BASE = {
    "model": "llama-3.1-8b",
    "gpu": "h100-sxm",
    "topology": "hgx-8",
    "workload": {"phase": "decode", "batch": 4, "context": 1024},
    "layouts": [{"strategy": "tp", "tp": 1}, {"strategy": "tp", "tp": 2}],
}


def varied(vary, **changes):
    return parse_scenario(BASE | {"vary": vary} | changes)


def attention(model):
    (layer,) = model.kinds
    return layer.attention


def test_a_mapping_is_every_combination_and_a_list_is_itself():
    assert len(expand({"a": [1, 2], "b": [3, 4, 5]})) == 6
    assert expand({"a": 1}) == [{"a": 1}]
    assert expand([{"a": 1, "b": 2}, {"c": 3}]) == [{"a": 1, "b": 2}, {"c": 3}]


def test_a_range_is_that_of_a_study_and_a_mapping_of_other_keys_is_one_value():
    assert expand({"workload.context": {"from": "1k", "to": "4k", "times": 2}}) == [
        {"workload.context": 1024 * n} for n in (1, 2, 4)
    ]
    assert expand({"topology": {"kind": "nvl72"}}) == [{"topology": {"kind": "nvl72"}}]


def test_too_many_variants_are_refused_before_they_are_made():
    with pytest.raises(InputError, match="100,000,000,000,000,000,000 variants are more than 256"):
        expand({f"model.f{i}": list(range(100)) for i in range(10)})


def test_group_size_keeps_the_query_heads():
    model = load_model("llama-3.1-8b")
    one = changed(model, ["attention", "group_size"], 16)
    assert (attention(one).query_heads, attention(one).kv_heads) == (32, 2)
    assert attention(changed(model, ["attention", "head_dim"], 64)).v_head_dim == 64
    assert attention(changed(model, ["attention", "window"], 512)).window == 512


def test_depth_and_width():
    model = load_model("llama-3.1-8b")
    assert changed(model, ["layers"], 10).layers == 10
    assert changed(model, ["hidden"], 8192).hidden == 8192
    alternating = load_model("gpt-oss-20b")
    assert changed(alternating, ["layers"], 12).layers == 12
    with pytest.raises(InputError, match="multiple of the pattern"):
        changed(alternating, ["layers"], 13)
    assert (
        changed(load_model("deepseek-r1"), ["attention", "kv_lora_rank"], 256).runs[-1][1].attention.kv_lora_rank == 256
    )


def test_rows_are_named_and_in_order():
    scenario = varied({"model.attention.kv_heads": [8, 4], "workload.context": ["1k", "2k"]})
    assert [label for label, _ in scenario.each] == [
        "kv_heads 8, context 1k",
        "kv_heads 8, context 2k",
        "kv_heads 4, context 1k",
        "kv_heads 4, context 2k",
    ]
    report = compare(scenario)
    assert len(report.layouts) == 8
    assert report.layouts[0].tag == "tp1 kv_heads 8, context 1k"
    assert report.layouts[0].kv.unique_bytes == 2 * report.layouts[4].kv.unique_bytes
    assert report.layouts[0].variant == report.layouts[1].variant == "kv_heads 8, context 1k"
    assert any(line.startswith("kv_heads 4, context 2k: fastest ") for line in report.findings)


def test_one_layout_is_named_by_the_variant_alone():
    report = compare(varied({"workload.batch": [1, 2]}, layouts=BASE["layouts"][:1]))
    assert [layout.tag for layout in report.layouts] == ["batch 1", "batch 2"]


def test_a_variant_is_the_scenario_that_one_would_write():
    scenario = varied([{"workload.context": 2048, "precision.kv_cache": "fp8", "gpu": "h200-sxm"}])
    by_hand = parse_scenario(
        BASE
        | {
            "gpu": "h200-sxm",
            "workload": {"phase": "decode", "batch": 4, "context": 2048},
            "precision": {"kv_cache": "fp8"},
        }
    )
    assert scenario.each[0][1] == by_hand


def test_a_path_leads_into_lists_and_into_what_is_named():
    values = {"layouts.*.pp": 2, "layouts.1.tp": 8, "model.vocab": 7, "gpu.bandwidth": 1e12, "workload.batch": 5}
    found = apply(BASE, values)
    assert found["layouts"] == [{"strategy": "tp", "tp": 1, "pp": 2}, {"strategy": "tp", "tp": 8, "pp": 2}]
    assert (found["model"].name, found["model"].vocab) == ("llama-3.1-8b", 7)
    assert (found["gpu"]["name"], found["gpu"]["bandwidth"]) == ("h100-sxm", 1e12)
    assert found["workload"] == BASE["workload"] | {"batch": 5}
    assert BASE["layouts"] == [{"strategy": "tp", "tp": 1}, {"strategy": "tp", "tp": 2}]
    assert BASE["model"] == "llama-3.1-8b"


def test_a_study_varies_what_a_scenario_does():
    values = {"model.attention.group_size": 16, "layouts.0.tp": 4}
    study = Study(base=BASE, vary={path: [value] for path, value in values.items()})
    assert study.scenario(tuple(values.items())) == varied([values]).each[0][1]


def test_options_reach_every_variant():
    scenario = varied({"workload.batch": [1, 2]}).adjusted(granularity="ranks")
    assert {one.granularity for _, one in scenario.each} == {"ranks"}


def test_a_resolved_sweep_reads_back():
    scenario = varied({"workload.batch": [1, 2]})
    assert parse_scenario(scenario.resolved()).variants == tuple(
        v.model_copy(update={"scenario": w.scenario})
        for v, w in zip(scenario.variants, parse_scenario(scenario.resolved()).variants, strict=True)
    )


@pytest.mark.parametrize(
    ("vary", "message"),
    [
        ({}, "leaves nothing to run"),
        ("x", "must be paths with lists"),
        ({"modle.hidden": [1]}, "unknown key 'modle'; did you mean 'model'"),
        ({"layouts.2.tp": [1]}, "'2' is not one of the 2 items"),
        ({"layouts.x.tp": [1]}, "'x' is not one of the 2 items"),
        ({"workload.batch.of": [1]}, "leads into a value that has no parts"),
        ({"model.attention.nothing": [1]}, "no layer of llama-3.1-8b has attention.nothing"),
        ({"model.nothing": [1]}, "model.nothing: unknown key 'nothing'"),
        ({"model.attention.group_size": [5]}, "32 query heads cannot be shared out in groups of 5"),
        ({"model.layers": [0]}, "layers must be a whole number above 0"),
        ({"model.attention.kv_heads": ["x"]}, "kv_heads"),
        ({"workload.batch": [0]}, "batch 0: workload.batch"),
        ({"workload.context": list(range(1, 400))}, "more than 256"),
    ],
)
def test_what_cannot_be_varied(vary, message):
    with pytest.raises(InputError, match=message):
        varied(vary)


def test_problems_of_a_file_have_their_line(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text(
        "model: llama-3.1-8b\ngpu: h100-sxm\nworkload: {batch: 1, context: 100}\n"
        "layouts: [{strategy: tp, tp: 1}]\nvary: {workload.batch: [0, 1]}\n"
    )
    with pytest.raises(InputError, match=r"s.yaml:5:\d+: vary: batch 0: workload.batch"):
        load(path)
