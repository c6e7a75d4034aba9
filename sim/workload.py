"""The work of one step: how many sequences, how long their caches are, how many tokens each one adds.

Figures may be numpy arrays (one entry per point of a sweep): every formula that reads a workload is written so
that it works on both, which is what makes a sweep over batch and context one pass instead of many.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import cycle
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import BeforeValidator, Field, field_validator, model_validator

from sim.errors import InputError, Problem
from sim.formats import FORMATS, NumberFormat, number_format
from sim.model import Model, Part
from sim.noun import Noun
from sim.units import Count, parse_count

Phase = Literal["decode", "prefill", "mixed"]
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


class Group(NamedTuple):
    """Sequences of a step that are alike."""

    count: Number
    length: Number
    """Tokens in each cache when it is attended, those of this step included."""
    new: Number
    """Tokens that each adds in this step; the others were cached before."""
    prompt: bool = False
    """Whether the new tokens are (a chunk of) a prompt and not a decode step: other kernels run, and only the last
    token's logits are wanted."""


class Sequences(NamedTuple):
    """Sequences that step together, as groups of equal ones: the one description of the work of a step.

    Decode, speculation, whole prompts, chunks of prompts, prompts behind a cached prefix, and all of them at once
    differ only in what their groups say.
    """

    groups: tuple[Group, ...]

    @classmethod
    def even(cls, count: Number, length: Number, new: Number = 1, prompt: bool = False) -> Sequences:
        """Sequences of one length."""
        return cls((Group(count, length, new, prompt),))

    @property
    def count(self) -> Number:
        """Number of sequences."""
        return sum(g.count for g in self.groups)

    @property
    def tokens(self) -> Number:
        """Sum of the context lengths."""
        return sum(g.count * g.length for g in self.groups)

    @property
    def new_tokens(self) -> Number:
        """Tokens that this step adds."""
        return sum(g.count * g.new for g in self.groups)

    @property
    def longest(self) -> Group:
        """The first group of the longest sequences."""
        return max(self.groups, key=lambda g: g.length)

    def share(self, index: int, of: Number) -> Sequences:
        """The sequences that member ``index`` of ``of`` gets when they are dealt out in turn.

        ``of`` 0 stands for the two parts of a mixed step: what decodes (``index`` 0), and prompts (1).
        """
        if isinstance(of, int) and of == 1:
            return self
        if isinstance(of, int) and of == 0:
            mine = tuple(g for g in self.groups if g.prompt == bool(index))
            return Sequences(mine or (Group(0, 1, 1, bool(index)),))
        if len(self.groups) == 1:
            (only,) = self.groups
            return Sequences((only._replace(count=only.count // of + (index < only.count % of)),))
        dealt = []
        dealer = 0
        for group in self.groups:
            first = (index - dealer) % of
            mine_of = (group.count - first + of - 1) // of if group.count > first else 0
            dealer = (dealer + group.count) % of
            if mine_of:
                dealt.append(group._replace(count=mine_of))
        return Sequences(tuple(dealt) or (self.groups[0]._replace(count=0),))


def _lengths(value: Any) -> Any:
    """Accept one length or a list of lengths, each as ``32k`` or a number."""
    if isinstance(value, (list, tuple)):
        if not value:
            raise ValueError("the list of context lengths is empty")
        return tuple(parse_count(v) for v in value)
    return parse_count(value)


Lengths = int | tuple[int, ...]


def _joined(groups: Iterable[Group]) -> tuple[Group, ...]:
    """Equal neighbours as one group."""
    found: list[Group] = []
    for group in groups:
        if found and found[-1][1:] == group[1:]:
            found[-1] = found[-1]._replace(count=found[-1].count + group.count)
        else:
            found.append(group)
    return tuple(found)


class Prompts(Noun):
    """Chunks of prompts that run beside decoding sequences in a mixed step."""

    batch: Count = 1
    context: Annotated[int, BeforeValidator(parse_count), Field(ge=1, le=2**40)]
    """Tokens of each prompt up to the end of this chunk."""
    cached: Annotated[int, BeforeValidator(parse_count), Field(ge=0)] = 0
    """Tokens of it that are in the cache already: earlier chunks, or a prefix that was met before."""

    @model_validator(mode="after")
    def _something_new(self) -> Prompts:
        if self.cached >= self.context:
            raise ValueError(f"cached {self.cached} leaves nothing of context {self.context} to compute")
        return self


class Workload(Noun):
    """One step of one phase.

    ``context`` is the number of tokens in a sequence's cache when it attends, the tokens of this step included
    (spec: a step on a cache of c tokens has context c + 1). One number for all, or a list with one per sequence.
    ``batch`` counts the sequences on all GPUs of the layout together. In prefill, ``context`` is the prompt length.
    A mixed step decodes ``batch`` sequences and computes ``prompts`` beside them.
    """

    phase: Phase = "decode"
    batch: Count | None = None
    context: Lengths
    query_tokens: Annotated[Count, Field(le=1024)] = 1
    """Tokens each sequence adds in a decode step: 1, or 1 + draft tokens."""
    generated: Annotated[int, BeforeValidator(parse_count), Field(ge=0)] = 0
    """How many tokens of each context were generated since the prompt, those of this step included; decides where
    they lie when a layout counts prompt and decode apart. 0: the whole context lies like a prompt."""
    cached: Lengths = 0
    """In prefill: tokens of each prompt that are in the cache already (a prefix that was met before). One number for
    all, or a list with one per sequence."""
    chunk: Annotated[int, BeforeValidator(parse_count), Field(ge=1)] | None = None
    """In prefill: at most so many tokens of each prompt in one step, the next ones in the next. The step that is
    reported is the last; the time to the first token is that of all."""
    prompts: tuple[Prompts, ...] = ()
    """In a mixed step: chunks of prompts beside the decoding sequences."""

    _read_lengths = field_validator("context", "cached", mode="before")(_lengths)

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
        if (self.batch or len(lengths)) > 10**9:
            raise ValueError(f"batch {self.batch or len(lengths):,} is beyond 10^9 sequences")
        if self.phase == "prefill" and self.query_tokens != 1:
            raise ValueError("query_tokens belongs to decode; a prefill step runs the whole prompt")
        if self.phase != "prefill" and min(lengths) < self.query_tokens:
            raise ValueError(f"context {min(lengths)} is shorter than the {self.query_tokens} tokens of this step")
        if self.generated and not self.query_tokens <= self.generated <= min(lengths):
            raise ValueError(
                f"generated {self.generated} must lie between the {self.query_tokens} tokens of this step and the "
                f"shortest context, {min(lengths)}"
            )
        self._prefill_consistent(lengths)
        return self

    def _prefill_consistent(self, lengths: tuple[int, ...]) -> None:
        """Check what only prefill and mixed steps have. Raises ``ValueError``."""
        for name, said in (("cached", self.cached), ("chunk", self.chunk)):
            if said and self.phase != "prefill":
                where = "; in a mixed step it belongs to each of the prompts" if self.phase == "mixed" else ""
                raise ValueError(f"{name} belongs to phase: prefill{where}")
        if (self.phase == "mixed") != bool(self.prompts):
            example = "prompts: [{context: 8k, cached: 6k}]"
            raise ValueError(f"phase: mixed needs prompts, and only it has them, for example {example}")
        cached = self.cached if isinstance(self.cached, tuple) else (self.cached,)
        if len(cached) > 1 and len(cached) != len(lengths):
            raise ValueError(f"cached lists {len(cached)} lengths for {len(lengths)} of context; list one for each")
        if any(c < 0 or c >= length for c, length in zip(cycle(cached), lengths, strict=False)):
            raise ValueError("cached must be at least 0 and leave at least one token of every context to compute")

    @property
    def each(self) -> tuple[Group, ...]:
        """The sequences with everything that is to be computed of them as new, in the order given."""
        prompt = self.phase == "prefill"
        if not isinstance(self.context, tuple) and not isinstance(self.cached, tuple):
            new = self.context - self.cached if prompt else self.query_tokens
            return (Group(self.batch or 0, self.context, new, prompt),)
        lengths = self.context if isinstance(self.context, tuple) else (self.context,) * (self.batch or 0)
        cached = self.cached if isinstance(self.cached, tuple) else (self.cached,)
        return _joined(
            Group(1, length, length - hit if prompt else self.query_tokens, prompt)
            for length, hit in zip(lengths, cycle(cached), strict=False)
        )

    @property
    def steps(self) -> list[Sequences]:
        """What runs in each step: one, or one per chunk of the longest prompt."""
        if not self.chunk:
            beside = (Group(p.batch, p.context, p.context - p.cached, True) for p in self.prompts)
            return [Sequences(_joined((*self.each, *beside)))]
        every = self.each
        count = -(-max(g.new for g in every) // self.chunk)
        return [Sequences(tuple(_chunks(every, self.chunk * i, self.chunk))) for i in range(count)]

    @property
    def sequences(self) -> Sequences:
        """All sequences of the (last) step, equal neighbours joined, in the order given."""
        return self.steps[-1]

    @property
    def ragged(self) -> bool:
        """Whether the sequences differ in length."""
        return isinstance(self.context, tuple) and len(set(self.context)) > 1


def _chunks(groups: Iterable[Group], done: int, chunk: int) -> Iterator[Group]:
    """The next ``chunk`` tokens of every prompt of which more than ``done`` are to be computed."""
    for g in groups:
        if g.new > done:
            new = min(chunk, g.new - done)
            yield g._replace(length=g.length - g.new + done + new, new=new)


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
