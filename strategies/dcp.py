"""Decode context parallelism: tokens of the cache over ``dcp`` neighbours inside a TP group, no extra GPUs.

vLLM ``--decode-context-parallel-size`` (version 0.33.0), SGLang ``--dcp-size`` (0.5.23), where TP / dcp may also be
below the KV heads. Queries are all-gathered over the group; partial outputs return by reduce-scatter (``ag_rs``) or
by one packed all-to-all (``a2a``).
"""

from __future__ import annotations

from typing import ClassVar, Literal

from sim import mixers
from sim.builder import Builder
from sim.cut import Cut
from sim.engine_rules import Case, broken
from sim.errors import Problem
from sim.mesh import Mesh
from sim.model import Model
from sim.ownership import Ownership, Rule
from sim.program import Value
from sim.strategy import EXPERT, TENSOR, Block, Strategy, degree, divisors, expert_tensor_parallel


class DecodeContextParallel(Strategy):
    """``tp`` ranks, of which ``dcp`` consecutive ones share a sequence's tokens.

    ``replicate_q``: the query projection is split over TP / dcp only, which saves the all-gather of the queries.
    ``index``: the keys of a sparse index are shared over ``dcp`` like the latents, and the ranks' best candidates
    all-gathered (vLLM), or every rank keeps and scores all of them (SGLang).
    ``linear_state``: the state of linear attention has no tokens to share; it repeats over ``dcp``, or its heads are
    split over all ranks (``sharded``: vLLM's state shapes divide by the whole tensor-parallel size).
    """

    kind: ClassVar[str] = "dcp"
    phases = ("decode",)
    tp: int = degree(*TENSOR)
    dcp: int = degree("dcp", "decode_context_parallel_size", "dcp_size")
    ep: int = degree(*EXPERT, default=1)
    exchange: Literal["ag_rs", "a2a"] = "ag_rs"
    replicate_q: bool = False
    index: Literal["sharded", "whole"] = "sharded"
    linear_state: Literal["replicated", "sharded"] = "replicated"
    ownership: Rule = "round_robin"
    block: Block = 1

    def degrees(self) -> dict[str, int]:
        """Degrees in the order of the tag."""
        ep = {"ep": self.ep} if self.ep > 1 else {}
        return {"tp": self.tp, "dcp": self.dcp} | ep

    @property
    def label(self) -> str:
        """The tag, with the exchange where it is not the default."""
        return super().label if self.tag or self.exchange == "ag_rs" else f"{super().label}-a2a"

    def reasons(self, model: Model) -> list[Problem]:
        """``dcp`` and ``ep`` must divide ``tp``."""
        found = expert_tensor_parallel(model, self.tp, self.ep)
        if self.tp % self.dcp:
            found.append(Problem(f"{self.dcp} does not divide tp {self.tp}; choose {divisors(self.tp)}", "dcp"))
        return found

    def engine_notes(self, model: Model) -> list[str]:
        """vLLM's rules for grouped-query attention, a sharded index, and windows."""
        case = Case("vllm", model, heads=self.tp, dcp=self.dcp, sharded_index=self.index == "sharded")
        return [found.text for found in broken(case, ("dcp_heads", "dcp_index", "dcp_windows"))]

    def cut(self, model: Model) -> Cut:
        """Heads over ``tpa`` during attention, over all ranks before and after it."""
        mesh = Mesh({"tpa": self.tp // self.dcp, "dcp": self.dcp}, {"tpf": self.tp // self.ep, "ep": self.ep})
        everything: tuple[str, ...] = ("tpa", "dcp")
        roles = dict.fromkeys(("o_heads", "ffn", "shared_ffn", "vocab"), everything)
        roles["q_heads"] = ("tpa",) if self.replicate_q else everything
        ffn = {"experts": ("ep",), "expert_ffn": ("tpf",)}
        if self.linear_state == "sharded":
            roles["state_heads"] = everything
        ownership = Ownership(rule=self.ownership, block=self.block)
        roles |= {**ffn, "attention_heads": ("tpa",)}
        whole = self.index == "whole"
        return Cut(mesh, roles, kv_tokens=("dcp",), ownership=ownership, whole_index=whole)

    def attention(self, b: Builder, x: Value) -> Value:
        """Queries of the group together, each rank its tokens, outputs back to their heads."""
        q = mixers.query(b, x)
        if not self.replicate_q:
            q = b.all_gather(q, ("dcp",), over="heads")
        shares = mixers.attend(b, q)
        if self.exchange == "a2a":
            attended = b.merge(b.exchange_heads(shares, statistics=1))
        else:
            rescaled = b.rescale(shares, b.gather_statistics(shares))
            attended = b.reduce_scatter(rescaled, ("dcp",), over="heads")
        return b.all_reduce(mixers.output(b, attended))
