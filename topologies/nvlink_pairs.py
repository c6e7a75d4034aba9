"""PCIe server whose cards are bridged in pairs over NVLink: 0 with 1, 2 with 3, and so on.

A pair is fast, everything beyond it goes over PCIe: a group of four crosses it in every collective.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from sim.fabric import Fabric
from sim.hardware import Gpu
from sim.pcie_tree import CPU_LINK, add_pcie_tree
from sim.topology import LINK_LATENCY, Topology, connect, need_nvlink, new_graph
from sim.units import Rate


def nvlink_pairs(
    gpu: Gpu, gpus: int = 8, *, sockets: int = 2, gpus_per_switch: int = 1, cpu_link: float = CPU_LINK
) -> Fabric:
    """Build a server of ``gpus`` GPUs; an odd one stays without a bridge. ``cpu_link`` in bytes/s, one
    direction.

    Raises
    ------
    TopologyError
        If the GPU has no NVLink.
    """
    generation, links, rate = need_nvlink(gpu, "nvlink_pairs", bridge=True)
    graph = new_graph()
    ids = [f"gpu{i}" for i in range(gpus)]
    add_pcie_tree(graph, gpu, ids, sockets=sockets, gpus_per_switch=gpus_per_switch, cpu_link=cpu_link)
    for i in range(0, gpus - 1, 2):
        connect(graph, ids[i], ids[i + 1], generation, links * rate, LINK_LATENCY["nvlink"])
    return Fabric(f"nvlink_pairs-{gpus}", f"{gpus} × {gpu.name} on PCIe, bridged in pairs", graph, ids)


class NvlinkPairs(Topology):
    """``nvlink_pairs`` or ``nvlink_pairs-4``: one socket up to 4 GPUs and two above, unless ``sockets`` says
    so."""

    kind: ClassVar[str] = "nvlink_pairs"
    gpus: int = Field(default=8, ge=2, le=32)
    sockets: int | None = Field(default=None, ge=1, le=8)
    gpus_per_switch: int = Field(default=1, ge=1, le=16)
    cpu_link: Rate = CPU_LINK

    @property
    def gpu_count(self) -> int:
        """GPUs of the server."""
        return self.gpus

    @property
    def usual_gpu(self) -> str:
        """A card with a bridge."""
        return "h100-pcie"

    def build(self, gpu: Gpu) -> Fabric:
        """See ``nvlink_pairs``."""
        sockets = self.sockets or (1 if self.gpus <= 4 else 2)
        return nvlink_pairs(
            gpu, self.gpus, sockets=sockets, gpus_per_switch=self.gpus_per_switch, cpu_link=self.cpu_link
        )
