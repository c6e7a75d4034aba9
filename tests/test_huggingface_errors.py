"""Configs and files that are wrong: every problem at once, and never an exception but ModelError."""

import copy
import json
import math

import pytest
from huggingface_cases import CONFIGS, MIMO, MOE, READ, SMALL, attention, problems
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sim.errors import ModelError
from sim.explain import show
from sim.huggingface.config import load_config, read_config
from sim.model import GroupedQueryAttention


def test_an_empty_config_names_every_missing_key_at_once():
    found = problems({})
    assert set(found) == {
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "intermediate_size",
        "vocab_size",
    }
    assert all(message.startswith("is missing: needed for") for message in found.values())
    assert "n_embd" in found["hidden_size"]


@pytest.mark.parametrize("value", ["64", -1, 0, math.nan, math.inf, True, [8], {}, 1.5, 10**12])
@pytest.mark.parametrize("key", [k for k in SMALL if k != "model_type"])
def test_a_wrong_number_names_key_rule_and_value(key, value):
    message = problems(SMALL | {key: value})[key]
    assert "must be a whole number from 1 to" in message
    assert f"is {show(value)}" in message


@pytest.mark.parametrize(
    ("changes", "key", "message"),
    [
        ({"num_key_value_heads": 3}, "num_key_value_heads", "8 query heads are not a multiple of 3 KV heads"),
        ({"num_attention_heads": 6}, "head_dim", "64 (hidden size) is not a multiple of 6 heads"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings", "must be true or false, is 'yes'"),
        ({"model_type": 3}, "model_type", "must be a string, is 3"),
        ({"quantization_config": []}, "quantization_config", "must be an object, is a list of 0"),
        ({"text_config": 7}, "text_config", "must be an object, is 7"),
        ({"layer_types": ["full_attention"]}, "layer_types", "8 entries, one per layer, is a list of 1"),
        ({"layer_types": [1] * 8}, "layer_types", "each entry must be"),
        (
            {"sliding_window": 4, "sliding_window_pattern": "LX"},
            "sliding_window_pattern",
            "made of L (window)",
        ),
        ({**MOE, "num_experts_per_tok": 9}, "num_experts_per_tok", "9 active experts are more than the 8"),
        ({**MOE, "moe_layers_enum": "1,x"}, "moe_layers_enum", "must list layer numbers from 0"),
        ({"num_hidden_layers": 10_001}, "num_hidden_layers", "from 1 to 10,000"),
    ],
)
def test_a_rule_that_is_broken_is_named(changes, key, message):
    assert message in problems(SMALL | changes)[key]


def test_all_problems_come_together_and_once():
    found = problems({"hidden_size": "x", "num_hidden_layers": 2, "num_attention_heads": 0, "vocab_size": -3})
    assert set(found) == {
        "hidden_size",
        "num_attention_heads",
        "vocab_size",
        "num_key_value_heads",
        "intermediate_size",
    }


def test_a_key_in_a_nested_config_is_named_with_its_path():
    assert "text_config.hidden_size" in problems({"text_config": SMALL | {"hidden_size": 0}})


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"attn_type_list": [0, 1]}, "linear (lightning) attention"),
        ({"num_kv_shared_layers": 20}, "a KV cache that several layers share"),
        ({"cross_attention_layers": [3]}, "cross attention to an image"),
        ({"is_encoder_decoder": True}, "an encoder with cross attention"),
        ({"model_type": "mamba2"}, "the recurrent state of 'mamba2'"),
        ({"layer_types": ["conv"] * 8}, "layers of type 'conv'"),
    ],
)
def test_other_kinds_are_refused_by_name_too(changes, kind):
    assert any(f"not modelled: {kind}" in message for message in problems(SMALL | changes).values())


@pytest.mark.parametrize("config", [[], 3, None, "text"])
def test_a_config_that_is_no_object_is_a_model_error(config):
    with pytest.raises(ModelError, match="must be a JSON object"):
        read_config(config, "x")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"  \n", "is empty"),
        (b"[1, 2]", "must hold one JSON object, holds a list of 2"),
        (b'{"a": 1,\n "b": }', ":2:7: is not JSON: Expecting value"),
        (b"\xef\xbb\xbf{}", "starts with a byte-order mark"),
        (b'{"hidden_size": 1, "hidden_size": 2}', "hidden_size: stands twice in one object"),
        (b'{"text_config": {"a": 1, "a": 2}}', "a: stands twice in one object"),
        (b'{"hidden_size": 1e999}', "hidden_size: must be a whole number"),
        (b'{"hidden_size": NaN}', "hidden_size: must be a whole number"),
        (b'{"hidden_size": 1' + b"0" * 5000 + b"}", "a number too long"),
        (b'{"a": ' + b"[" * 100_000, "nested too deep"),
        (b'{"a": "\xff"}', "is not UTF-8 text: byte 7"),
    ],
)
def test_a_file_that_is_no_config_says_why(content, message, tmp_path):
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    with pytest.raises(ModelError) as caught:
        load_config(path)
    assert message in str(caught.value)
    assert str(caught.value).startswith(str(path))


@pytest.mark.parametrize(
    ("name", "message"), [("gone.json", "no such file"), (".", "is a directory"), ("a\0b", "null")]
)
def test_a_path_that_is_no_file_says_why(name, message, tmp_path):
    with pytest.raises(ModelError, match=message):
        load_config(tmp_path / name)


def test_a_model_is_named_after_its_file_or_its_folder(tmp_path):
    for name in ("config.json", "other.json"):
        (tmp_path / name).write_text(json.dumps(SMALL))
    assert load_config(tmp_path / "config.json").name == tmp_path.name
    other = load_config(tmp_path / "other.json")
    assert (other.name, other.source) == ("other", str(tmp_path / "other.json"))


ANYTHING = st.one_of(
    st.sampled_from([None, True, False, 0, -1, 1, 2, 7, 64, 10**30, 10**5000, math.nan, math.inf, "", "LLG", "1,2"]),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.lists(st.sampled_from([0, 1, None, "full_attention", "sliding_attention", "dense", "sparse"]), max_size=9),
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=4)),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
        max_leaves=4,
    ),
)
ALL = {path.stem: json.loads(path.read_text()) for path in CONFIGS.glob("*.json")}
KEYS = sorted({key for c in ALL.values() for key in (*c, *c.get("text_config", {}))} | set(MIMO) | set(MOE))


def survives(config):
    try:
        model = read_config(config, "fuzzed")
    except ModelError as error:
        return bool(error.problems) and bool(str(error))
    attends = all(isinstance(a, GroupedQueryAttention) or a is None or a.label == "MLA" for a in attention(model))
    return attends and model.parameters > 0


@settings(max_examples=1500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    name=st.sampled_from(sorted(READ)),
    changes=st.dictionaries(st.sampled_from(KEYS), ANYTHING, min_size=1, max_size=4),
    nested=st.booleans(),
)
def test_any_value_of_any_key_gives_a_model_or_a_model_error(name, changes, nested):
    config = copy.copy(ALL[name])
    if nested and "text_config" in config:
        config["text_config"] = config["text_config"] | changes
    assert survives(config | ({} if nested else changes))


@settings(max_examples=300, deadline=None)
@given(part=st.dictionaries(st.sampled_from(["n_heads_in_group", "ffn_mult", "no_op", "window_length"]), ANYTHING))
def test_any_searched_layer_gives_a_model_or_a_model_error(part):
    assert survives(SMALL | {"block_configs": [{"attention": part, "ffn": part}] * 8})


@settings(max_examples=300, deadline=None)
@given(
    config=st.dictionaries(
        st.sampled_from(["quant_method", "quant_algo", "bits", "config_groups", "ignore", "weight_block_size"]),
        ANYTHING | st.sampled_from(["fp8", "gptq", "compressed-tensors", {"g": {"weights": {"num_bits": []}}}]),
    )
)
def test_any_quantisation_gives_a_model_or_a_model_error(config):
    assert survives(SMALL | {"quantization_config": config})


@settings(max_examples=300, deadline=None)
@given(content=st.binary(max_size=40) | st.text(alphabet='{}[]":,0123e-. tru\n', max_size=40).map(str.encode))
def test_any_bytes_give_a_model_error(content, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "fuzz.json"
    path.write_bytes(content)
    with pytest.raises(ModelError):
        load_config(path)
