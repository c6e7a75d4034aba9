"""PCIe server without NVLink: GPUs behind switches, switches under sockets, and the CPU link between the
sockets, which is what all traffic between the halves shares.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from sim.fabric import Fabric
from sim.hardware import Gpu
from sim.pcie_tree import CPU_LINK, add_pcie_tree
from sim.topology import Topology, new_graph
from sim.units import Rate


def pcie(
    gpu: Gpu,
    gpus: int = 8,
    *,
    sockets: int = 2,
    gpus_per_switch: int = 1,
    cpu_link: float = CPU_LINK,
    uplink: float | None = None,
) -> Fabric:
    """Build a server of ``gpus`` GPUs over ``sockets`` CPUs, ``gpus_per_switch`` behind each switch (1:
    none).

    ``cpu_link`` is in bytes/s, one direction, and so is ``uplink``, from a switch to its CPU: an x16 slot unless a root
    complex passes less from GPU to GPU than its slot has. NVLink that the GPU may have is left unused.
    """
    graph = new_graph()
    ids = [f"gpu{i}" for i in range(gpus)]
    add_pcie_tree(graph, gpu, ids, sockets=sockets, gpus_per_switch=gpus_per_switch, cpu_link=cpu_link, uplink=uplink)
    return Fabric(f"pcie-{gpus}", f"{gpus} × {gpu.name} on PCIe, {sockets} CPU socket{'s' * (sockets > 1)}", graph, ids)


class Pcie(Topology):
    """``pcie`` or ``pcie-4``: one socket up to 4 GPUs and two above, unless ``sockets`` says otherwise."""

    kind: ClassVar[str] = "pcie"
    gpus: int = Field(default=8, ge=1, le=32)
    sockets: int | None = Field(default=None, ge=1, le=8)
    gpus_per_switch: int = Field(default=1, ge=1, le=16)
    cpu_link: Rate = CPU_LINK
    uplink: Rate | None = None

    @property
    def gpu_count(self) -> int:
        """GPUs of the server."""
        return self.gpus

    @property
    def usual_gpu(self) -> str:
        """A card without NVLink."""
        return "l40s"

    def build(self, gpu: Gpu) -> Fabric:
        """See ``pcie``."""
        sockets = self.sockets or (1 if self.gpus <= 4 else 2)
        return pcie(
            gpu,
            self.gpus,
            sockets=sockets,
            gpus_per_switch=self.gpus_per_switch,
            cpu_link=self.cpu_link,
            uplink=self.uplink,
        )
