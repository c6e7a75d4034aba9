"""Traces as people have them: what is read, and what a bad row is told."""

from __future__ import annotations

import json

import pytest

from sim.errors import InputError
from sim.replays.traces import FORMATS, guess, read_trace

MOONCAKE = [
    {"timestamp": 0, "input_length": 1300, "output_length": 5, "hash_ids": [0, 1, 2]},
    {"timestamp": 2500, "input_length": 512, "output_length": 9, "hash_ids": [0]},
]
AIPERF = {
    "metadata": {"request_start_ns": 1_785_577_000_000_000_000, "was_cancelled": False},
    "metrics": {"input_sequence_length": {"value": 550, "unit": "tokens"}, "output_sequence_length": {"value": 60}},
    "error": None,
}
LATER = {**AIPERF, "metadata": {"request_start_ns": 1_785_577_000_250_000_000}}
FILES = {
    "mooncake": "\n".join(map(json.dumps, MOONCAKE)),
    "azure": "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 23:59:59.9799600,4808,10\n"
    "2023-11-17 00:00:00.0319600,3180,8",
    "burstgpt": "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,ChatGPT,472,18,490,Conversation log\n7,ChatGPT,99,0,99,API log\n45,ChatGPT,1087,230,1317,Conversation log\n",
    "sharegpt": json.dumps(
        [
            {"id": "a", "conversations": [{"from": "human", "value": "x" * 400}, {"from": "gpt", "value": "y" * 40}]},
            {"id": "b", "conversations": [{"from": "gpt", "value": "first"}, {"from": "human", "value": "z" * 35},
                                          {"from": "gpt", "value": "w" * 8}]},
        ]
    ),
    "lengths": "input,output\n100,20\n300,40\n",
    "vllm": json.dumps({"endpoint_type": "vllm", "input_lens": [9, 8, 7], "output_lens": [3, 2, 1],
                        "start_times": [5.0, 5.5, 6.0], "errors": ["", "timeout", ""]}),
    "aiperf": json.dumps(AIPERF) + "\n" + json.dumps(LATER) + "\n",
    "aiperf_summary": json.dumps({"request_throughput": {"unit": "requests/sec", "avg": 2.0},
                                  "request_count": {"avg": 3.0}, "input_sequence_length": {"avg": 554.5},
                                  "output_sequence_length": {"avg": 60.0}}, indent=1),
}  # fmt: skip
READ = {
    "mooncake": ([0.0, 2.5], [1300, 512], [5, 9]),
    "azure": ([0.0, 0.052], [4808, 3180], [10, 8]),
    "burstgpt": ([0.0, 40.0], [472, 1087], [18, 230]),
    "sharegpt": ([], [100, 10], [10, 2]),
    "lengths": ([], [100, 300], [20, 40]),
    "vllm": ([0.0, 1.0], [9, 7], [3, 1]),
    "aiperf": ([0.0, 0.25], [550, 550], [60, 60]),
    "aiperf_summary": ([0.0, 0.5, 1.0], [554] * 3, [60] * 3),
}


def test_every_format_has_an_example():
    assert FILES.keys() == READ.keys() == FORMATS.keys()


@pytest.mark.parametrize("kind", FILES)
def test_a_file_is_recognised_and_read(tmp_path, kind):
    path = tmp_path / "trace"
    path.write_text(FILES[kind])
    assert guess(path) == kind
    arrivals, prompts, outputs = READ[kind]
    found = read_trace(path)
    assert found.arrivals == pytest.approx(arrivals, abs=1e-6)
    assert (found.prompts, found.outputs) == (prompts, outputs)


def test_mooncake_keeps_the_prefixes(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text(FILES["mooncake"])
    found = read_trace(path)
    assert (found.hashes, found.grain) == ([(0, 1, 2), (0,)], 512)


BAD = {
    "mooncake": ['{"timestamp": 0, "input_length": 10, "output_length": 0, "hash_ids": [1]}', "{", "[]",
                 '{"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [1]}', '{"timestamp": 3}'],
    "azure": ["TIMESTAMP,ContextTokens,GeneratedTokens", "yesterday,1,2", "2023-11-16 18:17:03,x,2", "1,2"],
    "burstgpt": ["Timestamp,Model,Request tokens", "1,GPT-4,5"],
    "aiperf": ['{"metadata": {}}', json.dumps({"metadata": {"request_start_ns": 1}, "metrics": {}})],
}  # fmt: skip
SAID = {
    "mooncake": ["trace:1: output_length: must be at least 1, not 0", "trace:2: is not a line of JSON",
                 "trace:3: must be keys with values, not a list of 0",
                 "trace:4: hash_ids: has 1 ids for 600 tokens, which are 2 blocks",
                 "trace:5: has no input_length, output_length"],
    "azure": ["trace:2: TIMESTAMP: must be a time such as 2023-11-16 18:17:03.9799600, not 'yesterday'",
              "trace:3: ContextTokens: must be a number, not 'x'",
              "trace:4: has not as many cells as the header (3)"],
    "burstgpt": ["trace:1: has no column Response tokens; found: Timestamp, Model, Request tokens"],
    "aiperf": ["trace:1: has no metadata or no metrics",
               "trace:2: input_sequence_length: must be a number, not empty",
               "trace:2: output_sequence_length: must be a number, not empty"],
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD)
def test_every_bad_row_is_named_with_its_line(tmp_path, kind):
    path = tmp_path / "trace"
    path.write_text("\n".join(BAD[kind]))
    with pytest.raises(InputError) as error:
        read_trace(path, kind)
    assert [str(p).replace(str(path), "trace") for p in error.value.problems] == SAID[kind]


def test_what_is_no_trace_is_told_which_formats_there_are(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("hello")
    with pytest.raises(InputError, match="say its format: mooncake, azure"):
        read_trace(path)
    path.write_text("input,output\n")
    with pytest.raises(InputError, match="holds no request"):
        read_trace(path)
