"""The work of one step: how many sequences, how long their caches are, how many tokens each one adds.

Figures may be numpy arrays (one entry per point of a sweep): every formula that reads a workload is written so
that it works on both, which is what makes a sweep over batch and context one pass instead of many.
"""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import BeforeValidator, Field, field_validator, model_validator

from sim.errors import InputError, Problem
from sim.formats import FORMATS, NumberFormat, number_format
from sim.model import Model, Part
from sim.noun import Noun
from sim.units import Count, parse_count

Phase = Literal["decode", "prefill"]
Number = Any  # int, float, or a numpy array with one entry per point of a sweep


def larger(a: Number, b: Number) -> Number:
    """Element-wise maximum that stays cheap for plain numbers."""
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.maximum(a, b)
    return a if a >= b else b


def smaller(a: Number, b: Number) -> Number:
    """Element-wise minimum that stays cheap for plain numbers."""
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.minimum(a, b)
    return a if a <= b else b


class Sequences(NamedTuple):
    """Sequences that step together, as (how many, context length of each) groups."""

    groups: tuple[tuple[Number, Number], ...]

    @property
    def count(self) -> Number:
        """Number of sequences."""
        return sum(n for n, _ in self.groups)

    @property
    def tokens(self) -> Number:
        """Sum of the context lengths."""
        return sum(n * length for n, length in self.groups)

    def share(self, index: int, of: Number) -> Sequences:
        """The sequences that member ``index`` of ``of`` gets when they are dealt out in turn."""
        if isinstance(of, int) and of == 1:
            return self
        if len(self.groups) == 1:
            count, length = self.groups[0]
            return Sequences(((count // of + (index < count % of), length),))
        dealt = []
        dealer = 0
        for count, length in self.groups:
            first = (index - dealer) % of
            mine = (count - first + of - 1) // of if count > first else 0
            dealer = (dealer + count) % of
            if mine:
                dealt.append((mine, length))
        return Sequences(tuple(dealt) or ((0, self.groups[0][1]),))


def _lengths(value: Any) -> Any:
    """Accept one length or a list of lengths, each as ``32k`` or a number."""
    if isinstance(value, (list, tuple)):
        if not value:
            raise ValueError("the list of context lengths is empty")
        return tuple(parse_count(v) for v in value)
    return parse_count(value)


class Workload(Noun):
    """One step of one phase.

    ``context`` is the number of tokens in a sequence's cache when it attends, the tokens of this step included
    (spec: a step on a cache of c tokens has context c + 1). One number for all, or a list with one per sequence.
    ``batch`` counts the sequences on all GPUs of the layout together. In prefill, ``context`` is the prompt length.
    """

    phase: Phase = "decode"
    batch: Count | None = None
    context: int | tuple[int, ...]
    query_tokens: Annotated[Count, Field(le=1024)] = 1
    """Tokens each sequence adds in a decode step: 1, or 1 + draft tokens."""
    generated: Annotated[int, BeforeValidator(parse_count), Field(ge=0)] = 0
    """How many tokens of each context were generated since the prompt, those of this step included; decides where
    they lie when a layout counts prompt and decode apart. 0: the whole context lies like a prompt."""

    _read_context = field_validator("context", mode="before")(_lengths)

    @model_validator(mode="after")
    def _consistent(self) -> Workload:
        lengths = self.context if isinstance(self.context, tuple) else (self.context,)
        if min(lengths) < 1:
            raise ValueError(f"context {min(lengths)} is below 1 token")
        if max(lengths) > 2**40:
            raise ValueError(f"context {max(lengths):,} is beyond 2^40 tokens")
        if self.batch is None and not isinstance(self.context, tuple):
            raise ValueError("batch is missing; write the number of sequences, for example batch: 64")
        if isinstance(self.context, tuple) and self.batch not in (None, len(self.context)):
            raise ValueError(f"batch {self.batch} differs from the {len(self.context)} context lengths listed")
        if self.sequences.count > 10**9:
            raise ValueError(f"batch {self.sequences.count:,} is beyond 10^9 sequences")
        if self.phase == "prefill" and self.query_tokens != 1:
            raise ValueError("query_tokens belongs to decode; a prefill step runs the whole prompt")
        if self.phase == "decode" and min(lengths) < self.query_tokens:
            raise ValueError(f"context {min(lengths)} is shorter than the {self.query_tokens} tokens of this step")
        if self.generated and not self.query_tokens <= self.generated <= min(lengths):
            raise ValueError(
                f"generated {self.generated} must lie between the {self.query_tokens} tokens of this step and the "
                f"shortest context, {min(lengths)}"
            )
        return self

    @property
    def sequences(self) -> Sequences:
        """All sequences, equal neighbours joined, in the order given."""
        if isinstance(self.context, tuple):
            groups: list[tuple[int, int]] = []
            for length in self.context:
                if groups and groups[-1][1] == length:
                    groups[-1] = (groups[-1][0] + 1, length)
                else:
                    groups.append((1, length))
            return Sequences(tuple(groups))
        return Sequences(((self.batch or 0, self.context),))

    @property
    def ragged(self) -> bool:
        """Whether the sequences differ in length."""
        return isinstance(self.context, tuple) and len(Counter(self.context)) > 1


def _format(value: Any) -> Any:
    if isinstance(value, str) and value not in FORMATS:
        raise ValueError(f"{value!r} is not a number format; choose one of {', '.join(FORMATS)}")
    return value


class Precision(Noun):
    """Formats by use. Norms, embeddings, router and LM head stay in 16 bit, as published checkpoints keep them."""

    weights: str | None = None
    """Linear weights; left out, the format of the checkpoint."""
    attention_weights: str | None = None
    """Attention projections, where they differ from ``weights`` (many 4-bit checkpoints keep them in 16 bit)."""
    unquantised: tuple[Part, ...] | None = None
    """Parts whose linear weights stay in 16 bit; left out, those of the checkpoint."""
    kv_cache: str = "bf16"
    attention: str | None = None
    """Arithmetic of attention; left out, fp8 where the cache is 8 bit or less of a floating format, else bf16."""
    activations: str = "bf16"
    dispatch: str | None = None
    """What an expert all-to-all sends to the experts; the way back is always 16 bit."""

    _known = field_validator(
        "weights", "attention_weights", "kv_cache", "attention", "activations", "dispatch", mode="before"
    )(_format)

    @field_validator("activations")
    @classmethod
    def _sixteen_bit(cls, value: str) -> str:
        if value not in ("bf16", "fp16", "fp32"):
            raise ValueError(f"{value!r} is not how engines keep the residual stream; choose bf16, fp16 or fp32")
        return value

    def of(self, part: Part, quantised: bool) -> NumberFormat:
        """The format of a weight in a part of the model."""
        if not quantised:
            return FORMATS["bf16"]
        if part == "attention" and self.attention_weights:
            return number_format(self.attention_weights)
        return number_format("bf16" if part in (self.unquantised or ()) else self.weights or "bf16")

    def resolve(self, model: Model) -> Precision:
        """With the checkpoint's formats filled in where the scenario leaves them open."""
        weights = self.weights or model.quantisation or "bf16"
        for layer in model.kinds:
            a = layer.attention
            if self.kv.packs and a and (a.kind != "mla" or a.cache_elements != self.kv.packs):
                text = f"{self.kv_cache} packs a latent of {self.kv.packs} elements, which {model.name} does not cache"
                raise InputError([Problem(f"{text}; choose fp8, nvfp4 or bf16", "kv_cache")])
        kept = self.unquantised
        if kept is None:
            kept = model.unquantised if weights == model.quantisation else ()
        return self.model_copy(update={"weights": weights, "unquantised": kept})

    @property
    def attention_arithmetic(self) -> str:
        """The format whose matrix rate attention computes at."""
        if self.attention:
            return self.attention
        return "fp8" if self.kv.rate in ("fp8", "fp4") else "bf16"

    @property
    def kv(self) -> NumberFormat:
        """The format of the KV cache."""
        return number_format(self.kv_cache)

    @property
    def dispatched(self) -> NumberFormat:
        """What an expert all-to-all sends: FP8 travels with one fp32 scale per 128 elements, as engines send it."""
        name = self.dispatch or self.activations
        return number_format("fp8_group" if name in ("fp8", "fp8_block") else name)

    @property
    def activation_bytes(self) -> int:
        """Bytes of one element of an activation."""
        return number_format(self.activations).bytes(1)
