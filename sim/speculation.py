"""Speculative decoding as a scenario states it: how many tokens are drafted, who drafts them, how many are accepted.

A step drafts ``draft_tokens`` tokens one after the other and verifies them all at once: the model sees 1 + draft_tokens
tokens of each sequence. Accepted ones are kept, and the model's own token behind them, so a step yields one token
at least.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Annotated

from pydantic import Field, SerializeAsAny, model_validator

from sim.model import DenseFfn, LayerRun, Model
from sim.noun import Noun
from sim.strategy import Strategy
from sim.units import Count

Rate = Annotated[float, Field(ge=0, le=1)]


class Speculation(Noun):
    """Who drafts, how much, and how much of it is accepted.

    Without ``layers`` and ``model`` drafts are looked up (n-gram) and cost nothing on the GPU. With ``layers`` they
    come from layers of the kind of the model's last one, which share its embeddings and LM head: MTP modules, or, with
    an ``ffn_width`` of its own, an EAGLE head. Each draft token passes one of them. With ``model`` they come from
    another model.
    """

    draft_tokens: Annotated[Count, Field(le=64)]
    acceptance: Rate | tuple[Rate, ...]
    """Probability that a draft token is accepted if all before it were; or, as engines measure it, one figure per
    position: the part of all steps that accept at least so many."""
    layers: Annotated[int, Field(ge=0, le=64)] = 0
    ffn_width: Annotated[int, Field(ge=1)] | None = None
    """Of the draft layers, where they have a dense FFN of their own instead of the model's."""
    model: Model | None = None
    layout: SerializeAsAny[Strategy] | None = None
    """How the draft runs; left out, as the model does."""

    @model_validator(mode="after")
    def _consistent(self) -> Speculation:
        if self.layers and self.model:
            raise ValueError("layers and model exclude each other: the draft comes from one of them")
        if self.ffn_width and not self.layers:
            raise ValueError("ffn_width belongs to draft layers; write layers: 1")
        if self.layout and not (self.layers or self.model):
            raise ValueError("layout belongs to a draft that runs on the GPU: layers or model")
        if isinstance(self.acceptance, tuple):
            if len(self.acceptance) < self.draft_tokens:
                raise ValueError(f"acceptance lists {len(self.acceptance)} of {self.draft_tokens} draft positions")
            if list(self.acceptance) != sorted(self.acceptance, reverse=True):
                raise ValueError("acceptance by position cannot rise: who accepts three tokens has accepted two")
        return self

    @property
    def known(self) -> int:
        """The most draft tokens whose acceptance follows from what is said."""
        return len(self.acceptance) if isinstance(self.acceptance, tuple) else 16

    def tokens_per_step(self, drafted: int) -> float:
        """Tokens that a step yields on average: the accepted drafts and one more."""
        rate = self.acceptance
        accepted = rate[:drafted] if isinstance(rate, tuple) else accumulate([rate] * drafted, lambda a, b: a * b)
        return 1 + sum(accepted)

    def draft(self, target: Model, layers: int = 1) -> Model | None:
        """What one draft token passes, as a model; with ``layers``, all of what is held."""
        if not self.layers:
            return self.model
        last = target.runs[-1][1]
        if self.ffn_width:
            last = last.changed(ffn=DenseFfn(width=self.ffn_width))
        pattern = (LayerRun(count=layers, layer=last),)
        return target.changed(name=f"draft of {target.name}", pattern=pattern, head=(), tail=(), period=1)
