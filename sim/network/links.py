"""The links of a fabric as a network of flows sees them.

Traffic splits over switches that are alike in proportion to their links, so links that always carry the same part of
everything are one here: an NVLink domain of 72 GPUs and 18 chips has 144 links instead of 2,592. Where a fault
changes the fabric during a run, links are one only if they are alike before and after it.
"""

from __future__ import annotations

from collections.abc import Sequence

from sim.fabric import Fabric
from sim.network.routes import Routes

Link = tuple[str, str]


class Links:
    """Links that carry the same part of all traffic, as one, over the states that a fabric goes through.

    Parameters
    ----------
    fabrics
        The fabric in each state; all have the same GPUs.

    Attributes
    ----------
    members
        Per link of the network the real links, with the part of its load that each takes.
    capacity
        Per state, bytes/s of every link of the network; 0 for one that is not there.
    """

    def __init__(self, fabrics: Sequence[Fabric]):
        self.fabrics = tuple(fabrics)
        places: dict[Link, list[tuple[int, float] | None]] = {}
        for state, fabric in enumerate(fabrics):
            for edge, shares in enumerate(fabric.whole.shares):
                for source, target, part in shares:
                    places.setdefault((source, target), [None] * len(fabrics))[state] = (edge, part)
        numbers: dict[tuple[int | None, ...], int] = {}
        groups: list[list[Link]] = []
        self.number: dict[Link, int] = {}
        for link, place in places.items():
            number = numbers.setdefault(tuple(p[0] if p else None for p in place), len(numbers))
            if number == len(groups):
                groups.append([])
            groups[number].append(link)
            self.number[link] = number
        self.members: list[list[tuple[Link, float]]] = []
        self.capacity = [[0.0] * len(groups) for _ in fabrics]
        for number, group in enumerate(groups):
            where = places[group[0]]
            state = next(s for s, place in enumerate(where) if place)
            parts = [p[1] for link in group if (p := places[link][state])]
            whole = sum(parts)
            self.members.append([(link, part / whole) for link, part in zip(group, parts, strict=True)])
            for s, fabric in enumerate(fabrics):
                if where[s]:  # each takes its part, so the one that is slow for its part limits them all
                    rates = [fabric.graph.edges[link]["bandwidth"] / part for link, part in self.members[number]]
                    self.capacity[s][number] = float(min(rates))
        self._edges: dict[int, list[dict[int, float]]] = {}
        self._pairs: dict[tuple[int, int, int], dict[int, float]] = {}

    def _of_part(self, part: Routes) -> list[dict[int, float]]:
        """What each link of the network carries of one byte on each edge of a part of the fabric."""
        if id(part) not in self._edges:
            found = []
            for shares in part.shares:
                carried: dict[int, float] = {}
                for source, target, share in shares:
                    number = self.number[source, target]
                    carried[number] = carried.get(number, 0.0) + share
                found.append(carried)
            self._edges[id(part)] = found
        return self._edges[id(part)]

    def add(self, loads: dict[int, float], part: Routes, on: Sequence[float]) -> None:
        """Add loads on the edges of a part of the fabric to loads on the links of the network."""
        edges = self._of_part(part)
        for edge, load in enumerate(on):
            if load:
                for number, share in edges[edge].items():
                    loads[number] = loads.get(number, 0.0) + load * share

    def of_pair(self, state: int, source: int, target: int, gpus: Sequence[int]) -> dict[int, float]:
        """What each link carries of one byte from one GPU to another, among ``gpus``.

        Raises
        ------
        TopologyError
            If nothing connects them.
        """
        key = (state, source, target)
        if key not in self._pairs:
            part, on, _ = self.fabrics[state].load([(source, target, 1.0)], gpus)
            loads: dict[int, float] = {}
            self.add(loads, part, on)
            self._pairs[key] = loads
        return self._pairs[key]
