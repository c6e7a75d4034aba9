"""Scenarios: defaults, round trips, and that nothing but a ScenarioError comes out of a wrong one."""

import copy
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from sim.catalog.gpus import gpu_names, load_gpu
from sim.catalog.models import load_model
from sim.catalog.scenarios import find_scenario, scenario_names
from sim.documents import read_document
from sim.errors import ScenarioError
from sim.render.export import to_yaml
from sim.scenario import Scenario, load_scenario, parse_scenario
from sim.scenario_parts import default_topology
from sim.workload import Workload
from strategies.tp import TensorParallel

BASE = {
    "model": "qwen3-235b-a22b",
    "gpu": "h200-sxm",
    "workload": {"batch": 64, "context": "32k"},
    "layouts": [{"strategy": "tp", "tp": 8}],
}


def reread(scenario: Scenario) -> Scenario:
    return parse_scenario(read_document(to_yaml(scenario.resolved()), "resolved.yaml").data)


def problems(**changes: object) -> list[str]:
    with pytest.raises(ScenarioError) as caught:
        parse_scenario(BASE | changes)
    return [str(problem) for problem in caught.value.problems]


def test_defaults_are_filled_in_and_written_out():
    resolved = parse_scenario(BASE).resolved()
    assert resolved["topology"] == {"kind": "hgx", "gpus": 8}
    assert resolved["precision"]["weights"] == "bf16"
    work = {"phase": "decode", "batch": 64, "context": 32768, "query_tokens": 1}
    assert work.items() <= resolved["workload"].items()
    assert (resolved["usable_memory"], resolved["granularity"]) == (0.9, "folded")
    assert resolved["layouts"][0] == {
        "strategy": "tp",
        "pp": 1,
        "replicas": 1,
        "stage_split": "vllm",
        "two_batch_overlap": False,
        "tp": 8,
        "ep": 1,
    }


@pytest.mark.parametrize("name", scenario_names())
def test_every_shipped_scenario_survives_resolving_pickling_and_copying(name):
    scenario = load_scenario(name)
    assert reread(scenario) == scenario
    assert pickle.loads(pickle.dumps(scenario)) == scenario
    assert copy.deepcopy(scenario) == scenario
    assert find_scenario(name).read_text(encoding="utf-8").startswith("# "), "says first what question it answers"


def test_a_list_of_contexts_takes_units_and_survives_resolving():
    scenario = parse_scenario(BASE | {"workload": {"context": ["32k", 1000, "1M"]}})
    assert scenario.workload.context == (32768, 1000, 2**20)
    assert reread(scenario) == scenario


def test_models_and_gpus_that_are_not_in_the_catalogue_are_written_in_full():
    model = load_model("llama-3.1-8b").model_copy(update={"name": "mine", "max_context": None})
    gpu = load_gpu("h100-sxm").model_copy(update={"name": "h100-96gb", "memory_bytes": 96 * 10**9})
    scenario = parse_scenario(BASE | {"model": model, "gpu": gpu})
    assert scenario.resolved()["model"]["name"] == "mine"
    assert scenario.resolved()["gpu"]["memory_bytes"] == 96 * 10**9
    assert reread(scenario) == scenario


def test_a_model_path_starts_at_the_folder_of_the_scenario(tmp_path):
    (tmp_path / "my-model.yaml").write_text(to_yaml(load_model("qwen3-8b").model_dump(mode="json", exclude_none=True)))
    file = tmp_path / "s.yaml"
    file.write_text(to_yaml(BASE | {"model": "my-model.yaml"}))
    assert load_scenario(file).model.layers == 36


def test_a_scenario_without_a_name_is_called_after_its_file(tmp_path):
    file = tmp_path / "what_if.yaml"
    file.write_text(to_yaml(BASE))
    assert load_scenario(file).name == "what_if"


def test_weights_default_to_the_checkpoints_own_format():
    assert parse_scenario(BASE | {"model": "deepseek-r1"}).precision.weights == "fp8_block"
    said = parse_scenario(BASE | {"model": "deepseek-r1", "precision": {"weights": "bf16"}})
    assert said.precision.weights == "bf16"


@pytest.mark.parametrize(
    ("gpu", "topology"),
    [
        ("h200-sxm", "hgx-8"),
        ("gb200", "nvl72"),
        ("gb300", "nvl72"),
        ("b200-sxm", "hgx-8"),
        ("l40s", "pcie-8"),
        ("h100-pcie", "pcie-8"),
        ("v100-sxm2-32gb", "dgx1"),
    ],
)
def test_the_default_topology_is_the_machine_the_gpu_comes_in(gpu, topology):
    assert default_topology(load_gpu(gpu)) == topology


@pytest.mark.parametrize("gpu", gpu_names())
def test_every_gpu_fits_its_default_topology(gpu):
    model = {"model": "llama-3.1-8b", "gpu": gpu}
    assert parse_scenario(BASE | model).gpu.name == gpu


def test_a_layout_is_found_by_its_tag():
    scenario = parse_scenario(BASE | {"layouts": [{"strategy": "tp", "tp": 8, "tag": "plain"}]})
    assert scenario.layout("plain") == TensorParallel(tp=8, tag="plain")
    with pytest.raises(ScenarioError, match="no layout has the tag 'tp8'; choose one of plain"):
        scenario.layout("tp8")


def test_scenarios_are_frozen_and_refuse_impossible_layouts_in_python_too():
    scenario = parse_scenario(BASE)
    with pytest.raises(ValidationError):
        scenario.name = "other"
    fields = {name: getattr(scenario, name) for name in Scenario.model_fields}
    with pytest.raises(ValidationError, match=r"layouts\.0\.tp: 3 ranks"):
        Scenario(**(fields | {"layouts": (TensorParallel(tp=3),)}))


def test_nouns_may_stand_in_for_their_data():
    nouns = {"workload": Workload(batch=64, context=32768), "layouts": [TensorParallel(tp=8)]}
    assert parse_scenario(BASE | nouns) == parse_scenario(BASE)


def test_a_topology_that_needs_other_gpus_is_refused():
    assert problems(gpu="l40s", topology="hgx-8") == ["topology: hgx needs NVLink, which l40s lacks; use pcie"]


def test_problems_of_a_model_file_name_that_file(tmp_path):
    config = tmp_path / "config.json"
    config.write_text('{"architectures": ["LlamaForCausalLM"], "model_type": "llama"}')
    with pytest.raises(ScenarioError) as caught:
        parse_scenario(BASE | {"model": "config.json"}, base=tmp_path)
    assert {problem.where for problem in caught.value.problems} == {str(config)}


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(["tp", "hgx-8"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["strategy", "tp", "kvp", "kind", "name", "batch", "context", "nodes", "pattern"]), inner
        )
    ),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from(list(Scenario.model_fields)), JUNK, min_size=1, max_size=3))
def test_no_data_raises_anything_but_a_scenario_error(changes):
    try:
        parse_scenario(BASE | changes)
    except ScenarioError as error:
        text = str(error)
        assert not any(word in text for word in ("Input should", "Field required", "pydantic", "Value error"))
