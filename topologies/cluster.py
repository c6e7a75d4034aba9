"""Servers, or racks, on a network of two or three levels: NICs on leaf switches, leaves on spines, pods on a core.

By default it is rail-aligned, as in NVIDIA's SuperPOD designs: NIC i of every server is on leaf switch i, so that a
rail is one leaf hop from the other servers, and other traffic crosses the spine, or reaches the right rail over NVLink
inside the server first. Otherwise it is a fat tree with all NICs of a server on the same leaf, at the top of its rack.
"""

from __future__ import annotations

from itertools import product
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from sim.errors import TopologyError
from sim.fabric import Fabric
from sim.hardware import Gpu
from sim.topology import LINK_LATENCY, InnerTopology, Topology, connect, new_graph, pcie_kind
from sim.units import Rate, Seconds

NIC = 50e9
"""400 Gb/s, as ConnectX-7 in DGX H100."""
LATENCY = 2.7e-6
"""Seconds from NIC to NIC over one leaf (NCCL src/graph/tuning.cc, ring over the network, LL protocol)."""


def cluster(
    gpu: Gpu,
    inside: Fabric,
    nodes: int,
    *,
    nics_per_node: int | None = None,
    nic: float = NIC,
    latency: float = LATENCY,
    network: str = "ib",
    oversubscription: float = 1.0,
    rails: bool = True,
    nodes_per_leaf: int | None = None,
    nodes_per_pod: int | None = None,
) -> Fabric:
    """Build ``nodes`` copies of the server ``inside``, joined by NICs, leaf switches and, above several, a spine.

    Parameters
    ----------
    nics_per_node
        NICs of a server; its GPUs share them in order. Default: one per GPU.
    nic
        Bytes/s of a NIC, one direction.
    latency
        Seconds from NIC to NIC over one leaf.
    oversubscription
        Rate of what is below a leaf over the rate of its uplink; the same for a pod's spine.
    rails
        Whether a server's NICs are on a leaf each, or all on one.
    nodes_per_leaf
        Servers that share their leaves. Default: all of a pod. Other servers are reached over the spine.
    nodes_per_pod
        Servers whose leaves share a spine; the spines of several pods are joined by a core. Default: all.

    Raises
    ------
    TopologyError
        If there are more NICs than GPUs in a server, the server is a cluster itself, or a pod is smaller than what
        shares its leaves.
    """
    nics = len(inside) if nics_per_node is None else nics_per_node
    if nics > len(inside):
        raise TopologyError(f"cluster: {nics} NICs for {len(inside)} GPUs of a node; give at most one and a faster one")
    if any(kind == "ib_switch" for _, kind in inside.graph.nodes(data="kind")):
        raise TopologyError("cluster: a node cannot be a cluster itself; give the number of servers in nodes")
    graph = new_graph()
    for n in range(nodes):
        _add_server(graph, gpu, inside, n, nics)
    pod = min(nodes_per_pod or nodes, nodes)
    group = min(nodes_per_leaf or pod, nodes)
    if group > pod:
        raise TopologyError(f"cluster: {group} nodes per leaf are more than the {pod} of a pod; give at most {pod}")
    pods = [_blocks(range(first, min(first + pod, nodes)), group) for first in range(0, nodes, pod)]
    alone = sum(map(len, pods)) == 1
    spines: dict[str, dict[str, list[str]]] = {}
    for p, groups in enumerate(pods):
        leaves: dict[str, list[str]] = {}
        for members in groups:
            name = "leaf" if alone else f"leaf{sum(map(len, pods[:p])) + groups.index(members)}"
            for r, n in product(range(nics), members):
                leaf = name if not rails else f"{name}{r}" if alone else f"{name}.{r}"
                leaves.setdefault(leaf, []).append(f"node{n}.nic{r}")
        spines[f"spine{p}" if len(pods) > 1 else "spine"] = leaves
    several = sum(map(len, spines.values())) > 1
    for spine, leaves in spines.items():
        if several:
            graph.add_node(spine, kind="ib_switch")
        for leaf, below in leaves.items():
            graph.add_node(leaf, kind="ib_switch")
            for port in below:
                connect(graph, port, leaf, network, nic, latency / 2)
            if several:
                connect(graph, leaf, spine, network, len(below) * nic / oversubscription, latency / 2)
        if len(pods) > 1:
            uplink = sum(map(len, leaves.values())) * nic / oversubscription**2
            graph.add_node("core", kind="ib_switch")
            connect(graph, spine, "core", network, uplink, latency / 2)
    ids = [f"node{n}.{g}" for n in range(nodes) for g in inside.gpus]
    rate = f"{nic * 8 / 1e9:g} Gb/s"
    return Fabric(
        f"cluster-{nodes}x{inside.name}",
        f"{nodes} nodes with {nics} × {rate}: {inside.description}",
        graph,
        ids,
    )


def _blocks(members: range, size: int) -> list[range]:
    return [members[i : i + size] for i in range(0, len(members), size)]


def _add_server(graph: Any, gpu: Gpu, inside: Fabric, n: int, nics: int) -> None:
    """Copy the server into the graph as unit ``n`` and attach its NICs, next to their GPUs on PCIe."""
    prefix = f"node{n}."
    graph.add_nodes_from((prefix + v, {**data, "unit": n}) for v, data in inside.graph.nodes(data=True))
    graph.add_edges_from((prefix + u, prefix + v, data) for u, v, data in inside.graph.edges(data=True))
    graph.add_nodes_from((f"{prefix}nic{r}" for r in range(nics)), kind="nic", unit=n)
    for i, g in enumerate(inside.gpus):
        # behind the GPU's switch or root complex where the server has PCIe, else on a slot of the GPU's own
        above = [v for v in inside.graph.adj[g] if inside.graph.nodes[v]["kind"] in ("pcie_switch", "cpu")]
        nic = f"{prefix}nic{i * nics // len(inside)}"
        for v in above or [g]:
            connect(graph, prefix + v, nic, f"{pcie_kind(gpu)}-nic", gpu.pcie_bandwidth, LINK_LATENCY["pcie"] / 2)


class Cluster(Topology):
    """``{kind: cluster, nodes: 4, node: hgx-8, nic: 400 Gb/s}``, or ``cluster-4`` for 4 × ``hgx``."""

    kind: ClassVar[str] = "cluster"
    count_field: ClassVar[str | None] = "nodes"
    nodes: int = Field(ge=1, le=100_000)
    node: InnerTopology = Field(default="hgx", validate_default=True)
    nics_per_node: int | None = Field(default=None, ge=1)
    nic: Rate = NIC
    latency: Annotated[Seconds, Field(le=1)] = LATENCY
    network: Literal["ib", "ethernet"] = "ib"
    oversubscription: float = Field(default=1.0, ge=1, le=1000)
    rails: bool = True
    nodes_per_leaf: int | None = Field(default=None, ge=1)
    nodes_per_pod: int | None = Field(default=None, ge=1)

    @property
    def gpu_count(self) -> int:
        """GPUs of all nodes together."""
        return self.nodes * self.node.gpu_count

    @property
    def usual_gpu(self) -> str:
        """That of its nodes."""
        return self.node.usual_gpu

    def build(self, gpu: Gpu) -> Fabric:
        """See ``cluster``."""
        return cluster(
            gpu,
            self.node.build(gpu),
            self.nodes,
            nics_per_node=self.nics_per_node,
            nic=self.nic,
            latency=self.latency,
            network=self.network,
            oversubscription=self.oversubscription,
            rails=self.rails,
            nodes_per_leaf=self.nodes_per_leaf,
            nodes_per_pod=self.nodes_per_pod,
        )
