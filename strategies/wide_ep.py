"""Wide expert parallelism: attention data parallelism with experts over all ranks, by dispatch and combine.

vLLM ``--enable-expert-parallel`` with a DeepEP all-to-all backend, SGLang ``--moe-a2a-backend deepep``,
TensorRT-LLM wide EP. Expert slots = experts + redundant copies of hot ones (EPLB).
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from sim import mixers
from sim.builder import Builder
from sim.cut import Cut, ExpertPlacement
from sim.errors import Problem
from sim.mesh import Mesh
from sim.model import Model, MoeFfn
from sim.program import Value
from sim.strategy import DATA, EXPERT, TENSOR, Strategy, degree, has_experts


class WideExpertParallel(Strategy):
    """``dp`` attention replicas of ``tp`` ranks; ``ep`` = all ranks (may be left out).

    ``copies`` is how many copies of a token travel: one per rank that holds any of its experts (``per_rank``:
    TensorRT-LLM one-sided kernels, DeepEP normal), or one per expert (``per_expert``: DeepEP low latency).
    ``placement`` says which expert sits where (vLLM: ``linear`` or ``round_robin``). ``imbalance`` is the ratio of the
    fullest expert rank's rows to the mean.
    """

    kind: ClassVar[str] = "wide_ep"
    dp: int = degree(*DATA)
    tp: int = degree(*TENSOR, default=1)
    ep: int | None = degree(*EXPERT, default=None)
    redundant_experts: Annotated[int, Field(ge=0, le=65536)] = 0
    placement: ExpertPlacement = "linear"
    copies: Literal["per_rank", "per_expert"] = "per_rank"
    imbalance: Annotated[float, Field(ge=1, le=1000)] = 1.0

    def degrees(self) -> dict[str, int]:
        """Degrees in the order of the tag."""
        tp = {"tp": self.tp} if self.tp > 1 else {}
        extra = {"r": self.redundant_experts} if self.redundant_experts else {}
        return {"dp": self.dp} | tp | {"wide_ep": self.dp * self.tp} | extra

    def reasons(self, model: Model) -> list[Problem]:
        """Needs experts, and ``ep`` equal to all ranks."""
        ranks = self.dp * self.tp
        found = []
        if self.ep not in (None, ranks):
            text = f"wide EP spreads the experts over all dp x tp = {ranks} ranks; write ep: {ranks} or leave it out"
            found.append(Problem(f"{text} (for fewer, use attention_dp)", "ep"))
        if not has_experts(model):
            found.append(Problem(f"{model.name} has no experts to spread; use attention_dp", "strategy"))
        for ffn in dict.fromkeys(layer.ffn for layer in model.kinds):
            if isinstance(ffn, MoeFfn):
                each = -(-(ffn.experts + self.redundant_experts) // ranks)
                most = ranks * min(ffn.top_k, each) / ffn.top_k
                if self.imbalance > most:
                    text = f"{self.imbalance:g} is more than all tokens on one rank; at most {most:g} is possible"
                    found.append(Problem(text, "imbalance"))
        return found

    def cut(self, model: Model) -> Cut:
        """Sequences over ``dp``, heads over ``tp``, expert slots over all; the rest stays with each replica."""
        ranks = self.dp * self.tp
        mesh = Mesh({"dp": self.dp, "tp": self.tp}, {"ep": ranks})
        over_tp = dict.fromkeys(("q_heads", "attention_heads", "o_heads", "ffn", "vocab"), ("tp",))
        roles = {**over_tp, "experts": ("ep",)}
        return Cut(
            mesh,
            roles,
            sequences=("dp",),
            redundant_experts=self.redundant_experts,
            expert_placement=self.placement,
        )

    def tokens(self) -> tuple[str, ...]:
        """Each replica has its own sequences' tokens."""
        return ("dp",)

    def ffn(self, b: Builder, x: Value) -> Value:
        """Each rank dispatches its slice of the replica's tokens."""
        if not mixers.is_moe(b):
            return b.all_reduce(mixers.feed_forward(b, x))
        mine = b.slice_tokens(x, ("tp",))
        y = mixers.exchanged_experts(b, mine, self.copies == "per_expert", self.imbalance)
        return b.all_gather(y, ("tp",))
