"""Two-batch overlap as a transform of a program: two halves of the batch take turns on the streams.

SGLang (0.5.23) and vLLM's dual-batch overlap run two micro-batches whose communication hides behind the other's
computing. Here each half is the same list of operations; the lists are cut behind each communication and issued
in turn, so that one half computes while the other one's message travels.
"""

from __future__ import annotations

from itertools import zip_longest

from sim.program import COMMUNICATION, Op


def stages(ops: list[Op]) -> list[list[Op]]:
    """The list cut behind each communication operation."""
    found: list[list[Op]] = [[]]
    for op in ops:
        found[-1].append(op)
        if op.stream == COMMUNICATION:
            found.append([])
    return found if found[-1] else found[:-1]


def interleave(first: list[Op], second: list[Op]) -> list[Op]:
    """Both lists in turn, stage by stage."""
    nothing: list[Op] = []
    turns = zip_longest(stages(first), stages(second), fillvalue=nothing)
    return [op for pair in turns for half in pair for op in half]
