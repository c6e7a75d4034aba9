"""Seconds of a collective: a fixed part, and a part per byte of its most loaded link.
 The flows of the algorithm are put on the fabric, each split evenly over its cheapest routes; the link that
needs longest, load over bandwidth, sets the pace, because every link works at once. Algorithms are those of
NCCL and of the engines' own kernels: ring, direct exchange (two-shot), and, across servers, one that first
reduces inside the server, then along each rail. In-switch reduction (NVLS) is one more entry in
``_candidates``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise, permutations
from math import ceil, log2
from typing import NamedTuple

from sim.constants_fabric import FabricConstants
from sim.errors import InputError
from sim.fabric import Fabric
from sim.hardware import Gpu
from sim.rings import best_rings
from sim.routes import Routes

KINDS = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "dispatch",
    "combine",
    "broadcast",
    "gather",
    "send",
)
_TIERS = ("nvlink", "pcie", "network")  # the slowest one that a collective touches sets its fixed part

Flow = tuple[int, int, float]
"""From rank, to rank, bytes per byte of the message."""


class CollectiveCost(NamedTuple):
    """``alpha + seconds_per_byte x message`` seconds, and where they come from.

    ``floor_seconds_per_byte`` uses data-sheet bandwidths, ``seconds_per_byte`` what is measured of them.
    ``wire_per_byte`` is what the busiest rank sends per byte of the message.
    """

    alpha: float
    seconds_per_byte: float
    floor_seconds_per_byte: float
    wire_per_byte: float
    algorithm: str
    tier: str

    def seconds(self, message: float) -> float:
        """Time for ``message`` bytes."""
        return self.alpha + self.seconds_per_byte * message


FREE = CollectiveCost(0.0, 0.0, 0.0, 0.0, "none", "none")


class _Stage(NamedTuple):
    """A part of an algorithm whose fixed time counts once, between ``ranks`` ranks at a time."""

    kind: str
    ranks: int
    flows: list[Flow]


class _Plan(NamedTuple):
    algorithm: str
    stages: tuple[_Stage, ...]

    def sent(self) -> dict[int, float]:
        """Bytes that each rank sends per byte of the message."""
        total: dict[int, float] = {}
        for stage in self.stages:
            for source, _, size in stage.flows:
                total[source] = total.get(source, 0.0) + size
        return total


class _Timing(NamedTuple):
    alpha: float
    seconds_per_byte: float
    floor: float
    algorithm: str
    tier: str
    ideal: bool  # no algorithm can move the same bytes faster


class Collectives:
    """Costs of collectives among the ranks of one fabric, computed once per kind and shape of the group.

    What a message is, in bytes M, and what each of n ranks sends:

    ================ ============================================= ==============
    kind             M                                             sent per rank
    ================ ============================================= ==============
    all_reduce       the buffer on each rank                       2 (n-1)/n M
    all_gather       what each rank contributes                    (n-1) M
    reduce_scatter   the whole input buffer on each rank           (n-1)/n M
    all_to_all       what one rank sends to all others, evenly     M
    dispatch         as all_to_all, with the kernels for experts   M
    combine          as all_to_all, with the kernels for experts   M
    broadcast        what ``ranks[0]`` sends to everyone           M
    gather           what each other rank sends to ``ranks[0]``    M
    send             what ``ranks[0]`` sends to ``ranks[1]``       M
    ================ ============================================= ==============
    """

    def __init__(self, fabric: Fabric, gpu: Gpu, constants: FabricConstants):
        self.fabric = fabric
        self.gpu = gpu
        self.constants = constants
        self._costs: dict[tuple[str, tuple[int, ...]], CollectiveCost] = {}

    def cost(self, kind: str, ranks: tuple[int, ...]) -> CollectiveCost:
        """Return the cost of one collective among ``ranks``; a group of one is free.

        Raises
        ------
        InputError
            If the kind is unknown, or a rank is listed twice.
        TopologyError
            If a rank does not exist, or two are not connected.
        """
        _check(kind, ranks)
        if len(ranks) == 1:
            return FREE
        key = (kind, self.fabric.group_shape(ranks))
        if key not in self._costs:
            self._costs[key] = self._compute(kind, ranks)
        return self._costs[key]

    def link_bytes(self, kind: str, ranks: tuple[int, ...]) -> dict[tuple[str, str], float]:
        """Return the bytes on each link and direction per byte of the message, for links that carry any.

        Raises what ``cost`` raises.
        """
        _check(kind, ranks)
        carried: dict[tuple[str, str], float] = {}
        if len(ranks) == 1:
            return carried
        _, plan = self._best(kind, ranks)
        for stage in plan.stages:
            part, loads, _ = self.fabric.load(stage.flows, ranks)
            for load, shares in zip(loads, part.shares, strict=True):
                for source, target, share in shares if load else ():
                    link = (source, target)
                    carried[link] = carried.get(link, 0.0) + load * share
        return carried

    def _compute(self, kind: str, ranks: tuple[int, ...]) -> CollectiveCost:
        best, plan = self._best(kind, ranks)
        wire = max(plan.sent().values())
        return CollectiveCost(best.alpha, best.seconds_per_byte, best.floor, wire, best.algorithm, best.tier)

    def _best(self, kind: str, ranks: tuple[int, ...]) -> tuple[_Timing, _Plan]:
        """The algorithm with the least time per byte; the floor is the least of all."""
        best: tuple[_Timing, _Plan] | None = None
        floor = float("inf")
        for plan in self._candidates(kind, ranks):
            timing = self._time(kind, ranks, plan)
            floor = min(floor, timing.floor)
            if best is None or timing.seconds_per_byte < best[0].seconds_per_byte * (1 - 1e-12):
                best = timing, plan
            if timing.ideal:
                break
        assert best is not None  # every kind has a candidate
        return best[0]._replace(floor=floor), best[1]

    def _candidates(self, kind: str, ranks: tuple[int, ...]) -> Iterator[_Plan]:
        n = len(ranks)
        if kind in ("all_reduce", "all_gather", "reduce_scatter"):
            sent = {"all_reduce": 2 * (n - 1) / n, "all_gather": n - 1.0, "reduce_scatter": (n - 1) / n}[kind]
            if servers := self._even_servers(ranks):
                yield _hierarchical(kind, servers)
            else:
                yield _Plan("ring", (_Stage(kind, n, _ring(ranks, sent)),))
                if len({self.fabric.unit(self.fabric.gpu(r)) for r in ranks}) == 1:
                    yield _Plan("direct", (_Stage(kind, n, _pairs(ranks, sent / (n - 1))),))
                if rings := best_rings(self.fabric.direct_links(ranks), ranks):
                    flows = [flow for order, part in rings for flow in _ring(order, sent * part)]
                    yield _Plan(f"{len(rings)} rings" if len(rings) > 1 else "ring", (_Stage(kind, n, flows),))
        elif kind in ("all_to_all", "dispatch", "combine"):
            yield _Plan("pairwise", (_Stage(kind, n, _pairs(ranks, 1 / (n - 1))),))
        elif kind == "broadcast":
            chain = [(a, b, 1.0) for a, b in pairwise(ranks)]
            yield _Plan("chain", (_Stage(kind, n, chain),))
        elif kind == "gather":
            yield _Plan("direct", (_Stage(kind, n, [(r, ranks[0], 1.0) for r in ranks[1:]]),))
        else:
            yield _Plan("direct", (_Stage(kind, n, [(ranks[0], ranks[1], 1.0)]),))

    def _even_servers(self, ranks: tuple[int, ...]) -> list[list[int]] | None:
        """The ranks by server, if there are several servers with equally many of them, more than one."""
        servers: dict[int, list[int]] = {}
        for r in ranks:
            servers.setdefault(self.fabric.unit(self.fabric.gpu(r)), []).append(r)
        sizes = {len(s) for s in servers.values()}
        return list(servers.values()) if len(servers) > 1 and len(sizes) == 1 and sizes != {1} else None

    def _time(self, kind: str, ranks: tuple[int, ...], plan: _Plan) -> _Timing:
        alpha, slowest = 0.0, 0
        total: list[float] = []
        for stage in plan.stages:
            part, loads, latency = self.fabric.load(stage.flows, ranks)
            total = [a + b for a, b in zip(total, loads, strict=True)] if total else loads
            tiers = {e.tier for load, e in zip(loads, part.edges, strict=True) if load}
            level = max(_TIERS.index(t) for t in tiers)
            slowest = max(slowest, level)
            alpha += self.constants.alpha_seconds(
                _TIERS[level], self.gpu.constants, stage.kind, stage.ranks
            ) + latency * _trips(stage.kind, stage.ranks)
        # the stages overlap on long messages: all their flows share the links
        used = [(load, e) for load, e in zip(total, part.edges, strict=True) if load]
        efficiency = {k: self.constants.link_efficiency(k, kind) for k in {e.kind for _, e in used}}
        floor = max(load / e.bandwidth for load, e in used)
        pace = max(load / (e.bandwidth * efficiency[e.kind]) for load, e in used)
        bound = self._least_time(part, plan)
        ideal = len(efficiency) == 1 and floor <= bound * (1 + 1e-12)
        return _Timing(alpha, pace, floor, plan.algorithm, _TIERS[slowest], ideal)

    def _least_time(self, part: Routes, plan: _Plan) -> float:
        """Seconds per byte that no algorithm beats: what a rank sends over all its links at once."""
        width = [0.0] * len(part.kinds)
        for e in part.edges:
            width[e.source] += e.bandwidth
        return max(sent / width[part.index[self.fabric.gpus[r]]] for r, sent in plan.sent().items())


def _check(kind: str, ranks: Sequence[int]) -> None:
    if kind not in KINDS:
        raise InputError(f"collective {kind!r} is not known; choose one of {', '.join(KINDS)}")
    if not ranks or len(set(ranks)) != len(ranks):
        raise InputError(f"{kind} needs at least one rank, each once, not {ranks!r}")
    if kind == "send" and len(ranks) > 2:
        raise InputError(f"send goes from one rank to one other, not among {len(ranks)}")


def _trips(kind: str, n: int) -> int:
    """How often a route is travelled one after the other: the depth of a tree, twice for reduce and
    broadcast."""
    depth = ceil(log2(n))
    return {"all_reduce": 2 * depth, "all_gather": depth, "reduce_scatter": depth, "broadcast": depth}.get(kind, 1)


def _ring(ranks: Sequence[int], sent: float) -> list[Flow]:
    """Two rings in rank order, one in each direction, with half of the data each."""
    around = list(zip(ranks, [*ranks[1:], ranks[0]], strict=True))
    return [flow for a, b in around for flow in ((a, b, sent / 2), (b, a, sent / 2))]


def _pairs(ranks: Sequence[int], size: float) -> list[Flow]:
    return [(a, b, size) for a, b in permutations(ranks, 2)]


def _hierarchical(kind: str, servers: list[list[int]]) -> _Plan:
    """Inside each server directly, between servers in one ring per rail: rank i of a server with rank i of
    others."""
    n, g = len(servers), len(servers[0])
    rails = [list(rail) for rail in zip(*servers, strict=True)]

    def inside(size: float) -> list[Flow]:
        return [flow for server in servers for flow in _pairs(server, size)]

    def along(sent: float) -> list[Flow]:
        return [flow for rail in rails for flow in _ring(rail, sent)]

    if kind == "all_gather":  # first the rail's n contributions, then all of them to the server's other ranks
        stages = [_Stage(kind, n, along(n - 1.0)), _Stage(kind, g, inside(float(n)))]
    elif kind == "reduce_scatter":
        stages = [_Stage(kind, g, inside(1 / g)), _Stage(kind, n, along((n - 1) / n / g))]
    else:
        scatter, gather = _Stage("reduce_scatter", g, inside(1 / g)), _Stage("all_gather", g, inside(1 / g))
        stages = [scatter, _Stage(kind, n, along(2 * (n - 1) / n / g)), gather]
    return _Plan("hierarchical", tuple(stages))
