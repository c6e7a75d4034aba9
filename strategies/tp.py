"""Tensor parallelism: heads and FFN columns over all ranks; experts whole (``ep``) or sliced.

vLLM ``--tensor-parallel-size``, SGLang ``--tp-size``, TensorRT-LLM ``tensor_parallel_size``.
Beyond the KV heads, every KV head is held by several ranks: that is the duplication this tool is about.
"""

from __future__ import annotations

from typing import ClassVar

from sim.cut import Cut
from sim.errors import Problem
from sim.mesh import Mesh
from sim.model import Model
from sim.strategy import EXPERT, TENSOR, Strategy, degree, expert_tensor_parallel


class TensorParallel(Strategy):
    """``tp`` ranks; experts are spread over ``ep`` groups of ranks and sliced inside a group."""

    kind: ClassVar[str] = "tp"
    tp: int = degree(*TENSOR)
    ep: int = degree(*EXPERT, default=1)

    def degrees(self) -> dict[str, int]:
        """Degrees in the order of the tag."""
        return {"tp": self.tp} | ({"ep": self.ep} if self.ep > 1 else {})

    def reasons(self, model: Model) -> list[Problem]:
        """``ep`` must divide ``tp``."""
        return expert_tensor_parallel(model, self.tp, self.ep)

    def cut(self, model: Model) -> Cut:
        """All heads and columns over one axis; experts over the inner part of the same ranks."""
        mesh = Mesh({"tp": self.tp}, {"tpf": self.tp // self.ep, "ep": self.ep})
        split = dict.fromkeys(("q_heads", "attention_heads", "o_heads", "ffn", "shared_ffn", "vocab"), ("tp",))
        return Cut(mesh, {**split, "experts": ("ep",), "expert_ffn": ("tpf",)})
