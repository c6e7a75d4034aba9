"""Rack-scale NVLink: 18 compute trays of 4 GPUs, 18 NVSwitch chips, one link from every GPU to every chip.
 Source: NVIDIA DGX SuperPOD GB200 reference architecture. All GPUs of the rack are one switch apart, at the
full 1.8 TB/s (both directions) of a GPU. Fewer than 72 GPUs are a part of such a rack.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from sim.errors import TopologyError
from sim.fabric import Fabric
from sim.hardware import Gpu
from sim.topology import LINK_LATENCY, Topology, connect, need_nvlink, new_graph

CHIPS = 18
GPUS_PER_TRAY = 4


def nvl72(gpu: Gpu, gpus: int = 72) -> Fabric:
    """Build ``gpus`` GPUs of one rack; a node's attribute ``tray`` is the compute tray it sits in.

    Raises
    ------
    TopologyError
        If the GPU has not one NVLink for each of the 18 switch chips.
    """
    generation, links, rate = need_nvlink(gpu, "nvl72")
    if links != CHIPS:
        raise TopologyError(f"nvl72 needs one NVLink to each of {CHIPS} switch chips; {gpu.name} has {links}; use hgx")
    graph = new_graph()
    ids = [f"gpu{i}" for i in range(gpus)]
    graph.add_nodes_from((g, {"kind": "gpu", "tray": i // GPUS_PER_TRAY}) for i, g in enumerate(ids))
    chips = [f"nvswitch{i}" for i in range(CHIPS)]
    graph.add_nodes_from(chips, kind="nvswitch")
    for g in ids:
        for chip in chips:
            connect(graph, g, chip, generation, rate, LINK_LATENCY["nvlink"] / 2)
    trays = -(-gpus // GPUS_PER_TRAY)
    return Fabric(f"nvl72-{gpus}", f"{gpus} × {gpu.name} on {trays} trays and {CHIPS} NVSwitch chips", graph, ids)


class Nvl72(Topology):
    """``nvl72`` or ``nvl72-36``."""

    kind: ClassVar[str] = "nvl72"
    gpus: int = Field(default=72, ge=1, le=72)

    @property
    def gpu_count(self) -> int:
        """GPUs of the rack in use."""
        return self.gpus

    @property
    def usual_gpu(self) -> str:
        """One with a Grace CPU."""
        return "gb200"

    def build(self, gpu: Gpu) -> Fabric:
        """See ``nvl72``."""
        return nvl72(gpu, self.gpus)
