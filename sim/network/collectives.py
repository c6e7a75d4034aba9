"""Seconds of a collective: the kernels that a library would run, each with a fixed part and a part per byte.

The flows of an algorithm (``sim.network.algorithms``) are put on the fabric, each split evenly over its cheapest
routes; the link that needs longest, load over bandwidth, sets the pace, because every link works at once. What
a kernel makes of it, and up to which message it is used, is in ``sim.selection``; its constants are data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple, overload

from sim import selection
from sim.candidates import Candidates
from sim.errors import InputError
from sim.fabric import Fabric
from sim.hardware import Gpu
from sim.network.algorithms import EXCHANGES, Plan, Stage
from sim.network.constants import FabricConstants
from sim.network.routes import tier
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


class Uneven(NamedTuple):
    """An exchange of uneven sizes: its cost by bytes that the busiest rank sends, these bytes, and its flows per byte
    of them."""

    cost: CollectiveCost
    message: float
    stages: tuple[Stage, ...]

    @property
    def seconds(self) -> float:
        """Time of the exchange."""
        return self.cost.seconds(self.message)


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
    experts
        Experts of the model's layers, for kernels whose time depends on them; else what their data say.
    latency
        Factor on the fixed part of a collective, which inside an engine stands between kernels that do not end at the
        same moment on all ranks.

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
        experts: int | None = None,
        latency: float = 1.0,
    ):
        self.fabric = fabric
        self.gpu = gpu
        self.constants = constants.with_chosen(experts=experts) if experts else constants
        self.forced = dict(forced or {})
        self.latency = latency
        self.candidates = Candidates(fabric)
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

    def residual(self, kind: str, ranks: tuple[int, ...], message: float) -> tuple[str, float, float]:
        """The kernel that a message takes, and measured over predicted time of it, a tenth of rows below and above.

        Raises what ``cost`` raises.
        """
        used = self.cost(kind, ranks).used(message)
        return (used.kernel, *self.constants.residual(used.kernel, used.link)) if used else ("", 1.0, 1.0)

    def plan(self, kind: str, ranks: tuple[int, ...], message: float = inf) -> Plan:
        """Return the algorithm for a message of this size, as flows among ``ranks``. Raises what ``cost`` raises."""
        _check(kind, ranks)
        if len(ranks) == 1:
            return Plan("none", ())
        used = self.cost(kind, ranks).used(message)
        assert used  # some kernel takes any message
        return next(plan for plan in self._plans(kind, ranks) if plan.algorithm == used.algorithm)

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

    def _plans(self, kind: str, ranks: tuple[int, ...]) -> list[Plan]:
        return self.candidates.plans(kind, ranks, self._forced(kind))

    def _forced(self, kind: str) -> Sequence[str]:
        forced = self.forced.get(kind, ())
        return [forced] if isinstance(forced, str) else forced

    def loads(self, kind: str, ranks: tuple[int, ...]) -> list[Load]:
        """Return every algorithm that fits the group, with what it asks of the links."""
        return [self._load(ranks, plan) for plan in self._plans(kind, ranks)]

    def uneven(self, kind: str, ranks: tuple[int, ...], sizes: Sequence[Sequence[float]]) -> Uneven:
        """Return the cost of an exchange in which everybody may send a different amount to each.

        Parameters
        ----------
        kind
            ``all_to_all``, ``dispatch`` or ``combine``.
        sizes
            Bytes, shape (ranks, ranks): row i holds what ``ranks[i]`` sends to each of them, on the diagonal what it
            keeps. The busiest link sets the pace. Even sizes give what ``cost`` gives.

        Raises
        ------
        InputError
            If the sizes are no square matrix of non-negative numbers for these ranks, and whatever ``cost`` raises.
        TopologyError
            As ``cost``.
        """
        _check(kind, ranks)
        n = len(ranks)
        if kind not in EXCHANGES:
            raise InputError(f"uneven sizes are for {', '.join(EXCHANGES)}, not for {kind}")
        rows = [[float(size) for size in row] for row in sizes]
        if [len(row) for row in rows] != [n] * n or not all(0 <= size < inf for row in rows for size in row):
            raise InputError(f"{kind} among {n} ranks needs {n} rows of {n} sizes in bytes, none of them negative")
        busiest = max(sum(row) - row[i] for i, row in enumerate(rows))
        if busiest <= 0:  # nobody sends anything: a kernel runs all the same
            return Uneven(self.cost(kind, ranks), 0.0, ())
        plans = self.candidates.uneven(kind, ranks, rows, busiest, self._forced(kind))
        cost = self._of_loads(kind, n, [self._load(ranks, plan) for plan in plans])
        used = cost.used(busiest)
        assert used
        return Uneven(cost, busiest, next(plan.stages for plan in plans if plan.algorithm == used.algorithm))

    def _compute(self, kind: str, ranks: tuple[int, ...]) -> CollectiveCost:
        return self._of_loads(kind, len(ranks), self.loads(kind, ranks))

    def _of_loads(self, kind: str, n: int, loads: Sequence[Load]) -> CollectiveCost:
        found = self._pieces(kind, n, loads)
        pieces = selection.needed(found)
        long = min((p for p in pieces if p.cap == inf), key=lambda p: p.per_byte)
        assert long.load
        floor = min(load.floor for load in loads)
        alpha = self.latency * min(p.fixed for p in pieces)
        # the flows of a large group are many
        kept = tuple(p._replace(load=None, fixed=self.latency * p.fixed) for p in pieces)
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
