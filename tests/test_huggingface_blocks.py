"""Feed-forward blocks, traits of the class, searched layers, quantisation, and what is left out."""

import math

import pytest
from huggingface_cases import FP8_BLOCK, MOE, SMALL, attention, ffn, problems, read, small, sparse

from sim.formats import FORMATS
from sim.huggingface.config import read_config


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "EEEEEEEE"),
        ({"first_k_dense_replace": 3}, "dddEEEEE"),
        ({"first_k_dense_replace": 1, "moe_layer_freq": 2}, "ddEdEdEd"),
        ({"moe_layer_freq": [0, 0, 1, 1, 1, 1, 1, 0]}, "ddEEEEEd"),
        ({"moe_layers_enum": "3,4,5"}, "dddEEEdd"),
        ({"moe_layers": [1, 3, 5, 7]}, "dEdEdEdE"),
        ({"mlp_layer_types": ["dense"] + ["sparse"] * 7}, "dEEEEEEE"),
        ({"mlp_only_layers": [0, 1], "decoder_sparse_step": 1}, "ddEEEEEE"),
        ({"mlp_only_layers": [], "decoder_sparse_step": 2}, "dEdEdEdE"),
        ({"interleave_moe_layer_step": 2}, "dEdEdEdE"),
        ({"moe_layer_start_index": 1, "moe_layer_end_index": 6, "moe_layer_interval": 1}, "dEEEEEEd"),
        ({"moe_layer_start_index": 0, "moe_layer_end_index": -1, "moe_layer_interval": 2}, "dEdEdEdE"),
        ({"enable_moe_block": False}, "dddddddd"),
    ],
)
def test_which_layers_have_experts(changes, expected):
    found = sparse(small(**MOE, **changes))
    assert "".join("E" if is_sparse else "d" for is_sparse in found) == expected


@pytest.mark.parametrize("experts", ["n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts"])
@pytest.mark.parametrize(
    "active", ["num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_k", "top_k_experts"]
)
def test_experts_and_active_experts_in_all_spellings(experts, active):
    block = ffn(small(**{experts: 16, active: 4, "moe_intermediate_size": 32}))[0]
    assert (block.experts, block.top_k, block.width) == (16, 4, 32)


@pytest.mark.parametrize(
    ("changes", "width"),
    [
        ({}, 0),
        ({"n_shared_experts": 2}, 64),
        ({"num_shared_experts": 1}, 32),
        ({"moe_num_shared_experts": 2}, 64),
        ({"n_shared_experts": 0}, 0),
        ({"share_expert_dim": 48, "n_shared_experts": 1}, 48),
        ({"shared_expert_intermediate_size": 96}, 96),
        ({"shared_expert_intermediate_size": 0}, 0),
        ({"model_type": "llama4"}, 32),
    ],
)
def test_total_width_of_the_shared_experts(changes, width):
    assert ffn(small(**MOE, **changes))[0].shared_width == width


def test_mixtral_keeps_the_width_of_an_expert_in_intermediate_size():
    assert ffn(read("Mixtral-8x7B"))[0].width == 14336


def test_llama_4_keeps_the_dense_width_in_a_key_of_its_own():
    dense, routed = ffn(read("Llama-4-Maverick"))[:2]
    assert (dense.width, routed.width, routed.shared_width) == (16384, 8192, 8192)


def test_gemma_4_runs_a_dense_block_beside_its_experts():
    block = ffn(read("Gemma-4-26B-A4B"))[0]
    assert (block.shared_width, block.shared_part, block.top_k) == (2112, "dense_ffn", 8)


def test_counts_of_experts_that_disagree_are_a_problem():
    assert "disagree" in problems(SMALL | MOE | {"num_experts": 9})["num_experts"]


@pytest.mark.parametrize(
    ("model_type", "changes", "traits"),
    [
        ("llama", {}, set()),
        ("llama", {"attention_bias": True}, {"qkv_bias", "o_bias"}),
        ("qwen2", {}, {"qkv_bias"}),
        ("qwen3", {}, {"qk_norm"}),
        ("glm4_moe", {"attention_bias": True, "use_qk_norm": True}, {"qkv_bias", "qk_norm"}),
        ("glm4_moe", {"attention_bias": True, "use_qk_norm": False}, {"qkv_bias"}),
        ("gpt_oss", {}, {"qkv_bias", "o_bias", "sinks"}),
        ("chatglm", {"add_qkv_bias": True}, {"qkv_bias"}),
        ("gpt_bigcode", {}, {"qkv_bias", "o_bias"}),
        ("minimax_m2", {}, {"qk_norm", "wide_qk_norm"}),
        ("llama4", {"use_qk_norm": True}, set()),
    ],
)
def test_biases_norms_and_sinks_follow_the_class(model_type, changes, traits):
    block = attention(small(model_type=model_type, **changes))[0]
    known = ("qkv_bias", "o_bias", "qk_norm", "wide_qk_norm", "sinks")
    assert {trait for trait in known if getattr(block, trait)} == traits


@pytest.mark.parametrize(
    ("changes", "gated", "width"),
    [
        ({}, True, 128),
        ({"hidden_act": "relu2"}, False, 128),
        ({"model_type": "gpt_bigcode", "intermediate_size": None}, False, 256),
        ({"model_type": "gpt_bigcode", "intermediate_size": None, "n_inner": 96}, False, 96),
        ({"model_type": "falcon", "intermediate_size": None}, False, 256),
        ({"model_type": "falcon", "intermediate_size": None, "ffn_hidden_size": 96}, False, 96),
    ],
)
def test_a_block_without_a_gate_has_two_matrices(changes, gated, width):
    block = ffn(small(**changes))[0]
    assert (block.gated, block.width) == (gated, width)


@pytest.mark.parametrize(
    ("changes", "tied"),
    [
        ({}, False),
        ({"tie_word_embeddings": True}, True),
        ({"model_type": "gemma3_text"}, True),
        ({"model_type": "gemma3_text", "tie_word_embeddings": False}, False),
        ({"model_type": "falcon"}, True),
        ({"model_type": "qwen3"}, False),
    ],
)
def test_without_a_key_the_class_says_if_embeddings_are_tied(changes, tied):
    assert small(**changes).tied_embeddings is tied


def test_vocabulary_and_tie_may_stand_in_the_wrapper_only():
    wrapper = {"model_type": "gemma3", "vocab_size": 77, "tie_word_embeddings": False}
    text = {k: v for k, v in SMALL.items() if k not in ("vocab_size", "model_type")}
    model = read_config(wrapper | {"text_config": text, "vision_config": {}}, "x")
    assert (model.vocab, model.tied_embeddings) == (77, False)
    assert "the vision encoder (vision_config) is left out" in model.not_modelled


def test_the_language_part_wins_over_repeated_keys_of_the_wrapper():
    assert small(text_config=SMALL | {"hidden_size": 128}).hidden == 128


def test_searched_layers_may_leave_out_attention_and_differ_in_width():
    model = read("Nemotron-Super-49B")
    left_out = [block is None for block in attention(model)]
    assert (sum(left_out), left_out.index(True)) == (31, 6)
    widths = [block.width for block in ffn(model)]
    assert widths[:2] == [14336, 28672]
    assert sorted(set(widths)) == [2816, 5632, 7168, 14336, 17920, 28672]
    assert model.parameters == 49_867_145_216


@pytest.mark.parametrize(
    ("block", "key"),
    [
        ({"attention": {"n_heads_in_group": 3}, "ffn": {"ffn_mult": 1}}, "attention.n_heads_in_group"),
        ({"attention": {}, "ffn": {"ffn_mult": 1}}, "attention.n_heads_in_group"),
        ({"attention": {"n_heads_in_group": 4}, "ffn": {}}, "ffn.ffn_mult"),
        ({"attention": {"n_heads_in_group": 4}, "ffn": {"ffn_mult": math.nan}}, "ffn.ffn_mult"),
        ({"attention": {"n_heads_in_group": 4}, "ffn": {"ffn_mult": -1}}, "ffn.ffn_mult"),
        ({"attention": {"n_heads_in_group": 4}}, "ffn"),
        (
            {"attention": {"replace_with_linear": True}, "ffn": {"ffn_mult": 1}},
            "attention.replace_with_linear",
        ),
    ],
)
def test_a_wrong_searched_layer_is_named_by_its_index(block, key):
    config = {k: v for k, v in SMALL.items() if k not in ("num_key_value_heads", "intermediate_size")}
    good = {"attention": {"n_heads_in_group": 4}, "ffn": {"ffn_mult": 1.5}}
    found = problems(config | {"block_configs": [good] * 7 + [block]})
    assert f"block_configs[7].{key}" in found


def groups(**weights):
    packing = {"format": weights.pop("format")} if "format" in weights else {}
    return {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": {"weights": weights, **packing}},
    }


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (None, None),
        (FP8_BLOCK, "fp8_block"),
        ({"quant_method": "fp8"}, "fp8"),
        ({"quant_method": "fbgemm_fp8"}, "fp8"),
        ({"quant_method": "mxfp4"}, "mxfp4"),
        ({"quant_method": "gptq", "bits": 4}, "int4"),
        ({"quant_method": "gptq", "bits": 8}, "int8"),
        ({"quant_method": "awq", "w_bit": 4}, "int4"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "int4"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8"),
        (groups(format="mxfp4-pack-quantized", num_bits=4, type="float"), "mxfp4"),
        (groups(format="nvfp4-pack-quantized", num_bits=4, type="float"), "nvfp4"),
        (groups(num_bits=4, type="int", group_size=32), "int4"),
        (groups(num_bits=8, type="int"), "int8"),
        (groups(num_bits=8, type="float", strategy="channel"), "fp8"),
        (groups(num_bits=8, type="float", strategy="block"), "fp8_block"),
        (groups(num_bits=4, type="float", group_size=16), "nvfp4"),
        (groups(num_bits=4, type="float", group_size=32), "mxfp4"),
    ],
)
def test_the_format_of_the_weights(config, expected):
    found = small(quantization_config=config).quantisation
    assert found == expected
    assert found is None or found in FORMATS


@pytest.mark.parametrize(
    "config",
    [{"quant_method": "aqlm"}, {"quant_method": "fp8", "quant_algo": "MIXED_PRECISION"}, groups(num_bits=3)],
)
def test_an_unknown_quantisation_is_said_not_guessed(config):
    model = small(quantization_config=config)
    assert model.quantisation is None
    assert any("is not known; weights count as 16 bit" in note for note in model.not_modelled)


def test_parts_that_the_checkpoint_leaves_in_16_bit_are_kept():
    skipped = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"]
    model = small(quantization_config={"quant_method": "mxfp4", "modules_to_not_convert": skipped})
    assert model.unquantised == ("attention",)


def test_what_is_left_out_is_said():
    assert "multi-token-prediction" in read("DeepSeek-R1").not_modelled[0]
    assert read("Llama-3.1-70B").not_modelled == ()
    assert any("not known: read like Llama" in note for note in small(model_type="grok").not_modelled)
    assert any("50257" in note for note in read("tiny-starcoder_gpt_bigcode").not_modelled)
