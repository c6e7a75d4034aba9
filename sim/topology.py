"""The contract of a topology: how a scenario names a machine, and how it becomes a ``Fabric``.

A family is one file in ``topologies/``: a plain function that returns a ``Fabric``, and a ``Topology`` that
holds its arguments. Third parties add theirs under the entry point group ``sim.topologies``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import (
    BeforeValidator,
    SerializeAsAny,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    model_serializer,
)

from sim.errors import TopologyError
from sim.fabric import Fabric
from sim.hardware import Gpu
from sim.noun import Noun

if TYPE_CHECKING:
    import networkx as nx

LINK_LATENCY = {"nvlink": 0.6e-6, "pcie": 1.0e-6, "upi": 1.0e-6}
"""Seconds of one traversal by a small message (NCCL src/graph/tuning.cc, LL protocol, per hop)."""


class Topology(Noun):
    """A machine described by a few numbers; ``build`` turns it into a fabric of a given GPU."""

    kind: ClassVar[str]
    """What a scenario writes: ``{kind: ring, gpus: 8}``, or ``ring-8`` for short."""
    count_field: ClassVar[str | None] = "gpus"
    """The field that the number in the short form sets; ``None`` if the family has a single size."""

    @property
    def gpu_count(self) -> int:
        """How many GPUs the machine has."""
        raise NotImplementedError

    @property
    def usual_gpu(self) -> str:
        """The GPU of the catalogue to show it with where nobody names one."""
        return "h100-sxm"

    def build(self, gpu: Gpu) -> Fabric:
        """Return the machine as a graph of ``gpu``.

        Raises
        ------
        TopologyError
            If it cannot be built of this GPU; says what would work.
        """
        raise NotImplementedError

    @model_serializer(mode="wrap")
    def _with_kind(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {"kind": self.kind, **handler(self)}


def _parse_inner(value: Any, info: ValidationInfo) -> Any:
    parse: Callable[[Any], Topology] | None = (info.context or {}).get("parse_topology")
    return value if isinstance(value, Topology) or parse is None else parse(value)


InnerTopology = SerializeAsAny[Annotated[Topology, BeforeValidator(_parse_inner)]]
"""A topology inside a topology. The catalogue passes its parser as validation context, so that a family may
be built of others without importing them."""


def new_graph() -> nx.DiGraph:
    """Return an empty graph; networkx costs 100 ms to import, so it is imported when a machine is built."""
    import networkx as nx

    return nx.DiGraph()


def connect(graph: nx.DiGraph, a: str, b: str, kind: str, bandwidth: float, latency: float, links: int = 1) -> None:
    """Connect two nodes in both directions: ``bandwidth`` bytes/s in each over all ``links``, ``latency``
    seconds."""
    graph.add_edge(a, b, kind=kind, bandwidth=bandwidth, latency=latency, links=links)
    graph.add_edge(b, a, kind=kind, bandwidth=bandwidth, latency=latency, links=links)


def need_nvlink(gpu: Gpu, topology: str, *, bridge: bool = False) -> tuple[str, int, float]:
    """Return generation, links and bytes/s per link of a GPU that ``topology`` connects over NVLink.

    Parameters
    ----------
    bridge
        Whether NVLink that exists only as a bridge between two cards is enough.

    Raises
    ------
    TopologyError
        If the GPU has no such NVLink.
    """
    if gpu.nvlink is None:
        raise TopologyError(f"{topology} needs NVLink, which {gpu.name} lacks; use pcie")
    if gpu.nvlink.generation.endswith("-bridge") and not bridge:
        raise TopologyError(
            f"{topology} needs NVLink to a board; on {gpu.name} it bridges two cards; use nvlink_pairs or pcie"
        )
    return gpu.nvlink.generation, gpu.nvlink.links, gpu.nvlink.link_bandwidth


def pcie_kind(gpu: Gpu) -> str:
    """Return the link kind of a GPU's slot, from the rate of 16 lanes: 16, 32, 64 or 128 GB/s are PCIe 3 to
    6."""
    for generation, rate in ((3, 16e9), (4, 32e9), (5, 64e9)):
        if gpu.pcie_bandwidth <= 1.01 * rate:
            return f"pcie{generation}"
    return "pcie6"
