"""Sequences of a step, how they are dealt out, and the formats they are stored in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from sim.catalog.models import load_model
from sim.workload import Group, Precision, Sequences, Workload


def test_one_length_for_all():
    work = Workload(batch=64, context="32k")
    assert work.sequences == Sequences.even(64, 32_768)
    assert (work.sequences.count, work.sequences.tokens) == (64, 2**21)
    assert not work.ragged


def test_a_list_has_one_length_per_sequence():
    work = Workload(context=["1k", 1024, 5, "1k"])
    assert work.sequences == Sequences((Group(2, 1024, 1), Group(1, 5, 1), Group(1, 1024, 1)))
    assert work.ragged
    assert not Workload(context=[7, 7]).ragged


def test_sequences_are_dealt_out_in_turn():
    even = Sequences.even(7, 100)
    assert [even.share(i, 3).count for i in range(3)] == [3, 2, 2]
    ragged = Workload(context=(1, 2, 3, 4, 5)).sequences
    assert [[g.length for g in ragged.share(i, 2).groups] for i in range(2)] == [[1, 3, 5], [2, 4]]
    assert ragged.share(6, 7) == Sequences.even(0, 1)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=12), st.integers(1, 6))
def test_dealing_is_that_of_single_sequences(lengths, ranks):
    """Groups of equal neighbours are dealt as if each sequence stood alone."""
    sequences = Workload(context=tuple(lengths)).sequences
    for index in range(ranks):
        share = sequences.share(index, ranks)
        dealt = [g.length for g in share.groups for _ in range(g.count)]
        assert dealt == lengths[index::ranks]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"context": 100}, "batch is missing; write the number of sequences, for example batch: 64"),
        ({"batch": 3, "context": (1, 2)}, "batch 3 differs from the 2 context lengths listed"),
        ({"batch": 1, "context": 0}, "context 0 is below 1 token"),
        ({"context": ()}, "the list of context lengths is empty"),
        ({"batch": 1, "context": 2**40 + 1}, "context 1,099,511,627,777 is beyond 2^40 tokens"),
        ({"batch": 2 * 10**9, "context": 1}, "batch 2,000,000,000 is beyond 10^9 sequences"),
        (
            {"batch": 1, "context": 3, "query_tokens": 4},
            "context 3 is shorter than the 4 tokens of this step",
        ),
        (
            {"phase": "prefill", "batch": 1, "context": 9, "query_tokens": 2},
            "query_tokens belongs to decode; a prefill step runs the whole prompt",
        ),
        (
            {"batch": 1, "context": 9, "generated": 10},
            "generated 10 must lie between the 1 tokens of this step and the shortest context, 9",
        ),
    ],
)
def test_work_that_cannot_be_is_refused(fields, message):
    with pytest.raises(ValidationError) as error:
        Workload(**fields)
    assert error.value.errors()[0]["msg"] == f"Value error, {message}"


def test_embeddings_and_norms_stay_in_16_bit():
    precision = Precision(weights="fp8")
    assert precision.of("routed_experts", True).name == "fp8"
    assert precision.of("routed_experts", False).name == "bf16"
    assert precision.of("embeddings", False).name == "bf16"


def test_attention_may_have_its_own_format():
    precision = Precision(weights="nvfp4", attention_weights="bf16")
    assert [precision.of(part, True).name for part in ("attention", "dense_ffn")] == ["bf16", "nvfp4"]


def test_formats_come_from_the_checkpoint_unless_they_are_said():
    gpt_oss = load_model("gpt-oss-120b")
    shipped = Precision().resolve(gpt_oss)
    assert (shipped.weights, shipped.of("attention", True).name) == (gpt_oss.quantisation, "bf16")
    said = Precision(weights="bf16").resolve(gpt_oss)
    assert (said.weights, said.unquantised) == ("bf16", ())
    assert Precision().resolve(load_model("llama-3.1-8b")).weights == "bf16"


def test_bytes_of_an_activation():
    assert [Precision(activations=name).activation_bytes for name in ("bf16", "fp16", "fp32")] == [2, 2, 4]
    with pytest.raises(ValidationError, match="'fp8' is not how engines keep the residual stream"):
        Precision(activations="fp8")
    with pytest.raises(ValidationError, match="'fp6' is not a number format; choose one of fp32, bf16"):
        Precision(kv_cache="fp6")
