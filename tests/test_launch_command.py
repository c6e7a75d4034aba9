"""Commands are read as the engines read them, and nothing that may matter is guessed."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.errors import InputError
from sim.launch import parse, resolve
from sim.launch.deployments import parse_file
from sim.launch.tables import ENGINES, flag_table
from sim.launch.values import read_count


def said(command, **more):
    return parse(command, **more).model_dump(exclude_defaults=True, exclude={"engine", "ignored"})


@pytest.mark.parametrize(
    "command",
    [
        "vllm serve m/x --tensor-parallel-size 8 --decode-context-parallel-size 2",
        "vllm serve m/x -tp 8 -dcp=2",
        "vllm serve --tensor_parallel_size=8 --decode_context_parallel_size 2 m/x",
        "VLLM_USE_V1=1 CUDA_VISIBLE_DEVICES=0,1 /usr/bin/vllm serve m/x \\\n -tp 8 \\\n -dcp 2 2>&1 | tee log",
        "python3 -m vllm.entrypoints.openai.api_server --model m/x -tp 8 -dcp 2 > log &",
        "docker run --gpus all -p 80:80 vllm/vllm-openai:v0.33.0 --model m/x -tp 8 -dcp 2",
    ],
)
def test_spellings_of_one_launch(command):
    assert said(command) == {"model": "m/x", "tp": 8, "dcp": 2}


def test_values():
    found = said(
        "vllm serve m/x --max-model-len 32k --max-num-batched-tokens 8K --gpu-memory-utilization .85 -ep"
        ' --enforce-eager --speculative-config \'{"method": "mtp", "num_speculative_tokens": 3}\' --block-size 64'
    )
    assert found == {
        "model": "m/x", "max_length": 32000, "batched_tokens": 8192, "memory_fraction": 0.85, "expert_parallel": True,
        "eager": True, "draft_method": "mtp", "draft_tokens": 3, "block_size": 64,
    }  # fmt: skip
    assert "max_length" not in said("vllm serve m/x --max-model-len auto")
    assert said("vllm serve m/x -tp 2 -tp 4")["tp"] == 4
    assert [read_count(t) for t in ("1k", "1K", "1Ki", "2.5k", "-1")] == [1000, 1024, 1024, 2500, None]


def test_every_problem_at_once():
    with pytest.raises(InputError) as caught:
        parse("vllm serve m/x -tp eight --gpu-memory-utilization 2 --cpu-offload-gb 4 --pipeline-parallel-size $PP")
    keys = [problem.key for problem in caught.value.problems]
    assert keys == ["-tp", "--gpu-memory-utilization", "--cpu-offload-gb", "--pipeline-parallel-size"]


def test_unknown_flags_are_listed_unless_their_words_touch_memory():
    assert parse("vllm serve m/x --frobnicate 3 --colour").ignored == ("--frobnicate", "--colour")
    for flag in ("--kv-frobnicate", "--new-parallel-mode", "--hf-overrides", "--enable-lora"):
        with pytest.raises(InputError, match="may touch layout or memory"):
            parse(f"vllm serve m/x {flag} 3")
    with pytest.raises(InputError, match="VLLM_PP_LAYER_PARTITION"):
        parse("VLLM_PP_LAYER_PARTITION=56,8 vllm serve m/x -pp 2")


def test_nothing_is_run_or_expanded(tmp_path):
    target = tmp_path / "made"
    with pytest.raises(InputError):
        parse(f"vllm serve `touch {target}` -tp $(touch {target})")
    assert not target.exists()


def test_models():
    launch = resolve(parse("vllm serve /models/qwen3-235b-a22b-FP8/ -tp 4"))
    assert (launch.model.name, launch.precision.weights, launch.layout.label) == ("qwen3-235b-a22b", "fp8_block", "tp4")
    assert "because of its name" in launch.notes[0]
    with pytest.raises(InputError, match=r"huggingface\.co/acme/unheard-of/resolve/main/config\.json.*--config"):
        resolve(parse("vllm serve acme/unheard-of"))
    with pytest.raises(InputError, match="names no model"):
        resolve(parse("vllm serve -tp 4"))


def test_options_of_tensorrt_llm():
    cache = "kv_cache_config: {dtype: fp8, free_gpu_memory_fraction: 0.7}"
    options = f"tensor_parallel_size: 8\nenable_attention_dp: true\n{cache}\n"
    found = parse("trtllm-serve deepseek-ai/DeepSeek-R1 --extra_llm_api_options o.yaml --ep_size 8", options=options)
    assert (found.tp, found.ep, found.attention_dp, found.kv_format, found.memory_fraction) == (8, 8, True, "fp8", 0.7)
    assert resolve(found).layout.label == "dp8-ep8"
    with pytest.raises(InputError, match="was not given"):
        parse("trtllm-serve m/x --extra_llm_api_options o.yaml")
    with pytest.raises(InputError, match=r"o\.yaml:1:1: kv_thing"):
        parse("trtllm-serve m/x --config o.yaml", options="kv_thing: 3\n")


def test_deployments(tmp_path):
    graph = {
        "kind": "DynamoGraphDeployment",
        "spec": {
            "services": {
                "Frontend": {"extraPodSpec": {"mainContainer": {"image": "x"}}},
                "decode": {
                    "extraPodSpec": {
                        "mainContainer": {
                            "command": ["python3", "-m", "dynamo.sglang"],
                            "args": ["--model-path", "m/x", "--tp", "8", "--dp", "8", "--enable-dp-attention"],
                        }
                    }
                },
            }
        },
    }
    file = tmp_path / "graph.yaml"
    file.write_text(json.dumps(graph))
    (decode,) = parse_file(file)
    assert (decode.engine, decode.role, decode.tp, decode.dp, decode.attention_dp) == ("sglang", "decode", 8, 8, True)
    file.write_text(
        "a-vllm: {model: m/x, framework: vllm, precision: fp4, scenarios: {f: [{isl: 1, search-space: "
        "[{tp: 8, ep: 8, dp-attn: true}, {tp: 8, dcp-size: 4}]}]}}"
    )
    first, second = parse_file(file)
    assert (first.model, first.tp, first.dp, first.expert_parallel) == ("m/x-NVFP4", 1, 8, True)
    assert (second.tp, second.dcp) == (8, 4)
    file.write_text("model: m/x\ntensor-parallel-size: 8\nkv-cache-dtype: fp8\n")
    assert said_of(parse_file(file)[0]) == {"model": "m/x", "tp": 8, "kv_format": "fp8"}


def said_of(found):
    return found.model_dump(exclude_defaults=True, exclude={"engine", "ignored"})


def test_no_flag_has_two_meanings():
    for engine in ENGINES:
        table = flag_table(engine)
        every = [n for group in (table.flags, table.neutral, table.switches) for known in group for n in known.names]
        assert len(every) == len(set(every))


def problem_of(call):
    """What a call complains about, or ``None``; any other exception is a bug."""
    try:
        call()
    except InputError as error:
        return str(error).strip()


_KEYS = ["kind", "spec", "services", "model", "framework", "scenarios", "search-space", "tp", "args"]
_TEXT = """vllm serve python -m sglang.launch_server trtllm-serve m/x -tp --tp 8 0 -1 1e9 { --speculative-config {} []
null '{"method":"mtp"}' --max-model-len auto --config x.yaml && | $X ' " \\ A=1 --kv-cache-dtype fp8 -ep -- = --=3 é
Qwen/Qwen3-8B -dcp --ep-size"""
_WORDS = st.sampled_from(_TEXT.split())


@settings(max_examples=400, deadline=None)
@given(st.one_of(st.text(max_size=60), st.lists(_WORDS, max_size=12).map(" ".join)))
def test_malformed_commands_are_errors_or_answers(text):
    assert problem_of(lambda: resolve(parse(text))) != ""


@settings(max_examples=150, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["kind", "spec", "services", "model", "framework", "scenarios", "search-space", "tp", "args"]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    )
)
def test_malformed_files_are_errors_or_answers(tmp_path_factory, data):
    file = Path(tmp_path_factory.mktemp("launch")) / "x.yaml"
    file.write_text(json.dumps(data))
    assert problem_of(lambda: parse_file(file)) != ""
