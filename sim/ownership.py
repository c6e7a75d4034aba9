"""Which rank of a KV-parallel group holds which token of a sequence.

Three rules that engines really use, each a pure function of (context, group size, rank). All of them accept
numpy arrays of contexts.

Sources: vLLM 0.33.0 ``cp_kv_cache_interleave_size``; TensorRT-LLM Helix (round robin by block, prompt and decode
counted apart; older versions contiguous runs of blocks); Helix paper arXiv 2507.07120 section 2.3.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from sim.errors import LayoutError
from sim.noun import Noun
from sim.workload import Number, larger, smaller

Rule = Literal["round_robin", "contiguous"]


class Ownership(Noun):
    """Tokens in blocks of ``block``: dealt ``round_robin`` over the ranks, or ``contiguous`` runs of blocks.

    ``block: 1`` is vLLM's default; 32 is TensorRT-LLM's; 16 the Helix paper's example.
    """

    rule: Rule = "round_robin"
    block: Annotated[int, Field(ge=1, le=2**20)] = 1

    def held(self, context: Number, ranks: int, rank: int) -> Number:
        """Tokens of the first ``context`` ones that ``rank`` of ``ranks`` holds."""
        if ranks == 1:
            return context
        size = self.block
        if self.rule == "round_robin":
            base = context // size // ranks * size
            return base + smaller(larger(context - base * ranks - rank * size, 0), size)
        blocks = -(-context // size)
        each, extra = blocks // ranks, blocks % ranks
        first = rank * each + smaller(rank, extra)
        last = first + each + (rank < extra)
        return smaller(last * size, context) - smaller(first * size, context)

    def owner(self, token: int, ranks: int, context: int) -> int:
        """The rank that holds ``token`` of a sequence of ``context`` tokens."""
        block = token // self.block
        if self.rule == "round_robin":
            return block % ranks
        each, extra = divmod(-(-context // self.block), ranks)
        boundary = extra * (each + 1)
        return block // (each + 1) if block < boundary else extra + (block - boundary) // each

    def decode_owner(self, iteration: int, ranks: int) -> int:
        """Who appends in decode iteration 1, 2, ... in TensorRT-LLM: the count restarts at rank 0 after the prompt.

        Raises ``LayoutError`` for an iteration below 1.
        """
        if iteration < 1:
            raise LayoutError(f"decode iterations count from 1, not from {iteration}")
        return (iteration - 1) // self.block % ranks
