"""Published configs: what is read, what is refused by name, heads and windows in all spellings."""

import pytest
from huggingface_cases import (
    CONFIGS,
    MIMO,
    READ,
    REFUSED,
    attention,
    cached,
    ffn,
    problems,
    published,
    read,
    small,
    windows,
)

from sim.huggingface.config import read_config


@pytest.mark.parametrize(("name", "expected"), READ.items())
def test_a_published_config_is_read(name, expected):
    model = read(name)
    first = cached(model)[0]
    found = (first.label, model.layers, first.query_heads, first.cached_heads, first.cache_elements)
    assert found == expected[:-1]
    assert model.parameters / 1e9 == pytest.approx(expected[-1], abs=0.001)


@pytest.mark.parametrize(("name", "kinds"), REFUSED.items())
def test_a_layer_kind_that_is_not_modelled_is_refused_by_name_and_key(name, kinds):
    found = problems(published(name))
    for key, kind in kinds.items():
        assert f"not modelled: {kind}" in found[key]


def test_every_stored_config_is_either_read_or_refused():
    assert {path.stem for path in CONFIGS.glob("*.json")} == set(READ) | set(REFUSED)


@pytest.mark.parametrize(
    ("changes", "kv_heads", "head_dim"),
    [
        ({}, 2, 8),
        ({"head_dim": 32}, 2, 32),
        ({"num_key_value_heads": None}, 8, 8),
        ({"num_key_value_heads": None, "num_kv_heads": 4}, 4, 8),
        ({"num_key_value_heads": None, "multi_query_group_num": 4, "kv_channels": 16}, 4, 16),
        ({"num_key_value_heads": None, "multi_query_group_num": 4, "multi_query_attention": False}, 8, 8),
        ({"num_key_value_heads": None, "multi_query": True}, 1, 8),
        ({"model_type": "falcon", "multi_query": True, "num_kv_heads": 8}, 1, 8),
        ({"model_type": "falcon", "new_decoder_architecture": True, "num_key_value_heads": 4}, 4, 8),
        ({"model_type": "falcon", "multi_query": False, "num_key_value_heads": None}, 8, 8),
    ],
)
def test_kv_heads_and_head_dimension_in_all_spellings(changes, kv_heads, head_dim):
    block = attention(small(**changes))[0]
    assert (block.kv_heads, block.head_dim) == (kv_heads, head_dim)


def test_mla_ignores_head_dim_and_the_stated_kv_heads():
    config = published("DeepSeek-R1") | {"head_dim": 192, "num_key_value_heads": 3}
    assert attention(read_config(config, "x"))[0].cache_elements == 512 + 64


def test_mla_without_a_query_rank_is_read():
    assert attention(read_config(published("DeepSeek-R1") | {"q_lora_rank": None}, "x"))[0].q_lora_rank is None


@pytest.mark.parametrize("key", ["kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"])
def test_mla_with_a_size_missing_is_never_read_as_gqa(key):
    config = published("DeepSeek-R1")
    del config[key]
    assert "is missing: needed for" in problems(config)[key]


def test_gemma_4_has_two_geometries_and_one_projection_for_k_and_v_in_the_global_ones():
    local, everything = attention(read("Gemma-4-26B-A4B"))[4:6]
    assert (local.kv_heads, local.head_dim, local.window, local.shared_kv) == (8, 256, 1024, False)
    assert (everything.kv_heads, everything.head_dim, everything.window) == (2, 512, None)
    assert everything.shared_kv


def test_mimo_has_more_kv_heads_and_sinks_in_its_sliding_layers():
    model = small(**MIMO)
    assert windows(model) == [None, 128, 128, 128, None, 128, 128, None]
    full, local = attention(model)[:2]
    assert (full.kv_heads, full.cache_elements, full.sinks) == (2, 40, False)
    assert (local.kv_heads, local.cache_elements, local.sinks) == (4, 40, True)


def test_step_has_more_query_heads_in_its_sliding_layers():
    other = {"attention_type": "sliding_attention", "num_attention_heads": 96, "num_attention_groups": 8}
    config = published("Step-3.7-Flash") | {"attention_other_setting": other}
    model = read_config(config, "x")
    assert [a.query_heads for a in attention(model)[:5]] == [64, 96, 96, 96, 64]
    assert model.parameters == pytest.approx(196e9, rel=0.01)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"model_type": "mistral", "sliding_window": 16}, "LLLLLLLL"),
        ({"model_type": "mistral", "sliding_window": None}, "GGGGGGGG"),
        ({"model_type": "mistral", "sliding_window": 16, "use_sliding_window": False}, "GGGGGGGG"),
        ({"model_type": "qwen2", "sliding_window": 16}, "GGGGGGGG"),
        ({"model_type": "qwen3_moe", "sliding_window": 16}, "GGGGGGGG"),
        ({"model_type": "qwen2", "sliding_window": 16, "use_sliding_window": False}, "GGGGGGGG"),
        (
            {"model_type": "qwen2", "sliding_window": 16, "use_sliding_window": True, "max_window_layers": 5},
            "GGGGGLLL",
        ),
        ({"sliding_window": 16, "max_window_layers": 0}, "GGGGGGGG"),
        ({"sliding_window": 16, "sliding_window_pattern": 4}, "LLLGLLLG"),
        ({"sliding_window": 16, "sliding_window_pattern": "LLG"}, "LLGLLGLL"),
        ({"model_type": "gemma2", "sliding_window": 16}, "LGLGLGLG"),
        ({"model_type": "gemma3_text", "sliding_window": 16}, "LLLLLGLL"),
        ({"model_type": "gpt_oss", "sliding_window": 16}, "LGLGLGLG"),
        ({"sliding_window": 16, "layer_types": ["full_attention"] * 8}, "GGGGGGGG"),
        (
            {"sliding_window": 16, "layer_types": ["sliding_attention"] * 2 + ["full_attention"] * 6},
            "LLGGGGGG",
        ),
        (
            {
                "sliding_window": 16,
                "num_nextn_predict_layers": 3,
                "layer_types": ["sliding_attention"] * 7 + ["full_attention"] * 4,
            },
            "LLLLLLLG",
        ),
        ({"model_type": "llama4", "attention_chunk_size": 16}, "LLLGLLLG"),
        (
            {"model_type": "llama4", "attention_chunk_size": 16, "no_rope_layers": [1, 0] * 4},
            "LGLGLGLG",
        ),
        ({"model_type": "llama4"}, "GGGGGGGG"),
        ({"attention_chunk_size": 16}, "GGGGGGGG"),
    ],
)
def test_which_layers_see_a_window_only(changes, expected):
    found = windows(small(**changes))
    assert "".join("G" if window is None else "L" for window in found) == expected
    assert {window for window in found if window} <= {16}


@pytest.mark.parametrize("name", ["Qwen3-235B-A22B-mislabelled", "Qwen2.5-VL-7B", "Qwen3-32B", "Mixtral-8x7B"])
def test_a_window_that_is_not_used_is_not_read(name):
    assert set(windows(read(name))) == {None}


def test_the_mislabelled_file_is_read_by_its_architecture_not_its_model_type():
    config = published("Qwen3-235B-A22B-mislabelled")
    del config["use_sliding_window"]
    model = read_config(config, "x")
    assert set(windows(model)) == {None}
    assert (attention(model)[0].qk_norm, attention(model)[0].qkv_bias) == (True, False)
    assert ffn(model)[0].shared_width == 0


def test_a_shortened_list_of_layer_types_gives_way_to_the_pattern():
    assert windows(read("EXAONE-4.5")) == [4096, 4096, 4096, None] * 16


def test_three_of_four_layers_of_llama_4_are_chunked():
    model = read("Llama-4-Scout")
    assert windows(model) == [8192, 8192, 8192, None] * 12
    assert [block.chunked for block in attention(model)] == [True, True, True, False] * 12
