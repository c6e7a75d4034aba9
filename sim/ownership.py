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

Rule = Literal["round_robin", "prompt_decode", "contiguous"]


def _dealt(tokens: Number, size: int, ranks: int, rank: int) -> Number:
    """Of ``tokens`` dealt out in blocks of ``size``, those that ``rank`` gets."""
    base = tokens // size // ranks * size
    return base + smaller(larger(tokens - base * ranks - rank * size, 0), size)


class Ownership(Noun):
    """Tokens in blocks of ``block``: ``round_robin`` deals them over the ranks, ``prompt_decode`` does so for the
    prompt and starts at rank 0 again for the generated tokens, ``contiguous`` gives each rank one run of blocks.

    ``block: 1`` is vLLM's default; 32 is TensorRT-LLM's; 16 the Helix paper's example. ``generated`` is how many of
    the ``context`` tokens were generated since the prompt; only ``prompt_decode`` asks.
    """

    rule: Rule = "round_robin"
    block: Annotated[int, Field(ge=1, le=2**20)] = 1

    def held(
        self, context: Number, ranks: int, rank: int, generated: Number = 0, below: Number | None = None
    ) -> Number:
        """Tokens of a cache of ``context`` that ``rank`` of ``ranks`` holds; with ``below``, of its first ones only."""
        if below is None:
            below = context
        if ranks == 1:
            return below
        size = self.block
        if self.rule == "round_robin":
            return _dealt(below, size, ranks, rank)
        if self.rule == "prompt_decode":
            prompt = context - generated
            return _dealt(smaller(below, prompt), size, ranks, rank) + _dealt(
                larger(below - prompt, 0), size, ranks, rank
            )
        blocks = -(-context // size)
        each, extra = blocks // ranks, blocks % ranks
        first = rank * each + smaller(rank, extra)
        last = first + each + (rank < extra)
        return smaller(last * size, below) - smaller(first * size, below)

    def owner(self, token: int, ranks: int, context: int, generated: int = 0) -> int:
        """The rank that holds ``token`` (from 0) of a sequence of ``context`` tokens."""
        if self.rule == "prompt_decode" and token >= context - generated:
            return self.decode_owner(token - (context - generated) + 1, ranks)
        block = token // self.block
        if self.rule != "contiguous":
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
