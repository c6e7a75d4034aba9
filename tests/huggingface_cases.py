"""Configs and helpers that the tests of the Hugging Face reader share."""

import json
from pathlib import Path

import pytest

from sim.errors import ModelError
from sim.huggingface.config import read_config
from sim.model import MoeFfn

CONFIGS = Path(__file__).parent / "data" / "configs"
SMALL = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 1000,
}
MOE = {"num_local_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
FP8_BLOCK = {"quant_method": "fp8", "weight_block_size": [128, 128]}


def published(name):
    return json.loads((CONFIGS / f"{name}.json").read_text())


def read(name):
    return read_config(published(name), name)


def small(without=(), **changes):
    return read_config({k: v for k, v in (SMALL | changes).items() if k not in without}, "small")


def problems(config):
    with pytest.raises(ModelError) as caught:
        read_config(config, "wrong")
    return {problem.key: problem.message for problem in caught.value.problems}


def attention(model):
    return [layer.attention for count, layer in model.runs for _ in range(count)]


def cached(model):
    """Attention with a cache, without the layers that have none."""
    return [block for block in attention(model) if block]


def ffn(model):
    return [layer.ffn for count, layer in model.runs for _ in range(count)]


def windows(model):
    return [block.window for block in attention(model)]


def sparse(model):
    return [isinstance(block, MoeFfn) for block in ffn(model)]


# name: label of the first layer, layers, query heads, cached heads, elements per head and token, billions
READ = {
    "ChatGLM3-6B": ("GQA", 28, 32, 2, 256, 6.243),
    "DeepSeek-R1": ("MLA", 61, 128, 1, 576, 671.026),
    "DeepSeek-V3.2": ("MLA", 61, 128, 1, 576, 671.878),
    "ERNIE-4.5-21B-A3B": ("GQA", 28, 20, 4, 256, 21.825),
    "EXAONE-4.5": ("GQA", 64, 40, 8, 256, 32.528),
    "Falcon-7B": ("MQA", 32, 71, 1, 128, 6.922),
    "GLM-5.1-NVFP4": ("MLA", 78, 64, 1, 576, 743.911),
    "GLM-5.2": ("MLA", 78, 64, 1, 576, 743.377),
    "Gemma-4-26B-A4B": ("GQA", 30, 16, 8, 512, 25.233),
    "Kimi-K2-Instruct": ("MLA", 61, 64, 1, 576, 1026.408),
    "Kimi-K3": ("MLA", 93, 96, 1, 576, 2777.368),
    "Llama-3.1-405B": ("GQA", 126, 128, 8, 256, 405.853),
    "Llama-3.1-70B": ("GQA", 80, 64, 8, 256, 70.554),
    "Llama-4-Maverick": ("GQA", 48, 40, 8, 256, 400.712),
    "Llama-4-Scout": ("GQA", 48, 40, 8, 256, 107.770),
    "Mistral-Nemo": ("GQA", 40, 32, 8, 256, 12.248),
    "Mixtral-8x7B": ("GQA", 32, 32, 8, 256, 46.703),
    "Nemotron-3-Nano-30B": ("GQA", 52, 32, 2, 256, 31.578),
    "Nemotron-H-56B": ("GQA", 118, 64, 8, 256, 56.324),
    "Nemotron-Super-49B": ("GQA", 80, 64, 8, 256, 49.867),
    "Phi-tiny-MoE": ("GQA", 32, 16, 4, 256, 3.755),
    "Qwen2.5-VL-7B": ("GQA", 28, 28, 4, 256, 7.616),
    "Qwen3-235B-A22B-mislabelled": ("GQA", 94, 64, 4, 256, 235.094),
    "Qwen3-32B": ("GQA", 64, 64, 8, 256, 32.762),
    "Qwen3.5-27B": ("GQA", 64, 24, 4, 512, 26.896),
    "Qwen3.5-397B-A17B": ("GQA", 60, 32, 2, 512, 396.347),
    "Qwen3-VL-235B": ("GQA", 94, 64, 4, 256, 235.094),
    "Step-3.7-Flash": ("GQA", 45, 64, 8, 256, 195.833),
    "tiny-starcoder_gpt_bigcode": ("MQA", 20, 12, 1, 128, 0.159),
}
REFUSED = {
    "DeepSeek-V4-Flash": {"compress_ratios": "compressed attention"},
    "DeepSeek-V4-Pro-NVFP4": {"compress_ratios": "compressed attention"},
    "MiniMax-M3": {"sparse_attention_config": "block-sparse attention"},
    "RecurrentGemma-2B": {"_block_types": "recurrent layers"},
}
MIMO = {
    "model_type": "mimo_v2_flash",
    "head_dim": 24,
    "v_head_dim": 16,
    "swa_num_attention_heads": 8,
    "swa_num_key_value_heads": 4,
    "swa_head_dim": 24,
    "swa_v_head_dim": 16,
    "hybrid_layer_pattern": [0, 1, 1, 1, 0, 1, 1, 0],
    "sliding_window_size": 128,
    "attention_chunk_size": 128,
    "add_swa_attention_sink_bias": True,
}
