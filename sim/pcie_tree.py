"""PCIe inside a server: GPUs in x16 slots behind switches, switches under CPU sockets, sockets joined by a
CPU link.

Shared by the families that have it, so that each of them stays one plain file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sim.hardware import Gpu
from sim.topology import LINK_LATENCY, connect, pcie_kind

if TYPE_CHECKING:
    import networkx as nx

CPU_LINK = 42e9
"""Bytes/s in one direction between two sockets: half of an all-to-all among 8 RTX PRO 6000 crosses it, 268 MB
per GPU in 12.77 ms (aiconfigurator-core 0.12.0, NCCL). NCCL itself assumes 22 GB/s for Sapphire Rapids, 16
for AMD."""


def add_pcie_tree(
    graph: nx.DiGraph,
    gpu: Gpu,
    gpus: Sequence[str],
    *,
    sockets: int,
    gpus_per_switch: int,
    cpu_link: float,
    uplink: float | None = None,
) -> None:
    """Connect ``gpus`` over PCIe: evenly over ``sockets``, ``gpus_per_switch`` to a switch (1: no switch).

    A switch has one uplink of ``uplink`` bytes/s in one direction, by default another x16 slot; every socket has
    a link of ``cpu_link`` bytes/s to every other.
    """
    kind, rate, latency = pcie_kind(gpu), gpu.pcie_bandwidth, LINK_LATENCY["pcie"] / 2
    graph.add_nodes_from(gpus, kind="gpu")
    graph.add_nodes_from((f"cpu{s}" for s in range(sockets)), kind="cpu")
    switches = 0
    for s in range(sockets):
        mine = [g for i, g in enumerate(gpus) if i * sockets // len(gpus) == s]
        for first in range(0, len(mine), gpus_per_switch):
            parent = f"cpu{s}"
            if gpus_per_switch > 1:
                parent = f"pcie_switch{switches}"
                switches += 1
                graph.add_node(parent, kind="pcie_switch")
                connect(graph, parent, f"cpu{s}", kind, uplink or rate, latency)
            for g in mine[first : first + gpus_per_switch]:
                connect(graph, g, parent, kind, rate, latency)
        for other in range(s):
            connect(graph, f"cpu{other}", f"cpu{s}", "upi", cpu_link, LINK_LATENCY["upi"])
