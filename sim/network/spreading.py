"""Load of flows among servers that are alike, without a search for each pair of GPUs.

A cheapest route between two servers passes through these two and the network, never through a third one. So it depends
only on how the two are built and joined to the network, and on the places of its ends inside them: it is searched once
for each pair of places, and used for all pairs of servers of those sorts. That is exact, and 128 boxes cost as many
searches as two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from sim.network.routes import Routes

Place = tuple[int, int]
"""Unit, position among its nodes."""


class _End(NamedTuple):
    """A node of a pattern: a position in the unit that sends (0) or receives (1), or a node by name."""

    of: int | None
    position: int
    name: str


class _Pattern(NamedTuple):
    """The links of one flow of a byte, with their bytes, and its network latency in seconds."""

    links: tuple[tuple[_End, _End, float], ...]
    latency: float


class Spreading:
    """Puts flows on the links of a part of a fabric that holds several whole units.

    Parameters
    ----------
    part
        Nodes and links of these units and of the network.
    nodes
        Nodes by unit, in the order in which units that are alike correspond.
    sorts
        For each unit the first that is built alike (``Fabric.unit_sorts``).
    search
        Returns the routes among the nodes that two GPUs can use.
    """

    def __init__(
        self,
        part: Routes,
        nodes: Mapping[int, Sequence[str]],
        sorts: Mapping[int, int],
        search: Callable[[tuple[str, str]], Routes],
    ):
        self.part, self.nodes, self.sorts, self.search = part, nodes, sorts, search
        self.place: dict[str, Place] = {node: (u, i) for u, names in nodes.items() for i, node in enumerate(names)}
        self._known: dict[tuple[_End, _End], dict[int, int]] = {}
        self._alike: dict[int, list[int]] = {}
        for unit in nodes:
            self._alike.setdefault(sorts[unit], []).append(unit)
        self._patterns: dict[tuple[int, int, int, int, bool], _Pattern | None] = {}
        self._ends: dict[tuple[Routes, int, int, int], list[tuple[_End, _End, float]]] = {}

    def spread(self, flows: Iterable[tuple[str, str, float]]) -> tuple[list[float], float]:
        """Put flows ``(GPU, GPU, bytes)`` on the links.

        Returns the load in bytes per edge of the part, and the longest network latency that a flow meets in seconds.

        Raises
        ------
        LookupError
            If a flow has no route; the arguments are the two GPUs.
        """
        import numpy as np

        alike: dict[tuple[int, int, int, int, bool], tuple[list[int], list[int], list[float]]] = {}
        place, sorts = self.place, self.sorts
        for source, target, size in flows:
            if source != target:
                (s, i), (t, j) = place[source], place[target]
                key = (sorts[s], i, sorts[t], j, s == t)
                if key not in alike:
                    alike[key] = ([], [], [])
                froms, tos, sizes = alike[key]
                froms.append(s)
                tos.append(t)
                sizes.append(size)
        loads, slowest = np.zeros(len(self.part.edges)), 0.0
        for key, (froms, tos, sizes) in alike.items():
            pattern = self._pattern(key)
            if pattern is None:
                raise LookupError(self.nodes[froms[0]][key[1]], self.nodes[tos[0]][key[3]])
            slowest = max(slowest, pattern.latency)
            amounts = np.array(sizes)
            for a, b, weight in pattern.links:
                np.add.at(loads, self._edges(a, b, froms, tos), amounts * weight)
        return loads.tolist(), slowest

    def _edges(self, a: _End, b: _End, froms: Sequence[int], tos: Sequence[int]) -> Sequence[int]:
        """The edge of the part that a link of a pattern is for each flow."""
        index, number, nodes = self.part.index, self.part.edge_between, self.nodes

        def edge(s: int, t: int) -> int:
            u, v = (end.name if end.of is None else nodes[t if end.of else s][end.position] for end in (a, b))
            return number[index[u], index[v]]

        sides = {a.of, b.of} - {None}
        if len(sides) != 1:
            return [edge(s, t) for s, t in zip(froms, tos, strict=True)]
        known = self._known.setdefault((a, b), {})
        units = tos if 1 in sides else froms
        for unit in set(units) - known.keys():
            known[unit] = edge(unit, unit)
        return [known[unit] for unit in units]

    def _pattern(self, key: tuple[int, int, int, int, bool]) -> _Pattern | None:
        """Search between the first units of these sorts."""
        if key not in self._patterns:
            sort, i, other, j, inside = key
            s = self._alike[sort][0]
            t = s if inside else next(u for u in self._alike[other] if u != s)
            source, target = self.nodes[s][i], self.nodes[t][j]
            routes = self.search((source, target))
            try:
                loads, latency = routes.spread([(routes.index[source], routes.index[target], 1.0)])
            except LookupError:
                self._patterns[key] = None
            else:
                used = ((load, self._located(routes, e, s, t)) for e, load in enumerate(loads) if load)
                links = tuple((a, b, load * part) for load, real in used for a, b, part in real)
                self._patterns[key] = _Pattern(links, latency)
        return self._patterns[key]

    def _located(self, routes: Routes, edge: int, s: int, t: int) -> list[tuple[_End, _End, float]]:
        """An edge of a search in units ``s`` and ``t`` as edges of the part: ends, and their parts of its load."""
        key = (routes, edge, s, t)
        if key not in self._ends:
            whole: dict[tuple[int, int], tuple[_End, _End, float]] = {}
            for u, v, share in routes.shares[edge]:
                ends = self.part.index[u], self.part.index[v]
                before = whole[ends][2] if ends in whole else 0.0
                whole[ends] = (self._end(u, s, t), self._end(v, s, t), before + share)
            self._ends[key] = list(whole.values())
        return self._ends[key]

    def _end(self, node: str, s: int, t: int) -> _End:
        unit, position = self.place.get(node, (None, 0))
        return _End(0 if unit == s else 1 if unit == t else None, position, node)
