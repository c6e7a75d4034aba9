"""Attention data parallelism: whole sequences per replica of the attention, the FFN over all ranks.

SGLang ``--enable-dp-attention --dp-size`` (attention TP = tp / dp inside), TensorRT-LLM ``enable_attention_dp``,
vLLM ``--data-parallel-size``. The FFN's tokens are all-gathered and its output reduce-scattered (vLLM's default
``allgather_reducescatter``); for dispatch and combine see ``wide_ep``.
"""

from __future__ import annotations

from typing import ClassVar

from sim import mixers
from sim.builder import Builder
from sim.cut import Cut
from sim.errors import Problem
from sim.mesh import Mesh
from sim.model import Model
from sim.program import Value
from sim.strategy import DATA, EXPERT, TENSOR, DenseOver, Strategy, degree, expert_tensor_parallel


class AttentionDataParallel(Strategy):
    """``dp`` attention replicas of ``tp`` ranks each; experts over ``ep`` groups of all ranks.

    ``dense`` and ``vocab`` say over which ranks dense FFNs with the shared experts, and embeddings with the LM head
    are split. Default: all ranks; with expert parallelism each attention replica keeps its own (as TensorRT-LLM and
    SGLang with ``enable_dp_lm_head`` do).
    """

    kind: ClassVar[str] = "attention_dp"
    dp: int = degree(*DATA)
    tp: int = degree(*TENSOR, default=1)
    ep: int = degree(*EXPERT, default=1)
    dense: DenseOver | None = None
    vocab: DenseOver | None = None

    def degrees(self) -> dict[str, int]:
        """Degrees in the order of the tag."""
        optional = {"tp": self.tp, "ep": self.ep}
        return {"dp": self.dp} | {name: size for name, size in optional.items() if size > 1}

    def reasons(self, model: Model) -> list[Problem]:
        """``ep`` must divide all ranks."""
        return expert_tensor_parallel(model, self.dp * self.tp, self.ep)

    def _over(self, choice: DenseOver | None) -> tuple[str, ...]:
        return ("dp", "tp") if (choice or ("attention_tp" if self.ep > 1 else "world")) == "world" else ("tp",)

    def cut(self, model: Model) -> Cut:
        """Sequences over ``dp``, heads over ``tp``."""
        ranks = self.dp * self.tp
        mesh = Mesh({"dp": self.dp, "tp": self.tp}, {"tpf": ranks // self.ep, "ep": self.ep})
        split = dict.fromkeys(("q_heads", "attention_heads", "o_heads"), ("tp",))
        dense, vocab = self._over(self.dense), self._over(self.vocab)
        ffn = {"ffn": dense, "shared_ffn": dense, "experts": ("ep",), "expert_ffn": ("tpf",)}
        return Cut(mesh, {**split, **ffn, "vocab": vocab}, sequences=("dp",))

    def tokens(self) -> tuple[str, ...]:
        """Each replica has its own sequences' tokens."""
        return ("dp",)

    def ffn(self, b: Builder, x: Value) -> Value:
        """All replicas' tokens to every rank, and each replica's share of the output back."""
        local = "dp" not in b.cut.axes("ffn")
        if local and not mixers.is_moe(b):
            return b.all_reduce(mixers.feed_forward(b, x))
        everyone = b.all_gather(x, ("dp",))
        if local and mixers.has_shared(b):
            routed = b.reduce_scatter(mixers.routed_experts(b, everyone), ("dp",))
            return b.all_reduce(b.add(routed, mixers.shared_expert(b, x)))
        return b.all_reduce(b.reduce_scatter(mixers.feed_forward(b, everyone), ("dp",)))
