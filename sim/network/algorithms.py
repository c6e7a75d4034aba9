"""Algorithms of collectives, as flows between ranks: who sends how many bytes per byte of the message, in how
many steps one after the other.

Pure functions of the ranks (and of the servers they sit in); what a link makes of a flow is the business of
``sim.fabric``, what a library makes of a step that of ``sim.selection``. ``sim.network.collectives`` says what the
message of each kind is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise, permutations
from math import ceil, log2
from typing import NamedTuple

Flow = tuple[int, int, float]
"""From rank, to rank, bytes per byte of the message."""

REDUCTIONS = ("all_reduce", "all_gather", "reduce_scatter")
EXCHANGES = ("all_to_all", "dispatch", "combine")


class Stage(NamedTuple):
    """Flows that run together. ``steps`` are what a rank does one after the other, meetings with peers included;
    ``trips`` how often a message must have crossed a route before the next can start."""

    flows: tuple[Flow, ...]
    steps: int
    trips: int

    def reverse(self, factor: float = 1.0) -> Stage:
        """The same flows the other way round, times a factor."""
        return self._replace(flows=tuple((b, a, factor * size) for a, b, size in self.flows))

    def sent(self) -> dict[int, float]:
        """Bytes that each rank sends per byte of the message."""
        total: dict[int, float] = {}
        for source, _, size in self.flows:
            total[source] = total.get(source, 0.0) + size
        return total


class Plan(NamedTuple):
    """One algorithm for one group. ``own`` is what a rank moves inside its own memory per byte of the message."""

    algorithm: str
    stages: tuple[Stage, ...]
    own: float = 0.0

    def sent(self) -> dict[int, float]:
        """Bytes that each rank sends per byte of the message."""
        total: dict[int, float] = {}
        for stage in self.stages:
            for source, size in stage.sent().items():
                total[source] = total.get(source, 0.0) + size
        return total

    @property
    def piece(self) -> float:
        """Bytes that go to one peer in one step per byte of the message: what a library chooses its protocol by."""
        longest = max(self.stages, key=lambda stage: stage.trips)
        per_step = max(longest.sent().values()) / longest.trips
        if longest.trips > 1:  # pieces follow one another along a ring or a tree
            return per_step
        first = longest.flows[0][0]
        return per_step / len({target for source, target, _ in longest.flows if source == first})


def wire(kind: str, n: int) -> float:
    """Bytes that each of ``n`` ranks sends per byte of the message, by the usual lower bound."""
    return {"all_reduce": 2 * (n - 1) / n, "all_gather": n - 1.0, "reduce_scatter": (n - 1) / n}.get(kind, 1.0)


def own_bytes(kind: str, n: int) -> float:
    """Bytes of a rank's own part per byte of the message: copied or reduced at home, never sent."""
    if kind in EXCHANGES:
        return 1 / (n - 1)
    return {"all_reduce": 1 / n, "all_gather": 1.0, "reduce_scatter": 1 / n}.get(kind, 0.0)


def around(order: Sequence[int], sent: float) -> tuple[Flow, ...]:
    """Two rings in this order, one in each direction, with half of ``sent`` each."""
    links = list(zip(order, [*order[1:], order[0]], strict=True))
    return tuple(flow for a, b in links for flow in ((a, b, sent / 2), (b, a, sent / 2)))


def pairs(ranks: Sequence[int], size: float) -> tuple[Flow, ...]:
    """``size`` from everyone to everyone else."""
    return tuple((a, b, size) for a, b in permutations(ranks, 2))


def rounds(n: int) -> int:
    """Rounds of a meeting of ``n`` ranks, each telling one more than before."""
    return ceil(log2(n))


def ring_steps(kind: str, n: int) -> int:
    """Steps of a ring: once around, twice for an all-reduce."""
    return 2 * (n - 1) if kind == "all_reduce" else n - 1


def ring(kind: str, ranks: Sequence[int], orders: Sequence[tuple[Sequence[int], float]] = ()) -> Plan:
    """Rings in rank order, or in the given orders with the given parts of the data."""
    n = len(ranks)
    sent = wire(kind, n)
    rings = orders or [(ranks, 1.0)]
    flows = tuple(flow for order, part in rings for flow in around(order, sent * part))
    name = f"{len(rings)} rings" if len(rings) > 1 else "ring"
    steps = ring_steps(kind, n)
    return Plan(name, (Stage(flows, steps, steps),), own_bytes(kind, n))


def direct(kind: str, ranks: Sequence[int]) -> Plan:
    """Everyone exchanges with everyone at once: over a mesh it uses every link."""
    n = len(ranks)
    steps = 2 if kind == "all_reduce" else 1
    return Plan("direct", (Stage(pairs(ranks, wire(kind, n) / (n - 1)), steps, steps),), own_bytes(kind, n))


def parents(n: int) -> list[int | None]:
    """A binary tree over positions 0 to n-1, root 0: position i hangs below the one whose lowest set bit is next.

    Odd positions are leaves, so that a second tree with the positions mirrored (or shifted, for odd n) has
    other leaves, and every rank works in one of the two (Sanders, Speck, Träff: Two-tree algorithms, 2009).

    >>> parents(6)
    [None, 2, 4, 2, 0, 4]
    """
    found: list[int | None] = [None]
    for i in range(1, n):
        low = i & -i
        above = (i ^ low) | (low << 1)
        found.append(above if above < n else i ^ low)
    return found


def _depth(above: Sequence[int | None]) -> int:
    deepest = 0
    for i in range(len(above)):
        depth, at = 0, above[i]
        while at is not None:
            depth, at = depth + 1, above[at]
        deepest = max(deepest, depth)
    return deepest


def _up_and_down(order: Sequence[int], above: Sequence[int | None], size: float) -> list[Flow]:
    edges = [(order[i], order[p]) for i, p in enumerate(above) if p is not None]
    return [flow for child, parent in edges for flow in ((child, parent, size), (parent, child, size))]


def tree(ranks: Sequence[int]) -> Plan:
    """All-reduce up one binary tree and down again."""
    above = parents(len(ranks))
    depth = 2 * _depth(above)
    return Plan("tree", (Stage(tuple(_up_and_down(ranks, above, 1.0)), depth, depth),), 1 / len(ranks))


def double_tree(ranks: Sequence[int]) -> Plan:
    """All-reduce over two binary trees, half of the data on each; the leaves of one are not those of the other."""
    above = parents(len(ranks))
    other = [*ranks[::-1]] if len(ranks) % 2 == 0 else [*ranks[1:], ranks[0]]
    flows = _up_and_down(ranks, above, 0.5) + _up_and_down(other, above, 0.5)
    depth = 2 * _depth(above)
    return Plan("double_tree", (Stage(tuple(flows), depth, depth),), 1 / len(ranks))


def one_shot(ranks: Sequence[int]) -> Plan:
    """All-reduce where every rank reads the whole message of every other: (n-1) M, one meeting."""
    return Plan("one_shot", (Stage(pairs(ranks, 1.0), len(ranks) - 1, 1),), 1.0)


def two_shot(ranks: Sequence[int]) -> Plan:
    """All-reduce as reduce-scatter and all-gather through the peers' memory: 2 (n-1)/n M, two meetings."""
    n = len(ranks)
    half = Stage(pairs(ranks, 1 / n), n - 1, 1)
    return Plan("two_shot", (half, half), 1.0)


def in_switch(ranks: Sequence[int]) -> Plan:
    """All-reduce that the switch adds up (NVLink SHARP): M (1 + 1/n) each way on every GPU's links.

    A GPU lets the switch read all of its message (M out) and gets the sum of its n-th (M/n in), then hands
    that sum to the switch (M/n out), which copies everyone's to everyone (M in). The switch is no rank, so the
    flows are those of pairs that put the same load on every link. A message is worked on in n parts, one for
    each GPU that reduces, so as many steps pass before all of them are busy.
    """
    n = len(ranks)
    return Plan("in_switch", (Stage(pairs(ranks, (1 + 1 / n) / (n - 1)), n, 2),), 1 / n)


def switch_copies(kind: str, ranks: Sequence[int]) -> Plan:
    """All-gather or reduce-scatter in the switch (NCCL from 2.18 on): a rank's part goes out once and the switch copies
    it, or all parts go in and come out added up.

    That saves steps, not time on the links: all that a rank gathers must come in, and all that it gives must go out,
    its own part of a reduction included, because the switch adds up everybody's.
    """
    n = len(ranks)
    size = 1.0 if kind == "all_gather" else 1 / (n - 1)
    return Plan("in_switch", (Stage(pairs(ranks, size), 2, 2),), own_bytes(kind, n))


def multicast(plan: Plan) -> Plan:
    """The same with copies made by the switch: a rank sends once what all others need.

    As flows from rank to rank it is what arrives that counts, and that stays as it is.
    """
    return plan._replace(algorithm=f"multicast {plan.algorithm}")


def pairwise_exchange(ranks: Sequence[int]) -> Plan:
    """All-to-all straight from source to destination."""
    n = len(ranks)
    return Plan("pairwise", (Stage(pairs(ranks, 1 / (n - 1)), rounds(n), 1),), 1 / (n - 1))


def uneven_exchange(ranks: Sequence[int], sizes: Sequence[Sequence[float]], busiest: float) -> Plan:
    """All-to-all straight from source to destination, ``sizes[i][j]`` bytes from the i-th to the j-th; a message is
    what the ``busiest`` sends."""
    amounts = {(a, b): sizes[i][j] / busiest for i, a in enumerate(ranks) for j, b in enumerate(ranks)}
    flows = tuple((a, b, size) for (a, b), size in amounts.items() if a != b and size)
    return Plan("pairwise", (Stage(flows, rounds(len(ranks)), 1),), max(amounts[r, r] for r in ranks))


def chain(ranks: Sequence[int]) -> Plan:
    """Broadcast from rank to rank in order, in pieces."""
    n = len(ranks)
    return Plan("chain", (Stage(tuple((a, b, 1.0) for a, b in pairwise(ranks)), n - 1, n - 1),))


def ring_broadcast(root: int, orders: Sequence[tuple[Sequence[int], float]]) -> Plan:
    """Broadcast along rings that use direct links well, in pieces: a part of the data around each, half of it either
    way from the root."""
    flows: list[Flow] = []
    for order, part in orders:
        at = list(order).index(root)
        there = [*order[at:], *order[:at]]
        for way in (there, [root, *there[:0:-1]]):
            flows += [(a, b, part / 2) for a, b in pairwise(way)]
    n = len(orders[0][0])
    name = f"{len(orders)} rings" if len(orders) > 1 else "ring"
    return Plan(name, (Stage(tuple(flows), n - 1, n - 1),))


def broadcast_tree(ranks: Sequence[int]) -> Plan:
    """Broadcast down a binary tree."""
    above = parents(len(ranks))
    flows = tuple((ranks[p], ranks[i], 1.0) for i, p in enumerate(above) if p is not None)
    return Plan("tree", (Stage(flows, _depth(above), _depth(above)),))


def to_root(ranks: Sequence[int]) -> Plan:
    """Gather: everyone sends to the first at once."""
    return Plan("direct", (Stage(tuple((r, ranks[0], 1.0) for r in ranks[1:]), 1, 1),))


def send(ranks: Sequence[int]) -> Plan:
    """The first to the second."""
    return Plan("direct", (Stage(((ranks[0], ranks[1], 1.0),), 1, 1),))


def hierarchical(kind: str, servers: Sequence[Sequence[int]], across: str = "ring") -> Plan:
    """Inside each server, and between servers along rails: rank i of a server with rank i of the others.

    There are as many rails as the smallest server has ranks. In a server with more, rank i works over rail i modulo
    their number, and hands its data to the rank on it or gets them from there. ``across`` is ``ring`` or, for an
    all-reduce, ``double_tree``.
    """
    rails = [list(rail) for rail in zip(*servers, strict=False)]  # as long as the shortest
    g, n, total = len(rails), len(servers), sum(map(len, servers))
    on = [[_on_rail(len(server), g, r) for server in servers] for r in range(g)]  # ranks by rail and server
    meet = rounds(max(map(len, servers)))
    steps = ring_steps(kind, n)

    def inside(size: Callable[[int, int], float]) -> Stage:
        """``size(rail, i)`` from rank i of a server to its rank on a rail."""
        places = [(s, i, r) for s in servers for i in range(len(s)) for r in range(g) if i != r]
        flows = tuple((server[i], server[r], amount) for server, i, r in places if (amount := size(r, i)))
        return Stage(flows, meet, 1)

    def along(size: Callable[[int, int], float]) -> Stage:
        """Rings along the rails: ``size(rail, server)`` over both links into a server."""
        ends = [(r, s, t) for r in range(g) for s, t in enumerate([*range(1, n), 0])]
        flows = (((r, s, t), (r, t, s)) for r, s, t in ends)
        both = (flow for two in flows for flow in two)
        return Stage(tuple((rails[r][s], rails[r][t], size(r, t) / 2) for r, s, t in both), steps, steps)

    if kind == "all_reduce":
        add = inside(lambda r, i: 1 / g)
        middle = along(lambda r, s: 2 * (n - 1) / n / g)
        if across == "double_tree":
            trees = [double_tree(rail).stages[0] for rail in rails]
            middle = Stage(tuple((a, b, x / g) for t in trees for a, b, x in t.flows), trees[0].steps, trees[0].trips)
        stages = [add, middle, add.reverse()]
    else:  # an all-gather: first the rail's contributions, then all of them to the server's other ranks
        hand_over = inside(lambda r, i: float(i >= g and i % g == r))
        gather = along(lambda r, s: float(sum(on[r]) - on[r][s]))
        spread = inside(lambda r, i: float(sum(on[r]) - (i % g == r))).reverse()
        stages = [hand_over, gather, spread]
    if kind == "reduce_scatter":  # the other way round
        stages = [stage.reverse(1 / total) for stage in stages[::-1]]
    name = "hierarchical" if across == "ring" else "hierarchical tree"
    return Plan(name, tuple(stage for stage in stages if stage.flows), own_bytes(kind, total))


def _on_rail(ranks: int, rails: int, rail: int) -> int:
    """How many of a server's ranks work over a rail."""
    return (ranks - rail + rails - 1) // rails


def rail_aligned(servers: Sequence[Sequence[int]]) -> Plan:
    """All-to-all that crosses to another server only along a rail (NCCL calls it PXN).

    What is meant for rank j of another server goes to rank j of one's own server over NVLink, and from there,
    together with its neighbours' parts, over the network.
    """
    n, g = len(servers), len(servers[0])
    size = 1 / (n * g - 1)
    inside = tuple(flow for server in servers for flow in pairs(server, n * size))  # n - 1 to forward, 1 to keep
    along = tuple(flow for rail in zip(*servers, strict=True) for flow in pairs(rail, g * size))
    return Plan("rail_aligned", (Stage(inside, rounds(g), 1), Stage(along, rounds(n), 1)), size)


def uneven_rail_aligned(
    servers: Sequence[Sequence[int]], ranks: Sequence[int], sizes: Sequence[Sequence[float]], busiest: float
) -> Plan:
    """The same for ``sizes[i][j]`` bytes from the i-th of ``ranks`` to the j-th; a message is what the ``busiest``
    sends."""
    at = {r: (s, j) for s, server in enumerate(servers) for j, r in enumerate(server)}
    inside: dict[tuple[int, int], float] = {}
    along: dict[tuple[int, int], float] = {}
    for i, a in enumerate(ranks):
        for j, b in enumerate(ranks):
            size, mate = sizes[i][j] / busiest, servers[at[a][0]][at[b][1]]
            if mate != a:
                inside[a, mate] = inside.get((a, mate), 0.0) + size
            if mate != b:
                along[mate, b] = along.get((mate, b), 0.0) + size
    stages = (
        Stage(tuple((a, b, size) for (a, b), size in inside.items() if size), rounds(len(servers[0])), 1),
        Stage(tuple((a, b, size) for (a, b), size in along.items() if size), rounds(len(servers)), 1),
    )
    own = max(sizes[i][i] for i in range(len(ranks))) / busiest
    return Plan("rail_aligned", tuple(stage for stage in stages if stage.flows), own)
