"""Feed-forward blocks: dense, or a mixture of experts. Tensors list their dimensions by role (see ``sim.model``)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, model_validator

from sim.noun import Noun
from sim.tensors import Positive, TensorShape


class DenseFfn(Noun):
    """A feed-forward block: SwiGLU when ``gated`` (three matrices), two matrices otherwise."""

    kind: Literal["dense"] = "dense"
    width: Positive
    gated: bool = True
    bias: bool = False

    def tensors(self, hidden: int) -> Iterator[TensorShape]:
        """Weights of the block, without the layer norm in front of it."""
        halves = 2 if self.gated else 1
        up = (("hidden", hidden), ("halves", halves), ("ffn", self.width))
        yield TensorShape("gate_up", up, "dense_ffn")
        yield TensorShape("down", (("ffn", self.width), ("hidden", hidden)), "dense_ffn")
        if self.bias:
            yield TensorShape("gate_up_bias", (("halves", halves), ("ffn", self.width)), "dense_ffn", False)
            yield TensorShape("down_bias", (("hidden", hidden),), "dense_ffn", False)


class MoeFfn(Noun):
    """A mixture of experts: ``top_k`` of ``experts`` routed ones per token, and shared ones for every token.

    ``shared_width`` is the total width of the shared experts (0: none). ``shared_part`` says that it is a
    dense block beside the experts instead (Gemma-4).
    """

    kind: Literal["moe"] = "moe"
    experts: Positive
    top_k: Positive
    width: Positive
    shared_width: Annotated[int, Field(ge=0, le=10**9)] = 0
    shared_gate: bool = False
    """A learned scalar gate on the shared expert's output (Qwen2-MoE)."""
    gated: bool = True
    router_bias: bool = False
    expert_bias: bool = False
    shared_part: Literal["shared_experts", "dense_ffn"] = "shared_experts"
    latent: Positive | None = None
    """Routed experts work on a projection of the hidden state to this size (Nemotron-3, Kimi-K3)."""

    @model_validator(mode="after")
    def _topk(self) -> MoeFfn:
        if self.top_k > self.experts:
            raise ValueError(f"top_k {self.top_k} is larger than the {self.experts} routed experts")
        return self

    def tensors(self, hidden: int) -> Iterator[TensorShape]:
        """Weights of the block, without the layer norm in front of it."""
        halves = 2 if self.gated else 1
        e, w, s = self.experts, self.width, self.shared_width
        yield TensorShape("router", (("hidden", hidden), ("experts_all", e)), "routed_experts", False)
        if self.latent:
            yield TensorShape("latent_down", (("hidden", hidden), ("latent", self.latent)), "routed_experts")
            yield TensorShape("latent_up", (("latent", self.latent), ("hidden", hidden)), "routed_experts")
        if self.router_bias:
            yield TensorShape("router_bias", (("experts_all", e),), "routed_experts", False)
        x = ("latent", self.latent) if self.latent else ("hidden", hidden)
        yield TensorShape(
            "experts_gate_up", (("experts", e), x, ("halves", halves), ("expert_ffn", w)), "routed_experts"
        )
        yield TensorShape("experts_down", (("experts", e), ("expert_ffn", w), x), "routed_experts")
        if self.expert_bias:
            bias = (("experts", e), ("halves", halves), ("expert_ffn", w))
            yield TensorShape("experts_gate_up_bias", bias, "routed_experts", False)
            yield TensorShape("experts_down_bias", (("experts", e), x), "routed_experts", False)
        if s:
            part = self.shared_part
            yield TensorShape("shared_gate_up", (("hidden", hidden), ("halves", halves), ("shared_ffn", s)), part)
            yield TensorShape("shared_down", (("shared_ffn", s), ("hidden", hidden)), part)
            if self.shared_gate:
                yield TensorShape("shared_gate", (("hidden", hidden),), part, False)
