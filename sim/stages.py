"""Pipeline stages: which layers go where.

Sources: TensorRT-LLM ``pp_layers`` (the first L mod PP stages get one more layer); vLLM 0.33.0
``get_pp_indices`` (a remainder goes to the stages before the last, from the second-last backwards).
"""

from __future__ import annotations

from typing import Literal

from sim.model import Layer

Split = Literal["vllm", "trtllm"]


def stage_sizes(layers: int, stages: int, split: Split) -> list[int]:
    """Layers of each stage, first to last."""
    each, extra = divmod(layers, stages)
    sizes = [each] * stages
    first = 0 if split == "trtllm" else max(stages - 1 - extra, 0)
    for stage in range(first, first + extra):
        sizes[stage] += 1
    return sizes


def split_layers(runs: tuple[tuple[int, Layer], ...], stages: int, split: Split) -> list[list[tuple[int, Layer]]]:
    """The (count, layer) runs of each stage."""
    if stages == 1:
        return [list(runs)]
    queue = list(runs)
    found = []
    for size in stage_sizes(sum(n for n, _ in runs), stages, split):
        stage: list[tuple[int, Layer]] = []
        while size:
            count, layer = queue.pop(0)
            taken = min(count, size)
            stage.append((taken, layer))
            size -= taken
            if count > taken:
                queue.insert(0, (count - taken, layer))
        found.append(stage)
    return found
