"""DGX-1 with V100: the hybrid cube mesh, 8 GPUs with 6 NVLinks each and no switch.
 Two faces of a cube with their diagonals, joined corner to corner; half of the 16 connected pairs have two
links. Read from ``nvidia-smi topo -m`` of 8 × V100-SXM2 hosts; another numbering seen in the field is the
same graph.
"""

from __future__ import annotations

from typing import ClassVar

from sim.errors import TopologyError
from sim.fabric import Fabric
from sim.hardware import Gpu
from sim.topology import LINK_LATENCY, Topology, connect, need_nvlink, new_graph

LINKS = {
    (0, 1): 1, (0, 2): 1, (0, 3): 2, (0, 4): 2, (1, 2): 2, (1, 3): 1, (1, 5): 2, (2, 3): 2,
    (2, 6): 1, (3, 7): 1, (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 2,
}  # fmt: skip
LINKS_PER_GPU = 6


def dgx1(gpu: Gpu) -> Fabric:
    """Build the cube mesh.

    Raises
    ------
    TopologyError
        If the GPU has not the 6 NVLinks that the board wires.
    """
    generation, links, rate = need_nvlink(gpu, "dgx1")
    if links != LINKS_PER_GPU:
        raise TopologyError(f"dgx1 wires {LINKS_PER_GPU} NVLinks per GPU; {gpu.name} has {links}; use v100-sxm2-32gb")
    graph = new_graph()
    ids = [f"gpu{i}" for i in range(8)]
    graph.add_nodes_from(ids, kind="gpu")
    for (a, b), count in LINKS.items():
        connect(graph, ids[a], ids[b], generation, count * rate, LINK_LATENCY["nvlink"], count)
    return Fabric("dgx1", f"8 × {gpu.name} in a hybrid cube mesh", graph, ids)


class Dgx1(Topology):
    """``dgx1``."""

    kind: ClassVar[str] = "dgx1"
    count_field: ClassVar[str | None] = None

    @property
    def gpu_count(self) -> int:
        """Eight."""
        return 8

    @property
    def usual_gpu(self) -> str:
        """The one it was built with."""
        return "v100-sxm2-32gb"

    def build(self, gpu: Gpu) -> Fabric:
        """See ``dgx1``."""
        return dgx1(gpu)
