"""Helix parallelism: KV tokens x heads in the attention, then all the same ranks for the FFN.

Helix paper (arXiv 2507.07120), TensorRT-LLM ``cp_config: {cp_type: HELIX}``. Every KVP rank of a head group projects
the same queries, attends its own tokens, and one all-to-all per layer swaps token shares for heads. With
attention DP (``dp``) tokens are sliced between the blocks and experts are reached by dispatch (blog 22).
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, StrictBool

from sim import mixers
from sim.builder import Builder
from sim.cut import Cut
from sim.engine_rules import Case, broken
from sim.errors import Problem
from sim.mesh import Mesh
from sim.model import Model
from sim.ownership import Ownership, Rule
from sim.program import Value
from sim.strategy import DATA, EXPERT, Block, Strategy, degree, expert_tensor_parallel, has_experts


class Helix(Strategy):
    """``dp`` x ``tpa`` x ``kvp`` ranks; experts over ``ep`` groups of them.

    ``hop_b`` cuts the batch so that the exchange of one piece hides behind the attention of the next: true takes the
    fastest number of pieces, a number fixes it. ``exchange_space``: what MLA exchanges, the latent as TensorRT-LLM
    does, each head's values, or the paper's B x H volume (a price only, not a tensor that exists). ``linear_state``:
    what linear attention keeps has no tokens to share, so its heads over ``tpa`` repeat on every KVP rank; ``sharded``
    splits them over both.
    """

    kind: ClassVar[str] = "helix"
    phases = ("decode",)
    tpa: int = degree("tpa", default=1)
    kvp: int = degree("kvp", "context_parallel_size")
    dp: int = degree(*DATA, default=1)
    ep: int = degree(*EXPERT, default=1)
    hop_b: StrictBool | Annotated[int, Field(strict=True, ge=1, le=4096)] = True
    exchange_space: Literal["latent", "v_head", "paper_hidden"] = "latent"
    linear_state: Literal["replicated", "sharded"] = "replicated"
    ownership: Rule = "prompt_decode"
    block: Block = 32

    def degrees(self) -> dict[str, int]:
        """Degrees in the order of the tag."""
        optional = {"dp": self.dp, "ep": self.ep}
        return {"tpa": self.tpa, "kvp": self.kvp} | {name: size for name, size in optional.items() if size > 1}

    @property
    def label(self) -> str:
        """The tag, with HOP-B where it is switched off."""
        return super().label if self.tag or self.hop_b is not False else f"{super().label}-no_hopb"

    def reasons(self, model: Model) -> list[Problem]:
        """``ep`` must divide all ranks, and cover them when attention DP dispatches tokens."""
        ranks = self.dp * self.tpa * self.kvp
        found = expert_tensor_parallel(model, ranks, self.ep)
        if self.dp > 1 and self.ep != ranks and has_experts(model):
            found.append(Problem(f"with attention DP the experts are spread over all ranks; write ep: {ranks}", "ep"))
        return found

    def engine_notes(self, model: Model) -> list[str]:
        """TensorRT-LLM and the paper."""
        paper = broken(Case("paper", model, heads=self.tpa, kvp=self.kvp))
        return [
            found.text
            for found in (*paper, *broken(Case("trtllm", model, heads=self.tpa, kvp=self.kvp), ("helix_powers",)))
        ]

    def pieces(self, sequences: int) -> tuple[int, ...]:
        """With HOP-B: powers of two up to 16, or to one request per piece; more pieces pay mostly launches."""
        if self.hop_b is False or self.kvp == 1:
            return (1,)
        if self.hop_b is not True:
            return (max(1, min(self.hop_b, sequences)),)
        return tuple(2**i for i in range(min(max(sequences, 1).bit_length(), 5)))

    def cut(self, model: Model) -> Cut:
        """Heads over ``tpa``, tokens over ``kvp``; output projection and FFN over both."""
        ranks = self.dp * self.tpa * self.kvp
        mesh = Mesh({"dp": self.dp, "tpa": self.tpa, "kvp": self.kvp}, {"tpf": ranks // self.ep, "ep": self.ep})
        heads = dict.fromkeys(("q_heads", "attention_heads", "uv_heads"), ("tpa",))
        rest = () if self.dp > 1 else ("tpa", "kvp")
        ffn = {**dict.fromkeys(("ffn", "shared_ffn", "vocab"), rest), "experts": ("ep",), "expert_ffn": ("tpf",)}
        ownership = Ownership(rule=self.ownership, block=self.block)
        roles = {**heads, **ffn, "o_heads": ("tpa", "kvp")}
        if self.linear_state == "sharded":
            roles["state_heads"] = ("tpa", "kvp")
        return Cut(mesh, roles, sequences=("dp",), kv_tokens=("kvp",), ownership=ownership)

    def tokens(self) -> tuple[str, ...]:
        """With attention DP every rank keeps a slice of its group's tokens between the blocks."""
        return ("dp", "tpa", "kvp") if self.dp > 1 else ()

    def attention(self, b: Builder, x: Value) -> Value:
        """Redundant queries, local tokens, one exchange; all attentions are issued before the merges (HOP-B)."""
        group = ("tpa", "kvp")
        if self.dp > 1:
            x = b.all_gather(x, group)
        parts = [mixers.attend(b, part) for part in b.split(mixers.query(b, x), b.pieces)]
        if self.exchange_space == "v_head":
            parts = [mixers.raise_latent(b, part) for part in parts]
        width = None
        if self.exchange_space == "paper_hidden" and b.layer and b.layer.attention:
            width = b.model.hidden // b.layer.attention.query_heads
        exchanged = [b.exchange_heads(part, statistics=2, width=width) for part in parts]
        y = mixers.output(b, b.concat([b.merge(part) for part in exchanged]))
        return b.reduce_scatter(y, group) if self.dp > 1 else b.all_reduce(y)

    def recurrence(self, b: Builder, x: Value) -> Value:
        """Every KVP rank keeps the state of its heads, unless they are split over all ranks of the group."""
        group = ("tpa", "kvp")
        if self.dp == 1:
            return super().recurrence(b, x)
        return b.slice_tokens(b.all_reduce(mixers.recurrent(b, b.all_gather(x, group))), group)

    def ffn(self, b: Builder, x: Value) -> Value:
        """Without attention DP one all-reduce; with it, dense blocks are local and experts get dispatched tokens."""
        if self.dp > 1 and mixers.is_moe(b):
            return mixers.exchanged_experts(b, x, per_expert=False)
        return b.all_reduce(mixers.feed_forward(b, x))

    def end(self, b: Builder, x: Value) -> Value:
        """With attention DP the group's tokens come together before the LM head."""
        return super().end(b, b.all_gather(x, ("tpa", "kvp")) if self.dp > 1 else x)
