"""Seconds of a collective: the kernels that a library would run, each with a fixed part and a part per byte.

The flows of an algorithm (``sim.algorithms``) are put on the fabric, each split evenly over its cheapest
routes; the link that needs longest, load over bandwidth, sets the pace, because every link works at once. What
a kernel makes of it, and up to which message it is used, is in ``sim.selection``; its constants are data.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple, overload

from sim import algorithms, selection
from sim.algorithms import EXCHANGES, REDUCTIONS, Plan
from sim.constants_fabric import FabricConstants
from sim.errors import InputError
from sim.fabric import Fabric
from sim.hardware import Gpu
from sim.rings import best_rings
from sim.routes import tier
from sim.selection import Load, Piece

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

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
ENGINE = "trtllm"
"""Whose kernels are used unless a machine says otherwise."""
_IN_SWITCH_FROM = 4  # generation of NVLink whose switches add up and copy


class CollectiveCost(NamedTuple):
    """Time of a collective over its message, and where it comes from.

    ``alpha`` is the time of an empty message, ``seconds_per_byte`` that of one more byte of a long one;
    ``seconds`` gives the time of any. ``floor_seconds_per_byte`` uses data-sheet bandwidths and the best
    algorithm for long messages. ``wire_per_byte`` is what the busiest rank sends per byte of a long message,
    with the algorithm that is named.
    """

    alpha: float
    seconds_per_byte: float
    floor_seconds_per_byte: float
    wire_per_byte: float
    algorithm: str
    tier: str
    pieces: tuple[Piece, ...] = ()
    """Kernels by the largest message they are used for."""

    @overload
    def seconds(self, message: float) -> float: ...
    @overload
    def seconds(self, message: npt.NDArray[Any]) -> npt.NDArray[np.float64]: ...
    def seconds(self, message: Any) -> Any:
        """Time for ``message`` bytes, a number or an array; never less for more bytes."""
        if not self.pieces:
            return self.alpha + self.seconds_per_byte * message
        if isinstance(message, (int, float)):
            return min(p.seconds(message) for p in self.pieces if message <= p.cap)
        import numpy as np

        times = [np.where(message <= p.cap, p.seconds(message), inf) for p in self.pieces]
        return np.minimum.reduce(times)

    def used(self, message: float) -> Piece | None:
        """The kernel that a message of this size takes; ``None`` where there is nothing to do."""
        allowed = [p for p in self.pieces if message <= p.cap]
        if message == inf:
            return min(allowed, key=lambda p: p.per_byte, default=None)
        return min(allowed, key=lambda p: p.seconds(message), default=None)

    def algorithm_for(self, message: float) -> str:
        """Algorithm and kernel that a message of this size takes."""
        used = self.used(message)
        return f"{used.algorithm} ({used.kernel})" if used else self.algorithm


FREE = CollectiveCost(0.0, 0.0, 0.0, 0.0, "none", "none")


class Collectives:
    """Costs of collectives among the ranks of one fabric, computed once per kind and shape of the group.

    Parameters
    ----------
    engine
        Whose kernels run: ``trtllm``, ``vllm`` or ``sglang``.
    forced
        Algorithm, kernel or library by kind of collective, or several of them: ``{"all_reduce": "ring"}``. The engine's
        own kernels do it where they can, else those of any library.

    Raises
    ------
    InputError
        If the engine or a kind is not known.

    Notes
    -----
    What a message is, in bytes M, and what each of n ranks sends at least:

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

    An all-reduce inside the switch sends (1 + 1/n) M, which is less from four ranks on.
    """

    def __init__(
        self,
        fabric: Fabric,
        gpu: Gpu,
        constants: FabricConstants,
        engine: str = ENGINE,
        forced: Mapping[str, str | Sequence[str]] | None = None,
    ):
        self.fabric = fabric
        self.gpu = gpu
        self.constants = constants
        self.forced = dict(forced or {})
        self._libraries = constants.libraries(engine)
        self._costs: dict[tuple[str, tuple[int, ...]], CollectiveCost] = {}
        for kind in self.forced:
            _check_kind(kind)

    def seconds(self, kind: str, ranks: tuple[int, ...], message: Any) -> Any:
        """Time of one collective of ``message`` bytes, a number or an array. Raises what ``cost`` raises."""
        return self.cost(kind, ranks).seconds(message)

    def cost(self, kind: str, ranks: tuple[int, ...]) -> CollectiveCost:
        """Return the cost of one collective among ``ranks``; a group of one is free.

        Raises
        ------
        InputError
            If the kind is unknown, a rank is listed twice, or what is forced does not exist for the group.
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

    def plan(self, kind: str, ranks: tuple[int, ...], message: float = inf) -> Plan:
        """Return the algorithm for a message of this size, as flows among ``ranks``. Raises what ``cost`` raises."""
        _check(kind, ranks)
        if len(ranks) == 1:
            return Plan("none", ())
        used = self.cost(kind, ranks).used(message)
        assert used  # some kernel takes any message
        return next(plan for plan in self._candidates(kind, ranks) if plan.algorithm == used.algorithm)

    def link_bytes(self, kind: str, ranks: tuple[int, ...], message: float = inf) -> dict[tuple[str, str], float]:
        """Return the bytes on each link and direction per byte of the message, for links that carry any.

        Raises what ``cost`` raises.
        """
        carried: dict[tuple[str, str], float] = {}
        for stage in self.plan(kind, ranks, message).stages:
            part, loads, _ = self.fabric.load(stage.flows, ranks)
            for load, shares in zip(loads, part.shares, strict=True):
                for source, target, share in shares if load else ():
                    link = (source, target)
                    carried[link] = carried.get(link, 0.0) + load * share
        return carried

    def loads(self, kind: str, ranks: tuple[int, ...]) -> list[Load]:
        """Return every algorithm that fits the group, with what it asks of the links."""
        plans = list(self._candidates(kind, ranks))
        if len(plans) > 1:  # one search from each rank finds the routes of all plans
            self.fabric.load([(a, b, 0.0) for plan in plans for stage in plan.stages for a, b, _ in stage.flows], ranks)
        return [self._load(ranks, plan) for plan in plans]

    def _compute(self, kind: str, ranks: tuple[int, ...]) -> CollectiveCost:
        loads = self.loads(kind, ranks)
        found = self._pieces(kind, len(ranks), loads)
        pieces = selection.needed(found)
        long = min((p for p in pieces if p.cap == inf), key=lambda p: p.per_byte)
        assert long.load
        floor = min(load.floor for load in loads)
        alpha = min(p.fixed for p in pieces)
        kept = tuple(p._replace(load=None) for p in pieces)  # the flows of a large group are many
        return CollectiveCost(alpha, long.per_byte, floor, long.load.wire, long.algorithm, long.load.tier, kept)

    def _pieces(self, kind: str, n: int, loads: Sequence[Load]) -> list[Piece]:
        if kind in self.forced:
            every = {kernel.library for kernel in self.constants.kernels.values()}
            found = selection.pieces(loads, kind, self.constants, n, sorted(every))
            return selection.forced(found, self.forced[kind], kind, self.constants, self._libraries)
        if kind in ("dispatch", "combine"):  # the first library that has kernels for experts on these links
            for library in self._libraries:
                if found := selection.pieces(loads, kind, self.constants, n, (library,)):
                    return found
            kind = "all_to_all"
        return selection.pieces(loads, kind, self.constants, n, self._libraries)

    def _candidates(self, kind: str, ranks: tuple[int, ...]) -> Iterator[Plan]:
        servers = self._even_servers(ranks)
        if kind in REDUCTIONS and servers:
            yield algorithms.hierarchical(kind, servers)
            if kind == "all_reduce":
                yield algorithms.hierarchical(kind, servers, across="double_tree")
        elif kind in REDUCTIONS:
            yield from self._of_a_reduction(kind, ranks)
        elif kind in EXCHANGES:
            yield algorithms.rail_aligned(servers) if servers else algorithms.pairwise_exchange(ranks)
        elif kind == "broadcast":
            yield algorithms.chain(ranks)
        elif kind == "gather":
            yield algorithms.to_root(ranks)
        else:
            yield algorithms.send(ranks)

    def _of_a_reduction(self, kind: str, ranks: tuple[int, ...]) -> Iterator[Plan]:
        yield algorithms.ring(kind, ranks)
        one_server = len({self.fabric.unit(self.fabric.gpu(r)) for r in ranks}) == 1
        switched = self._switched(ranks)
        if one_server and not switched:
            links = self.fabric.direct_links(ranks)
            if len(links) == len(ranks) * (len(ranks) - 1):  # a mesh; over a bus of PCIe a ring is all there is
                yield algorithms.direct(kind, ranks)
            if rings := best_rings(links, ranks):
                yield algorithms.ring(kind, ranks, rings)
        if kind != "all_reduce":
            return
        if not one_server:  # inside a server the trees of NCCL are chains, no better than a ring
            yield algorithms.tree(ranks)
            yield algorithms.double_tree(ranks)
            return
        for plan in (algorithms.one_shot(ranks), algorithms.two_shot(ranks)):
            if len(ranks) <= self._tray_size:  # peers' memory is mapped inside one operating system
                yield plan
            elif switched >= _IN_SWITCH_FROM:
                yield algorithms.multicast(plan)
        if switched >= _IN_SWITCH_FROM:
            yield algorithms.in_switch(ranks)

    @cached_property
    def _tray_size(self) -> int:
        """GPUs of one compute tray of a rack, or of the whole machine where it has no trays."""
        nodes = self.fabric.graph.nodes
        return max(Counter(nodes[gpu].get("tray") for gpu in self.fabric.gpus).values())

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

    def _even_servers(self, ranks: tuple[int, ...]) -> list[list[int]] | None:
        """The ranks by server, if there are several servers with equally many of them, more than one."""
        servers: dict[int, list[int]] = {}
        for r in ranks:
            servers.setdefault(self.fabric.unit(self.fabric.gpu(r)), []).append(r)
        sizes = {len(s) for s in servers.values()}
        return list(servers.values()) if len(servers) > 1 and len(sizes) == 1 and sizes != {1} else None

    def _load(self, ranks: tuple[int, ...], plan: Plan) -> Load:
        total: list[float] = []
        steps: list[tuple[str, int]] = []
        latency = 0.0
        for stage in plan.stages:
            part, loads, of_route = self.fabric.load(stage.flows, ranks)
            total = [a + b for a, b in zip(total, loads, strict=True)] if total else loads
            kinds = {e.kind for load, e in zip(loads, part.edges, strict=True) if load}
            steps.append((selection.slowest(kinds), stage.steps))
            latency += of_route * stage.trips
        # the stages overlap on long messages: all their flows share the links
        pace: dict[str, float] = {}
        for load, e in zip(total, part.edges, strict=True):
            if load:
                pace[e.kind] = max(pace.get(e.kind, 0.0), load / e.bandwidth)
        wire = max(plan.sent().values())
        return Load(plan, pace, tuple(steps), latency, tier(selection.slowest(pace)), wire)


def _check_kind(kind: str) -> None:
    if kind not in KINDS:
        raise InputError(f"collective {kind!r} is not known; choose one of {', '.join(KINDS)}")


def _check(kind: str, ranks: Sequence[int]) -> None:
    _check_kind(kind)
    if not ranks or len(set(ranks)) != len(ranks):
        raise InputError(f"{kind} needs at least one rank, each once, not {ranks!r}")
    if kind == "send" and len(ranks) > 2:
        raise InputError(f"send goes from one rank to one other, not among {len(ranks)}")
