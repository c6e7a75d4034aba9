"""Ring: every GPU has half of its NVLink bandwidth to either neighbour. A didactic machine: all-to-all
traffic is bound by its bisection of two links, however many GPUs there are.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from sim.fabric import Fabric
from sim.hardware import Gpu
from sim.topology import LINK_LATENCY, Topology, connect, need_nvlink, new_graph


def ring(gpu: Gpu, gpus: int = 8) -> Fabric:
    """Build a ring of ``gpus`` GPUs; two GPUs share one link of the whole bandwidth.

    Raises
    ------
    TopologyError
        If the GPU has no NVLink to a board.
    """
    generation, links, rate = need_nvlink(gpu, "ring")
    graph = new_graph()
    ids = [f"gpu{i}" for i in range(gpus)]
    graph.add_nodes_from(ids, kind="gpu")
    width = links * rate / min(gpus - 1, 2) if gpus > 1 else 0.0
    for i in range(gpus if gpus > 2 else gpus - 1):
        connect(graph, ids[i], ids[(i + 1) % gpus], generation, width, LINK_LATENCY["nvlink"])
    return Fabric(f"ring-{gpus}", f"{gpus} × {gpu.name} in a ring", graph, ids)


class Ring(Topology):
    """``ring`` or ``ring-8``."""

    kind: ClassVar[str] = "ring"
    gpus: int = Field(default=8, ge=1, le=1024)

    @property
    def gpu_count(self) -> int:
        """GPUs on the ring."""
        return self.gpus

    def build(self, gpu: Gpu) -> Fabric:
        """See ``ring``."""
        return ring(gpu, self.gpus)
