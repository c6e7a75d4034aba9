"""The commands explain, kv-tokens and export."""

import json

from sim.cli.app import execute

COMMAND = "vllm serve Qwen/Qwen3-235B-A22B -tp 8 --kv-cache-dtype fp8 --max-model-len 262144"


def test_explain(capsys):
    assert execute(["explain", COMMAND, "--gpu", "h200-sxm", "--batch", "8", "--context", "4096"]) == 0
    text = capsys.readouterr().out
    for part in (
        "tp8 on 8 GPUs",
        "2.00 copies",
        "refuses it (length)",
        "GPU KV cache size: ",
        "Other layouts",
        "-dcp2",
    ):
        assert part in text


def test_explain_json(capsys):
    assert execute(["explain", "vllm serve Qwen/Qwen3-8B", "--gpu", "l40s", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["launch"]["model"]["name"] == "qwen3-8b"


def test_a_layout_that_cannot_exist_is_explained(capsys):
    assert execute(["explain", "vllm serve Qwen/Qwen3-235B-A22B -tp 6", "--gpu", "h200-sxm"]) == 0
    assert "64 attention heads are not divisible by tensor parallel size 6" in capsys.readouterr().out


def test_kv_tokens(capsys):
    assert execute(["kv-tokens", COMMAND, "--gpu", "h200-sxm"]) == 0
    assert capsys.readouterr().out.startswith("GPU KV cache size: ")
    assert execute(["kv-tokens", "vllm serve acme/nothing", "--gpu", "h200-sxm"]) == 2
    assert "--config config.json" in capsys.readouterr().err


def test_export(capsys):
    assert execute(["export", "qwen3_235b_8xh200", "--layout", "tp8-dcp2", "--engine", "vllm"]) == 0
    assert "--tensor-parallel-size 8 --decode-context-parallel-size 2" in capsys.readouterr().out
    assert execute(["export", "qwen3_235b_8xh200", "--layout", "tpa4-kvp2", "--engine", "trtllm"]) == 0
    assert "cp_config: {cp_type: HELIX, tokens_per_block: 32}" in capsys.readouterr().out
