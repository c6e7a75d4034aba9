"""Which algorithms a group of ranks can run, and which of them a library would consider by itself.

NCCL and the engines know where GPUs sit: rings and trees go through one server after the other, whatever the order of
the ranks; peers' memory is mapped inside one operating system; switches add up from the fourth NVLink on; where
servers have several GPUs, data crosses between them along rails. An algorithm that no library would take there can
still be forced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from sim.fabric import Fabric
from sim.network import algorithms
from sim.network.algorithms import EXCHANGES, REDUCTIONS, Plan
from sim.network.rings import best_rings
from sim.network.routes import tier

_IN_SWITCH_FROM = 4  # generation of NVLink whose switches add up and copy


class Candidate(NamedTuple):
    """An algorithm by name, whether a library considers it unasked, and how to make its plan."""

    algorithm: str
    usual: bool
    build: Callable[[], Plan]


class Candidates:
    """Algorithms for the groups of one fabric."""

    def __init__(self, fabric: Fabric):
        self.fabric = fabric

    def plans(self, kind: str, ranks: tuple[int, ...], forced: Sequence[str] = ()) -> list[Plan]:
        """The plans that a library considers, and those that are ``forced`` by name if they exist for the group."""
        return [c.build() for c in self.of(kind, ranks) if c.usual or c.algorithm in forced]

    def uneven(
        self,
        kind: str,
        ranks: tuple[int, ...],
        sizes: Sequence[Sequence[float]],
        busiest: float,
        forced: Sequence[str] = (),
    ) -> list[Plan]:
        """The same for an exchange of uneven ``sizes`` (bytes, shape (ranks, ranks)) of which one rank sends at most
        ``busiest``."""
        names = [c.algorithm for c in self.of(kind, ranks) if c.usual or c.algorithm in forced]
        made = {
            "rail_aligned": partial(algorithms.uneven_rail_aligned, self.servers(ranks), ranks, sizes, busiest),
            "pairwise": partial(algorithms.uneven_exchange, ranks, sizes, busiest),
        }
        return [made[name]() for name in names]

    def of(self, kind: str, ranks: tuple[int, ...]) -> Iterator[Candidate]:
        """Everything that the group can run."""
        servers = self.servers(ranks)
        order = [r for server in servers for r in server]
        if kind in REDUCTIONS:
            if len(servers) == 1:
                yield from self._inside(kind, ranks)
            else:
                yield from _across(kind, order, servers)
        elif kind in EXCHANGES:
            rails = len(servers) > 1 and {len(s) for s in servers} == {len(servers[0])} != {1}
            if rails:
                yield Candidate("rail_aligned", True, partial(algorithms.rail_aligned, servers))
            yield Candidate("pairwise", not rails, partial(algorithms.pairwise_exchange, ranks))
        elif kind == "broadcast":  # NCCL has no tree for it
            yield Candidate("chain", True, partial(algorithms.chain, order))
            if len(servers) == 1 and not self._switched(ranks) and (rings := self._rings(ranks)):
                around = algorithms.ring_broadcast(ranks[0], rings)
                yield Candidate(around.algorithm, True, lambda: around)
            yield Candidate("tree", False, partial(algorithms.broadcast_tree, order))
        elif kind == "gather":
            yield Candidate("direct", True, partial(algorithms.to_root, ranks))
        else:
            yield Candidate("direct", True, partial(algorithms.send, ranks))

    def servers(self, ranks: Sequence[int]) -> list[list[int]]:
        """The ranks by server, in the order in which servers first appear."""
        servers: dict[int, list[int]] = {}
        for r in ranks:
            servers.setdefault(self.fabric.unit(self.fabric.gpu(r)), []).append(r)
        return list(servers.values())

    def _inside(self, kind: str, ranks: tuple[int, ...]) -> Iterator[Candidate]:
        """Within one server or rack."""
        switched = self._switched(ranks)
        yield Candidate("ring", True, partial(algorithms.ring, kind, ranks))
        pairs = len(ranks) * (len(ranks) - 1)
        meshed = not switched and len(self.fabric.direct_links(ranks)) == pairs  # over PCIe a ring is all there is
        yield Candidate("direct", meshed, partial(algorithms.direct, kind, ranks))
        if not switched and (rings := self._rings(ranks)):
            plan = algorithms.ring(kind, ranks, rings)
            yield Candidate(plan.algorithm, True, lambda: plan)
        adds_up = switched >= _IN_SWITCH_FROM
        if kind != "all_reduce":
            if adds_up:
                yield Candidate("in_switch", True, partial(algorithms.switch_copies, kind, ranks))
            return
        # inside a server the trees of NCCL are chains, no better than a ring
        yield Candidate("tree", False, partial(algorithms.tree, ranks))
        yield Candidate("double_tree", False, partial(algorithms.double_tree, ranks))
        mapped = self.fabric.one_system(ranks)  # so that peers can map each other's memory
        for name, shots in (("one_shot", algorithms.one_shot), ("two_shot", algorithms.two_shot)):
            yield Candidate(name, mapped, partial(shots, ranks))
            if adds_up:
                multicast = partial(lambda make: algorithms.multicast(make(ranks)), shots)
                yield Candidate(f"multicast {name}", not mapped, multicast)
        if adds_up:
            yield Candidate("in_switch", True, partial(algorithms.in_switch, ranks))

    def _rings(self, ranks: Sequence[int]) -> list[tuple[list[int], float]]:
        """Rings over direct links and their parts of the data."""
        return best_rings(self.fabric.direct_links(ranks), ranks)

    def _switched(self, ranks: Sequence[int]) -> int:
        """The NVLink generation if NVLink takes each of ``ranks`` to switches and nowhere else, or 0."""
        graph, generations = self.fabric.graph, {0}
        for r in ranks:
            for v, link in graph.adj[self.fabric.gpu(r)].items():
                if tier(link["kind"]) == "nvlink":
                    if graph.nodes[v]["kind"] != "nvswitch":
                        return 0
                    generations.add(int("".join(c for c in link["kind"] if c.isdigit()) or 0))
        inside = len(set(map(self.fabric.gpu, ranks)) - self.fabric.domain(self.fabric.gpu(ranks[0]))) == 0
        return max(generations) if inside else 0


def _across(kind: str, order: Sequence[int], servers: Sequence[Sequence[int]]) -> Iterator[Candidate]:
    """Over several servers."""
    several = max(map(len, servers)) > 1
    even = several and len({len(s) for s in servers}) == 1
    yield Candidate("ring", not even, partial(algorithms.ring, kind, order))
    if kind == "all_reduce":
        yield Candidate("tree", not even, partial(algorithms.tree, order))
        yield Candidate("double_tree", not even, partial(algorithms.double_tree, order))
    if several:
        yield Candidate("hierarchical", True, partial(algorithms.hierarchical, kind, servers))
        if kind == "all_reduce":
            trees = partial(algorithms.hierarchical, kind, servers, across="double_tree")
            yield Candidate("hierarchical tree", True, trees)
