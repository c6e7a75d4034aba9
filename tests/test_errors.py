"""A table of wrong files and the exact lines that ``shardwise check`` prints about them."""

import pytest

from sim.cli.app import execute
from sim.errors import InputError, Problem, ScenarioError
from sim.scenario import Scenario
from sim.workload import Workload

MODEL, GPU, WORK = "model: qwen3-235b-a22b\n", "gpu: h200-sxm\n", "workload: {batch: 64, context: 32k}\n"
TP8 = "layouts:\n  - {strategy: tp, tp: 8}\n"
HEAD = MODEL + GPU + WORK
FORMATS = (
    "fp32, bf16, fp16, fp8, fp8_block, fp8_group, mxfp8, int8, int4, int4_g32, fp4, nvfp4, mxfp4, "
    "fp8_ds_mla, nvfp4_ds_mla"
)
KEYS = ", ".join(Scenario.model_fields).replace("variants", "vary")
NEEDS = "a scenario needs model, gpu, workload, layouts"
SPACE = "choose smaller degrees or a larger topology"

CASES = {
    "nothing but a name": (
        "name: x",
        [f"s.yaml:1:1: {key}: is missing; {NEEDS}" for key in ("model", "gpu", "workload", "layouts")],
    ),
    "a key that does not exist": (
        HEAD + TP8 + "topologi: hgx-8",
        [f"s.yaml:6:1: topologi: unknown key 'topologi'; did you mean 'topology'? known keys: {KEYS}"],
    ),
    "a key inside a part": (
        MODEL + GPU + "workload: {batchsize: 3, batch: 4, context: 32k}\n" + TP8,
        [
            "s.yaml:3:12: workload.batchsize: unknown key 'batchsize'; did you mean 'batch'? known keys: "
            f"{', '.join(Workload.model_fields)}"
        ],
    ),
    "a duplicate key": (
        HEAD + TP8 + "gpu: gb200",
        ["s.yaml:6:1: gpu: is written twice; first on line 2"],
    ),
    "a name that is a number": (
        "name: 5\n" + HEAD + TP8,
        ["s.yaml:1:1: name: must be text (in quotes if it looks like a number), not 5"],
    ),
    "a name with an escape": (
        'name: "a\\eb"\n' + HEAD + TP8,
        ["s.yaml:1:1: name: must be printable text on one line"],
    ),
    "a model that is a list": (
        "model: [a]\n" + GPU + WORK + TP8,
        ["s.yaml:1:1: model: must be a name, not a list"],
    ),
    "a model with a missing field": (
        "model: {name: x, hidden: 8, pattern: [{count: 1, layer: {attention: null, ffn: {kind: dense}}}]}\n"
        + GPU
        + WORK
        + TP8,
        [
            "s.yaml:1:1: model.vocab: is missing; needed: name, hidden, vocab, pattern",
            "s.yaml:1:75: model.pattern.0.layer.ffn.width: is missing",
        ],
    ),
    "a model of an unknown attention": (
        "model: {name: x, hidden: 8, vocab: 9, pattern: [{count: 1, layer: {attention: {kind: rwkv}, ffn: null}}]}\n"
        + GPU
        + WORK
        + TP8,
        ["s.yaml:1:80: model.pattern.0.layer.attention.kind: must be gqa or mla, not 'rwkv'"],
    ),
    "a format that does not exist": (
        HEAD + TP8 + "precision: {weights: fp7}",
        [f"s.yaml:6:13: precision.weights: 'fp7' is not a number format; choose one of {FORMATS}"],
    ),
    "a unit that does not exist": (
        MODEL + GPU + "workload:\n  batch: 64\n  context: 32q\n" + TP8,
        [
            "s.yaml:5:3: workload.context: '32q' has the unit 'q', which is not one of a count "
            "(k, K, M, G, m, Ki, Mi, Gi)"
        ],
    ),
    "a batch that does not match its contexts": (
        MODEL + GPU + "workload: {batch: 3, context: [32k, 16k]}\n" + TP8,
        ["s.yaml:3:1: workload: batch 3 differs from the 2 context lengths listed"],
    ),
    "memory beyond all of it": (
        HEAD + TP8 + "usable_memory: 1.5",
        ["s.yaml:6:1: usable_memory: must be at most 1.0, not 1.5"],
    ),
    "a flag for a fraction": (
        HEAD + TP8 + "usable_memory: true",
        ["s.yaml:6:1: usable_memory: must be a fraction such as 0.9, not true"],
    ),
    "a granularity that does not exist": (
        HEAD + TP8 + "granularity: flow",
        ["s.yaml:6:1: granularity: must be folded, ranks or flows, not 'flow'"],
    ),
    "no layouts": (
        HEAD + "layouts: []",
        ["s.yaml:4:1: layouts: must be a list such as [{strategy: tp, tp: 8}], not a list of 0"],
    ),
    "layouts that are words": (
        HEAD + "layouts: [tp8,]",
        ["s.yaml:4:11: layouts.0: must be keys such as {strategy: tp, tp: 8}, not 'tp8'"],
    ),
    "a degree that does not divide": (
        HEAD + "layouts:\n  - strategy: dcp\n    tp: 8\n    dcp: 3\n",
        ["s.yaml:7:5: layouts.0.dcp: 3 does not divide tp 8; choose 1, 2, 4 or 8"],
    ),
    "a degree under an engine's name": (
        HEAD + "layouts:\n  - strategy: dcp\n    tp: 8\n    decode_context_parallel_size: 3\n",
        [
            "s.yaml:7:5: layouts.0.decode_context_parallel_size: 3 does not divide tp 8; choose 1, 2, 4 or 8",
        ],
    ),
    "more heads than there are": (
        HEAD + "layouts:\n  - {strategy: tp, tp: 3}\n",
        [
            "s.yaml:5:20: layouts.0.tp: 3 ranks (tp) do not divide the 64 query heads of qwen3-235b-a22b; "
            "choose 1, 2, 4, 8, 16, 32 or 64"
        ],
    ),
    "more GPUs than there are": (
        HEAD + "layouts:\n  - {strategy: tp, tp: 8, pp: 2}\n",
        [f"s.yaml:5:5: layouts.0: needs 16 GPUs, the topology (hgx) has 8; {SPACE}"],
    ),
    "two layouts with one tag": (
        HEAD + TP8 + "  - {strategy: tp, tp: 8, stage_split: trtllm}\n",
        [
            "s.yaml:6:5: layouts.1: has the same tag 'tp8' as layouts.0; give one of them a tag of its own, "
            "such as tag: tp8-b"
        ],
    ),
    "a strategy for decode in prefill": (
        MODEL
        + GPU
        + "workload: {phase: prefill, batch: 1, context: 4k}\nlayouts:\n  - {strategy: kvp, kvp: 2, tp: 4}\n",
        ["s.yaml:5:6: layouts.0.strategy: kvp runs decode only, not prefill"],
    ),
    "a machine that the GPU does not fit": (
        "model: qwen3-8b\ngpu: l40s\ntopology: nvl72\n" + WORK + TP8,
        ["s.yaml:3:1: topology: nvl72 needs NVLink, which l40s lacks; use pcie"],
    ),
    "a topology with a wrong field": (
        HEAD + TP8 + "topology: {kind: cluster, nodes: 0, nic: fast}",
        [
            "s.yaml:6:27: topology.nodes: must be at least 1, not 0",
            "s.yaml:6:37: topology.nic: 'fast' is not a bandwidth; write for example 900 GB/s, 400 Gb/s or 900e9",
        ],
    ),
    "a text that YAML reads as two keys": (
        "name: four heads: what now?\n" + HEAD + TP8,
        ["s.yaml:1:17: a second ': ' on one line; put a text that contains ': ' in quotes"],
    ),
    "several problems of every kind, in the order of the file": (
        "model: qwen3-235b-a22b\ngpu: h200-sxm\nworkload: {phase: decod, context: 32k}\n"
        "layouts:\n  - {strategy: tp, tp: 0}\n  - {strategy: dcp, tp: 8, dcp: true}\n  -\n",
        [
            "s.yaml:3:12: workload.phase: must be decode, prefill or mixed, not 'decod'",
            "s.yaml:5:20: layouts.0.tp: must be at least 1, not 0",
            "s.yaml:6:28: layouts.1.dcp: must be a number, not true",
            "s.yaml:7:4: layouts.2.strategy: is missing; choose one of attention_dp, dcp, helix, kvp, tp, wide_ep",
        ],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_wrong_file_says_where_which_rule_what_value_and_what_would_work(case, tmp_path, monkeypatch, capsys):
    text, expected = CASES[case]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.yaml").write_text(text, encoding="utf-8")
    assert execute(["check", "s.yaml"]) == 2
    printed = capsys.readouterr()
    assert printed.err.splitlines() == expected
    assert printed.out == ""


def test_a_problem_writes_place_key_and_message_and_leaves_out_what_it_has_not():
    assert str(Problem("is wrong", "a.b", "f.yaml:1:2")) == "f.yaml:1:2: a.b: is wrong"
    assert str(Problem("is wrong")) == "is wrong"


def test_an_input_error_carries_all_its_problems():
    error = ScenarioError([Problem("one", "a"), "two"])
    assert isinstance(error, InputError)
    assert error.problems == (Problem("one", "a"), Problem("two"))
    assert str(error) == "a: one\ntwo"
