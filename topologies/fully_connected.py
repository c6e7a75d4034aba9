"""Direct mesh: a link between every two GPUs, each GPU's NVLink bandwidth divided evenly over its peers.
 Wired like the boards that have no switch. One pair alone sees only its own link, all pairs together see
everything. The division may come out as a fraction of a link; real boards round it down.
"""

from __future__ import annotations

from itertools import combinations
from typing import ClassVar

from pydantic import Field

from sim.errors import TopologyError
from sim.fabric import Fabric
from sim.hardware import Gpu
from sim.topology import LINK_LATENCY, Topology, connect, need_nvlink, new_graph


def fully_connected(gpu: Gpu, gpus: int = 4) -> Fabric:
    """Build a mesh of ``gpus`` GPUs.

    Raises
    ------
    TopologyError
        If the GPU has no NVLink to a board, or fewer links than peers.
    """
    generation, links, rate = need_nvlink(gpu, "fully_connected")
    if links < gpus - 1:
        raise TopologyError(
            f"fully_connected-{gpus} needs {gpus - 1} NVLinks per GPU; {gpu.name} has {links}; "
            f"use at most {links + 1} GPUs"
        )
    graph = new_graph()
    ids = [f"gpu{i}" for i in range(gpus)]
    graph.add_nodes_from(ids, kind="gpu")
    for a, b in combinations(ids, 2):
        connect(graph, a, b, generation, links * rate / (gpus - 1), LINK_LATENCY["nvlink"])
    return Fabric(f"fully_connected-{gpus}", f"{gpus} × {gpu.name}, each linked to every other", graph, ids)


class FullyConnected(Topology):
    """``fully_connected`` or ``fully_connected-4``."""

    kind: ClassVar[str] = "fully_connected"
    gpus: int = Field(default=4, ge=1, le=64)

    @property
    def gpu_count(self) -> int:
        """GPUs of the mesh."""
        return self.gpus

    def build(self, gpu: Gpu) -> Fabric:
        """See ``fully_connected``."""
        return fully_connected(gpu, self.gpus)
