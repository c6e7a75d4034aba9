"""NVSwitch box: every GPU has its NVLinks spread over all switch chips, so any pair is one switch apart.

Switch chips and links of one GPU to each: A100 6 chips with 2, H100 and H200 4 chips with 5, 4, 4, 5,
B200 2 chips with 9 (NVIDIA HGX and DGX data sheets; the split 5/4/4/5 is not in a primary source, and because
links are used in proportion it changes no time).
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from sim.errors import TopologyError
from sim.fabric import Fabric
from sim.hardware import Gpu
from sim.topology import LINK_LATENCY, Topology, connect, need_nvlink, new_graph

CHIPS = {"nvlink3": 6, "nvlink4": 4, "nvlink5": 2}


def links_per_chip(links: int, chips: int) -> list[int]:
    """Spread one GPU's links over the chips as evenly as they go, the larger parts outside.

    >>> links_per_chip(18, 4), links_per_chip(12, 6)
    ([5, 4, 4, 5], [2, 2, 2, 2, 2, 2])
    """
    base, extra = divmod(links, chips)
    split = [base] * chips
    for i in range(extra):
        split[i // 2 if i % 2 == 0 else -1 - i // 2] += 1
    return split


def hgx(gpu: Gpu, gpus: int = 8) -> Fabric:
    """Build a box of ``gpus`` GPUs around the NVSwitch chips of their NVLink generation.

    Raises
    ------
    TopologyError
        If the GPU has no NVLink to a board, or one for which no such box exists.
    """
    generation, links, rate = need_nvlink(gpu, "hgx")
    chips = CHIPS.get(generation)
    if chips is None:
        raise TopologyError(f"hgx exists for {', '.join(CHIPS)}, not for the {generation} of {gpu.name}; use dgx1")
    graph = new_graph()
    ids = [f"gpu{i}" for i in range(gpus)]
    graph.add_nodes_from(ids, kind="gpu")
    graph.add_nodes_from((f"nvswitch{i}" for i in range(chips)), kind="nvswitch")
    for i, count in enumerate(links_per_chip(links, chips)):
        for g in ids:
            if count:
                connect(graph, g, f"nvswitch{i}", generation, count * rate, LINK_LATENCY["nvlink"] / 2, count)
    return Fabric(f"hgx-{gpus}", f"{gpus} × {gpu.name} on {chips} NVSwitch chips", graph, ids)


class Hgx(Topology):
    """``hgx`` or ``hgx-8``."""

    kind: ClassVar[str] = "hgx"
    gpus: int = Field(default=8, ge=1, le=16)

    @property
    def gpu_count(self) -> int:
        """GPUs of the box."""
        return self.gpus

    def build(self, gpu: Gpu) -> Fabric:
        """See ``hgx``."""
        return hgx(gpu, self.gpus)
