"""Shortest routes over a part of a fabric, and the load that flows put on its links.
 Switches that are alike (same neighbours over links in the same proportion) are folded into one. That is
 exact,
because traffic over parallel switches splits in proportion to their links,
and it turns an 18-chip NVLink domain into a star. Where a link or a chip is missing, the switches that are no
longer alike keep their parts. What remains is split evenly over all routes of lowest cost.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

_NVLINK_HOP, _PCIE_HOP, _NETWORK_HOP = 1, 10**6, 10**12
_HOP_COST = {"nvlink": _NVLINK_HOP, "pcie": _PCIE_HOP, "network": _NETWORK_HOP}
_FOLDABLE = ("nvswitch", "ib_switch")


@cache
def tier(link_kind: str) -> str:
    """Return the class of a link kind: ``nvlink``, ``pcie`` (with CPU links) or ``network``."""
    if link_kind.startswith(("nvlink", "xgmi")):
        return "nvlink"
    return "pcie" if link_kind.startswith(("pcie", "upi", "cpu")) else "network"


class Edge(NamedTuple):
    """One direction of a link between two (folded) nodes: bytes/s, seconds."""

    source: int
    target: int
    kind: str
    tier: str
    bandwidth: float
    latency: float


class _Tree(NamedTuple):
    """All cheapest routes from one node: nodes by distance, how each is reached, in how many ways."""

    order: list[int]
    reached: set[int]
    parents: list[list[tuple[int, int]]]  # per node: (parent, edge)
    ways: list[float]  # routes, each counted as often as there are links into its switches
    latency: list[float]  # seconds over network links on the slowest of the cheapest routes


class Routes:
    """Routes among the given nodes of a graph.

    Parameters
    ----------
    nodes
        Node ids with their ``kind``; nothing outside them is used.
    links
        ``{source: {target: attributes}}`` with ``kind``, ``bandwidth``, ``latency`` and optionally ``links``.
    nvlink_only
        Whether this is one NVLink domain, for those who ask.
    """

    def __init__(
        self,
        nodes: Mapping[str, str],
        links: Mapping[str, Mapping[str, Mapping[str, Any]]],
        *,
        nvlink_only: bool = False,
    ):
        self.nvlink_only = nvlink_only
        fold = _alike(nodes, links)
        names = [n for n in nodes if fold.get(n, n) == n]
        self.index = {n: i for i, n in enumerate(names)}
        self.index.update({n: self.index[r] for n, r in fold.items()})
        self.kinds = [nodes[n] for n in names]
        self.members: list[list[str]] = [[] for _ in names]
        for n in nodes:
            self.members[self.index[n]].append(n)
        self.edges: list[Edge] = []
        self.shares: list[list[tuple[str, str, float]]] = []  # per edge: the real links and their part of the load
        self._out: list[list[tuple[int, int, int]]] = [[] for _ in names]  # (target, cost, edge)
        self._width: list[float] = []  # per edge: how many ways it is
        index = self.index
        merged: dict[tuple[int, int], list[tuple[str, str, Mapping[str, Any]]]] = {}
        for u, targets in links.items():
            a = index[u]
            for v, link in targets.items():
                merged.setdefault((a, index[v]), []).append((u, v, link))
        for (a, b), real in merged.items():
            link = real[0][2]
            total = sum([x.get("links", 1) for _, _, x in real])
            if len(real) == 1:
                bandwidth, parts = link["bandwidth"], [1.0]
            else:  # each takes its part, so the one that is slow for its part limits them all
                parts = [x.get("links", 1) / total for _, _, x in real]
                bandwidth = min([x["bandwidth"] / part for (_, _, x), part in zip(real, parts, strict=True)])
            edge = Edge(a, b, link["kind"], tier(link["kind"]), bandwidth, link["latency"])
            self._out[a].append((b, _HOP_COST[edge.tier], len(self.edges)))
            self.edges.append(edge)
            self._width.append(total if self.kinds[b] in _FOLDABLE else 1)
            self.shares.append([(u, v, part) for (u, v, _), part in zip(real, parts, strict=True)])
        self.edge_between = {(e.source, e.target): i for i, e in enumerate(self.edges)}
        self._trees: dict[int, _Tree] = {}
        self._fan: dict[int, dict[int, int]] = {}
        self._only_switch = [self._through_switch(u) for u in range(len(names))]

    def _through_switch(self, u: int) -> tuple[int, dict[int, int]] | None:
        """For a node with one NVLink neighbour: the edge to it, and its NVLink edges by target.

        Whatever that neighbour reaches over NVLink is two hops away, and there is no other way as cheap.
        """
        near = [(v, e) for v, cost, e in self._out[u] if cost == _NVLINK_HOP]
        if len(near) != 1 or self.kinds[near[0][0]] != "nvswitch":
            return None
        switch, up = near[0]
        if switch not in self._fan:
            self._fan[switch] = {v: e for v, cost, e in self._out[switch] if cost == _NVLINK_HOP}
        return up, self._fan[switch]

    def _tree(self, source: int) -> _Tree:
        """Search from ``source``, once."""
        if source in self._trees:
            return self._trees[source]
        size = len(self.kinds)
        far = 10**18
        distance = [far] * size
        ways: list[float] = [0] * size
        latency = [0.0] * size
        parents: list[list[tuple[int, int]]] = [[] for _ in range(size)]
        distance[source], ways[source] = 0, 1
        order: list[int] = []
        heap = [(0, source)]
        done = [False] * size
        out, edges, width = self._out, self.edges, self._width
        while heap:
            near, u = heapq.heappop(heap)
            if done[u]:
                continue
            done[u] = True
            order.append(u)
            for v, cost, e in out[u]:
                # beyond the network NVLink costs twice: the sender forwards to the right rail, not the receiver
                reach = near + (2 * cost if cost == _NVLINK_HOP and near >= _NETWORK_HOP else cost)
                if reach < distance[v]:
                    distance[v] = reach
                    ways[v] = ways[u] * width[e]
                    parents[v] = [(u, e)]
                    latency[v] = latency[u] + (edges[e].latency if cost == _NETWORK_HOP else 0.0)
                    heapq.heappush(heap, (reach, v))
                elif reach == distance[v] and not done[v]:
                    ways[v] += ways[u] * width[e]
                    parents[v].append((u, e))
                    if cost == _NETWORK_HOP:
                        latency[v] = max(latency[v], latency[u] + edges[e].latency)
        tree = self._trees[source] = _Tree(order, set(order), parents, ways, latency)
        return tree

    def spread(self, flows: Iterable[tuple[int, int, float]]) -> tuple[list[float], float]:
        """Put flows ``(source, target, bytes)`` on the links, each split evenly over its cheapest routes.

        Returns the load in bytes per edge, and the longest network latency that a flow meets in seconds.

        Raises
        ------
        LookupError
            If a flow has no route; the arguments are the two node indices.
        """
        loads, width = [0.0] * len(self.edges), self._width
        slowest = 0.0
        by_source: dict[int, dict[int, float]] = {}
        for source, target, size in flows:
            if source != target:
                wanted = by_source.setdefault(source, {})
                wanted[target] = wanted.get(target, 0.0) + size
        for source, wanted in by_source.items():
            if switch := self._only_switch[source]:
                up, down = switch
                for target in [t for t in wanted if t in down]:
                    size = wanted.pop(target)
                    loads[up] += size
                    loads[down[target]] += size
                if not wanted:
                    continue
            order, reached, parents, ways, latency = self._tree(source)
            arriving = [0.0] * len(ways)
            for target, size in wanted.items():
                if target not in reached:
                    raise LookupError(source, target)
                arriving[target] = size
                slowest = max(slowest, latency[target])
            for v in reversed(order):
                load = arriving[v]
                if not load or v == source:
                    continue
                via = parents[v]
                if len(via) == 1:
                    u, e = via[0]
                    loads[e] += load
                    arriving[u] += load
                else:
                    per_way = load / ways[v]
                    for u, e in via:
                        part = per_way * ways[u] * width[e]
                        loads[e] += part
                        arriving[u] += part
        return loads, slowest

    def between(self, source: int, target: int) -> list[tuple[tuple[int, ...], float]]:
        """Return the cheapest routes as node sequences with their parts of the traffic, in a fixed order; empty if
        there is none."""
        tree = self._tree(source)
        found: list[tuple[tuple[int, ...], float]] = []
        stack: list[tuple[tuple[int, ...], float]] = [((target,), 1.0)] if target in tree.reached else []
        while stack:
            route, ways = stack.pop()
            if route[0] == source:
                found.append((route, ways / tree.ways[target]))
            else:
                stack.extend(((u, *route), ways * self._width[e]) for u, e in tree.parents[route[0]])
        return sorted(found)

    def links_between(self, source: int, targets: Iterable[int]) -> int:
        """Return how many links the longest of the cheapest routes to any of ``targets`` has."""
        tree = self._tree(source)
        depth = [0] * len(tree.ways)
        for v in tree.order:
            depth[v] = max((depth[u] + 1 for u, _ in tree.parents[v]), default=0)
        return max((depth[t] for t in targets), default=0)

    def signature(self, ranks: Sequence[int], colours: dict[Any, int]) -> tuple[int, ...]:
        """Return a canonical description of how an ordered group sits among these nodes.

        Colour refinement with every rank a colour of its own. Equal signatures mean equal numbers of cheapest
        routes between equal positions over equal links, so equal loads and equal costs. ``colours`` numbers
        the colours; signatures can be compared only if they share it.
        """

        def number(key: Any) -> int:
            return colours.setdefault(key, len(colours))

        colour = [number(("node", kind)) for kind in self.kinds]
        for position, node in enumerate(ranks):
            colour[node] = number(("rank", position))
        around: list[list[tuple[int, int]]] = [[] for _ in self.kinds]
        for e, width in zip(self.edges, self._width, strict=True):
            label = number((e.kind, e.bandwidth, e.latency, width))
            around[e.source].append((2 * label, e.target))
            around[e.target].append((2 * label + 1, e.source))
        classes = len(set(colour))
        while True:
            colour = [
                number((own, *sorted([(label, colour[v]) for label, v in near])))
                for own, near in zip(colour, around, strict=True)
            ]
            if len(set(colour)) == classes:
                return tuple(sorted(colour))
            classes = len(set(colour))


def _alike(nodes: Mapping[str, str], links: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> dict[str, str]:
    """Map every foldable switch to the first switch that is like it (itself, if none came before)."""
    incoming: dict[str, dict[str, Mapping[str, Any]]] = {n: {} for n, k in nodes.items() if k in _FOLDABLE}
    for u, targets in links.items():
        for v, link in targets.items():
            if v in incoming:
                incoming[v][u] = link
    first: dict[Any, str] = {}
    fold: dict[str, str] = {}
    for n in incoming:
        key = (nodes[n], _neighbourhood(links.get(n, {})), _neighbourhood(incoming[n]))
        fold[n] = first.setdefault(key, n)
    return fold


def _neighbourhood(links: Mapping[str, Mapping[str, Any]]) -> frozenset[Any]:
    most = max((link.get("links", 1) for link in links.values()), default=1)
    return frozenset((n, link["kind"], link["latency"], link.get("links", 1) / most) for n, link in links.items())
