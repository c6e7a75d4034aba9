"""A machine as a graph: GPUs, switches, NICs and CPUs, and the links between them.
 Routes are the cheapest ones, where a hop over NVLink costs less than any route over PCIe and a hop over PCIe
less than any route over the network. The order is that of the real transports: a peer-to-peer library uses
NVLink when it exists, even through an intermediate GPU, then PCIe peer to peer, then the NIC, and it reaches
a NIC of another rail over NVLink before it sends through the spine, at the sender's end (NCCL calls it PXN).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from sim.errors import TopologyError
from sim.network.routes import Routes, tier
from sim.network.spreading import Spreading

if TYPE_CHECKING:
    import networkx as nx

KINDS = ("gpu", "nvswitch", "nic", "pcie_switch", "cpu", "ib_switch")
_LINK_FIELDS = ("kind", "bandwidth", "latency")
_ALL_FIELDS = (*_LINK_FIELDS, "links")


class Route(NamedTuple):
    """One route between two GPUs: its nodes, both ends included, and the part of the traffic that takes
    it."""

    nodes: tuple[str, ...]
    share: float


class Fabric:
    """A machine's GPUs and how they are connected.

    Parameters
    ----------
    name, description
        What it is, for reports.
    graph
        Directed graph. A node has ``kind`` (one of ``KINDS``) and optionally ``unit``: the number of the server it
        belongs to, or ``tray``: that of the compute tray of a rack, which is a server of its own on a common NVLink
        fabric. Nodes without a unit (leaf and spine switches) join them. An edge is one direction of a connection:
        ``kind``, ``bandwidth`` in bytes/s, ``latency`` in seconds, and optionally ``links``, the number of parallel
        links it consists of (1). Traffic splits over parallel switches by links, never by bandwidth, so that a faster
        link cannot attract traffic that slows others. The graph must not be changed afterwards.
    gpus
        GPU nodes as the system numbers them: rank r runs on ``gpus[r]``.

    Raises
    ------
    TopologyError
        If a node or an edge lacks what is needed; says which.
    """

    def __init__(self, name: str, description: str, graph: nx.DiGraph, gpus: Iterable[str]):
        self.name = name
        self.description = description
        self.graph = graph
        self.gpus = tuple(gpus)
        self._links: dict[str, dict[str, Mapping[str, Any]]] = {u: dict(near) for u, near in graph.adjacency()}
        self._kinds: dict[str, str] = dict(graph.nodes(data="kind"))
        self._units: dict[str, int | None] = dict(graph.nodes(data="unit"))
        self._domains: dict[str, tuple[str, ...]] = {}
        self._colours: dict[Any, int] = {}
        self._parts: dict[Any, Routes] = {}
        self._spreadings: dict[Routes, Spreading | None] = {}
        self._shapes: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._check()

    def _check(self) -> None:
        if not self.gpus or len(set(self.gpus)) != len(self.gpus):
            raise TopologyError(f"{self.name}: a fabric lists each of its GPUs once, and has at least one")
        for gpu in self.gpus:
            if self._kinds.get(gpu) != "gpu":
                raise TopologyError(f"{self.name}: {gpu!r} is listed as a GPU, but the graph has no such GPU node")
        for node, kind in self._kinds.items():
            if kind not in KINDS:
                raise TopologyError(f"{self.name}: node {node!r} has kind {kind!r}; choose one of {', '.join(KINDS)}")
        for u, v, link in self.graph.edges(data=True):
            if not all(field in link for field in _LINK_FIELDS):
                raise TopologyError(f"{self.name}: link {u!r} to {v!r} needs {', '.join(_LINK_FIELDS)}")
            if not (link["bandwidth"] > 0 and link["latency"] >= 0):
                raise TopologyError(f"{self.name}: link {u!r} to {v!r} needs bandwidth > 0 and latency >= 0")

    def __len__(self) -> int:
        return len(self.gpus)

    def __repr__(self) -> str:
        return f"<Fabric {self.name}: {len(self.gpus)} GPUs>"

    # -- which GPUs belong together

    def gpu(self, rank: int) -> str:
        """Return the node that ``rank`` runs on. Raises ``TopologyError`` if there is no such rank."""
        if not 0 <= rank < len(self.gpus):
            raise TopologyError(f"{self.name} has ranks 0 to {len(self.gpus) - 1}, not {rank}")
        return self.gpus[rank]

    def unit(self, gpu: str) -> int:
        """Return the number of the server that a GPU sits in; 0 where the fabric is one server."""
        return self._units.get(gpu) or 0

    def one_system(self, ranks: Iterable[int]) -> bool:
        """Whether one operating system runs all of ``ranks``: they sit in one server, and in one tray of a rack."""
        nodes = self.graph.nodes
        return len({(self.unit(g), nodes[g].get("tray")) for g in map(self.gpu, ranks)}) == 1

    def _nvlink_nodes(self, start: str) -> tuple[str, ...]:
        """All nodes that NVLink alone connects with ``start``, itself first."""
        if start not in self._domains:
            adj = self._links
            seen, stack = {start: None}, [start]
            while stack:
                for v, link in adj[stack.pop()].items():
                    if v not in seen and tier(link["kind"]) == "nvlink":
                        seen[v] = None
                        stack.append(v)
            self._domains.update(dict.fromkeys(seen, tuple(seen)))
        return self._domains[start]

    def domain(self, gpu: str) -> frozenset[str]:
        """Return the GPUs that NVLink alone connects with ``gpu``, itself included."""
        return frozenset(n for n in self._nvlink_nodes(gpu) if self._kinds[n] == "gpu")

    @cached_property
    def unit_sorts(self) -> Mapping[int, int]:
        """For each unit the first one that is built and joined to the network as it is: the same nodes in the same
        order, over the same links. On a machine without a fault that is one for all."""
        first: dict[Any, int] = {}
        sorts: dict[int, int] = {}
        for unit, nodes in self._by_home.items():
            if unit is not None:
                at = {node: i for i, node in enumerate(nodes)}
                content = tuple(
                    (
                        self._kinds[u],
                        *((at.get(v, v), *map(link.get, _ALL_FIELDS)) for v, link in self._links[u].items()),
                        "from",
                        *((v, *map(link.get, _ALL_FIELDS)) for v, link in self._outside.get(u, ())),
                    )
                    for u in nodes
                )
                sorts[unit] = first.setdefault(content, unit)
        return sorts

    @cached_property
    def _outside(self) -> Mapping[str, list[tuple[str, Mapping[str, Any]]]]:
        """The links into a node from outside its unit."""
        found: dict[str, list[tuple[str, Mapping[str, Any]]]] = {}
        for u, targets in self._links.items():
            for v, link in targets.items():
                if self._homes[u] != self._homes[v]:
                    found.setdefault(v, []).append((u, link))
        return found

    # -- routes

    def _part(self, gpus: Sequence[str]) -> Routes:
        """The nodes that routes among ``gpus`` can use: their NVLink domain, else their servers and the
        network.

        Nothing is lost: a route never leaves the domain that holds both ends, nor passes through a third
        server, because that would cost more.
        """
        domain = self._nvlink_nodes(gpus[0])
        members = set(domain)
        if all(g in members for g in gpus):
            return self._routes(("nvlink", domain[0]), domain, nvlink_only=True)
        units = sorted({self.unit(g) for g in gpus})
        nodes = [n for u in units for n in self._by_unit.get(u, ())] + self._by_unit.get(None, [])
        return self._routes(tuple(units), nodes, nvlink_only=False)

    @cached_property
    def _by_unit(self) -> dict[int | None, list[str]]:
        return _grouped(self._units)

    @cached_property
    def _by_home(self) -> dict[int | None, list[str]]:
        return _grouped(self._homes)

    @cached_property
    def _homes(self) -> dict[str, int | None]:
        """The unit of every node, where a switch of the network that serves a single unit counts to it: racks or
        servers with leaves of their own are alike with their leaves."""
        homes = dict(self._units)
        for node, unit in self._units.items():
            if unit is None:
                served = {self._units[v] for v in self._links[node]} - {None}
                homes[node] = next(iter(served)) if len(served) == 1 else None
        return homes

    def _routes(self, key: Any, nodes: Sequence[str], *, nvlink_only: bool) -> Routes:
        if key not in self._parts:
            inside = {n: self._kinds[n] for n in nodes}
            links: dict[str, dict[str, Mapping[str, Any]]] = {}
            for u in inside:
                targets = self._links[u]
                # a leaf switch of a big machine has far more links than this part has nodes
                near = targets if len(targets) <= len(inside) else [v for v in inside if v in targets]
                links[u] = {v: targets[v] for v in near if v in inside}
                if nvlink_only:
                    links[u] = {v: x for v, x in links[u].items() if tier(x["kind"]) == "nvlink"}
            self._parts[key] = Routes(inside, links, nvlink_only=nvlink_only)
        return self._parts[key]

    def routes(self, source: str, target: str) -> tuple[Route, ...]:
        """Return all cheapest routes between two GPUs, in a fixed order, with the share of traffic of each.

        Raises
        ------
        TopologyError
            If nothing connects them.
        """
        part = self._part((source, target))
        folded = part.between(part.index[source], part.index[target])
        if not folded:
            raise self._disconnected(source, target)
        found: list[Route] = []
        for nodes, part_of_traffic in folded:
            partial = [Route((source,), part_of_traffic)]
            for node in nodes[1:]:
                members = part.members[node]
                width = [self._width(part.members, node, m) for m in members]
                partial = [
                    Route((*done, member), share * w / sum(width))
                    for done, share in partial
                    for member, w in zip(members, width, strict=True)
                    if member in self._links[done[-1]]
                ]
            found.extend(partial)
        return tuple(sorted(found))

    def _width(self, members: list[list[str]], node: int, member: str) -> float:
        if len(members[node]) == 1:
            return 1.0
        return float(sum(link.get("links", 1) for link in self._links[member].values()))

    def direct_links(self, ranks: Sequence[int]) -> dict[tuple[int, int], float]:
        """Return how many NVLink links join two of ``ranks`` without a switch between."""
        rank = {self.gpu(r): r for r in ranks}
        return {
            (r, rank[v]): float(link.get("links", 1))
            for g, r in rank.items()
            for v, link in self._links[g].items()
            if v in rank and tier(link["kind"]) == "nvlink"
        }

    def _disconnected(self, source: str, target: str) -> TopologyError:
        """An error that names the cut: what is on the side of ``source``."""
        reached, stack = {source}, [source]
        while stack:
            fresh = set(self._links[stack.pop()]) - reached
            reached |= fresh
            stack.extend(fresh)
        near = [g for g in self.gpus if g in reached and g != source]
        few = ", ".join(near[:8]) + f" and {len(near) - 8} more" * (len(near) > 8)
        text = f"{self.name}: nothing connects {source!r} and {target!r}"
        side = "the only way leads through another server" if target in reached else f"{source!r} reaches {few}"
        return TopologyError(f"{text}; {side if near else f'{source!r} reaches no other GPU'}")

    def load(self, flows: Iterable[tuple[int, int, float]], ranks: Sequence[int]) -> tuple[Routes, list[float], float]:
        """Put flows ``(rank, rank, bytes)`` among ``ranks`` on the links.

        Returns the routes used, bytes per edge of theirs, and the longest network latency met in seconds.
        Raises ``TopologyError`` if two of them are not connected.
        """
        names = {r: self.gpu(r) for r in ranks}
        part = self._part(list(names.values()))
        try:
            if spreading := self._spreading(part, names.values()):
                loads, latency = spreading.spread((names[a], names[b], size) for a, b, size in flows)
            else:
                node = {r: part.index[name] for r, name in names.items()}
                loads, latency = part.spread((node[a], node[b], size) for a, b, size in flows)
        except LookupError as error:
            source, target = (part.members[end][0] if isinstance(end, int) else end for end in error.args)
            first = names[ranks[0]]  # the same cut has the same words whichever flow meets it
            if first != target and not part.between(part.index[first], part.index[target]):
                source = first
            raise self._disconnected(source, target) from None
        return part, loads, latency

    def _spreading(self, part: Routes, gpus: Iterable[str]) -> Spreading | None:
        """A shorter way to the loads of a part that holds several servers, if enough of them are alike."""
        if part.nvlink_only:
            return None
        if part not in self._spreadings:
            units = sorted({self.unit(g) for g in gpus})
            nodes = {u: self._by_home.get(u, []) for u in units}
            sorts = {self.unit_sorts.get(u) for u in units}
            shorter = len(units) > 1 and 2 * len(sorts) <= len(units) + 1
            self._spreadings[part] = Spreading(part, nodes, self.unit_sorts, self._part) if shorter else None
        return self._spreadings[part]

    def group_shape(self, ranks: Sequence[int]) -> tuple[int, ...]:
        """Return how an ordered group of ranks sits on the fabric.

        Two groups of one fabric with equal shapes have equal costs for every collective: see
        ``Routes.signature``. The numbers mean nothing else.
        """
        key = tuple(ranks)
        if key not in self._shapes:
            part = self._part([self.gpu(r) for r in key])
            nodes = [part.index[self.gpus[r]] for r in key]
            self._shapes[key] = (*part.signature(nodes, self._colours), int(self.one_system(key)))
        return self._shapes[key]

    # -- figures

    @cached_property
    def whole(self) -> Routes:
        """Routes over everything, and which links always carry the same part of all traffic."""
        return self._routes("whole", list(self._kinds), nvlink_only=False)

    def egress(self, gpu: str) -> float:
        """Bytes/s out of a GPU over its fastest class of links: NVLink if it has any, else PCIe, else
        network."""
        by_tier: dict[str, float] = {}
        for link in self._links[gpu].values():
            by_tier[tier(link["kind"])] = by_tier.get(tier(link["kind"]), 0.0) + link["bandwidth"]
        return next((by_tier[t] for t in ("nvlink", "pcie", "network") if t in by_tier), 0.0)

    @cached_property
    def diameter(self) -> int:
        """Links on the longest of the cheapest routes between two GPUs: 1 in a mesh, 2 through one switch.

        Routes are followed from one unit of every sort only.
        """
        whole = self.whole
        first = set(self.unit_sorts.values())
        sources = [whole.index[g] for g in self.gpus if self.unit(g) in first]
        targets = [whole.index[g] for g in self.gpus]
        return max((whole.links_between(s, targets) for s in sources), default=0)

    @cached_property
    def bisection_bandwidth(self) -> float:
        """Bytes/s in one direction from the first half of the GPUs, by number, to the second (maximum
        flow)."""
        import networkx as nx

        half = len(self.gpus) // 2
        if not half:
            return 0.0
        network = nx.DiGraph()
        for u, targets in self._links.items():
            network.add_edges_from((u, v, {"capacity": link["bandwidth"]}) for v, link in targets.items())
        network.add_edges_from((("source",), g) for g in self.gpus[:half])  # no capacity: unlimited
        network.add_edges_from((g, ("sink",)) for g in self.gpus[half:])
        return float(nx.maximum_flow_value(network, ("source",), ("sink",)))


def _grouped(units: Mapping[str, int | None]) -> dict[int | None, list[str]]:
    """The nodes by unit; of a fabric without units, all in one."""
    single = all(u is None for u in units.values())
    groups: dict[int | None, list[str]] = {}
    for node, unit in units.items():
        groups.setdefault(0 if single else unit, []).append(node)
    return groups
