"""KV parallelism in its vanilla form (Medha; the baseline of the Helix paper).

A sequence's tokens are spread over ``kvp`` groups of ``tp`` ranks. Every group projects and attends; the partial
results go to the first group, which alone runs the output projection and the FFN. All communication is exposed.
"""

from __future__ import annotations

from typing import ClassVar

from sim import mixers
from sim.builder import Builder
from sim.cut import EVERYWHERE, Cut, Only
from sim.errors import Problem
from sim.mesh import Mesh
from sim.model import Model, TensorShape
from sim.ownership import Ownership, Rule
from sim.program import Value
from sim.strategy import EXPERT, TENSOR, Block, Strategy, degree, expert_tensor_parallel


class KvParallel(Strategy):
    """``kvp`` groups of ``tp`` ranks; ``ep`` expert groups inside the first one."""

    kind: ClassVar[str] = "kvp"
    phases = ("decode",)
    kvp: int = degree("kvp", "kv_parallel_size")
    tp: int = degree(*TENSOR, default=1)
    ep: int = degree(*EXPERT, default=1)
    ownership: Rule = "round_robin"
    block: Block = 16

    def degrees(self) -> dict[str, int]:
        """Degrees in the order of the tag."""
        return {"kvp": self.kvp, "tp": self.tp} | ({"ep": self.ep} if self.ep > 1 else {})

    def reasons(self, model: Model) -> list[Problem]:
        """``ep`` must divide ``tp``."""
        return expert_tensor_parallel(model, self.tp, self.ep)

    def cut(self, model: Model) -> Cut:
        """Tokens over ``kvp``; what comes after attention only on its first coordinate."""
        mesh = Mesh({"kvp": self.kvp, "tpf": self.tp // self.ep, "ep": self.ep})
        tp = ("tpf", "ep")
        split = dict.fromkeys(("q_heads", "attention_heads", "o_heads", "ffn", "shared_ffn", "vocab"), tp)
        roles = {**split, "experts": ("ep",), "expert_ffn": ("tpf",)}
        ownership = Ownership(rule=self.ownership, block=self.block)
        return Cut(mesh, roles, kv_tokens=("kvp",), ownership=ownership, holds=self._holds)

    def _holds(self, tensor: TensorShape) -> Only:
        state = any(role.startswith("state_") for role, _ in tensor.dims)
        before_exchange = (
            tensor.part == "attention" and not state and tensor.name not in ("uv", "o", "o_bias", "extra_norms")
        )
        return EVERYWHERE if before_exchange or self.kvp == 1 else (("kvp", 0),)

    def attention(self, b: Builder, x: Value) -> Value:
        """Hidden states to all groups, partial results back to the first."""
        q = mixers.query(b, b.broadcast(x, ("kvp",)))
        shares = b.gather_shares(mixers.attend(b, q), statistics=1)
        return b.all_reduce(mixers.output(b, b.merge(shares)))
