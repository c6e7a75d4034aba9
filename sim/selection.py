"""What a library's kernel makes of an algorithm on given links, and which of them is taken at which size.

A kernel has a fixed time, a time per step, a part of the links' bandwidth and a largest size. Where several
are allowed the fastest is taken. Sizes up to which a kernel is allowed are bytes, never times, so less
bandwidth or a longer message can only cost more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple, overload

from sim.errors import InputError
from sim.network.constants import plain
from sim.network.routes import tier

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from sim.network.algorithms import Plan
    from sim.network.constants import FabricConstants, Kernel


class Load(NamedTuple):
    """What a plan asks of the links of a fabric.

    ``pace`` is seconds per byte of the message at data-sheet bandwidth, by link kind, on the busiest link;
    ``steps`` are (link kind, steps) of each stage; ``latency`` is that of the network in seconds, over all steps.
    """

    plan: Plan
    pace: Mapping[str, float]
    steps: tuple[tuple[str, int], ...]
    latency: float
    tier: str
    wire: float

    @property
    def floor(self) -> float:
        """Seconds per byte at data-sheet bandwidth."""
        return max(self.pace.values())


class Piece(NamedTuple):
    """``fixed + max(0, per_byte x message - hidden)`` seconds, allowed up to ``cap`` bytes."""

    fixed: float
    per_byte: float
    hidden: float
    cap: float
    algorithm: str
    kernel: str
    link: str = ""
    """The kind of link that sets its constants."""
    load: Load | None = None

    @overload
    def seconds(self, message: float) -> float: ...
    @overload
    def seconds(self, message: npt.NDArray[Any]) -> npt.NDArray[np.float64]: ...
    def seconds(self, message: Any) -> Any:
        """Time for ``message`` bytes, whether allowed or not."""
        moving = self.per_byte * message - self.hidden
        if isinstance(moving, (int, float)):
            return self.fixed + max(0.0, moving)
        return self.fixed + moving.clip(min=0.0)


def piece(load: Load, kernel: Kernel, constants: FabricConstants, ranks: int) -> Piece | None:
    """One kernel on one plan, or ``None`` where it is not measured for the links or not made for so many ranks."""
    if ranks > kernel.most_ranks:
        return None
    fits = {kind: fit for kind in load.pace if (fit := constants.fit(kernel, kind))}
    if len(fits) < len(load.pace) or not load.steps:
        return None
    link = slowest(load.pace)
    main = fits[link]
    launch = max(fits[kind].launch for kind in load.pace)  # one kernel does the stages on all links
    fixed = launch + sum(steps * fits[kind].step for kind, steps in load.steps) + load.latency
    fixed += main.expert * (kernel.experts or 0)
    on_links = max(pace / fits[kind].efficiency for kind, pace in load.pace.items())
    at_home = load.plan.own if kernel.sms is None else (load.wire + load.plan.own) / kernel.sms
    per_byte = constants.together(on_links, at_home * main.own)
    cap = min(inf if main.cap is None else main.cap / load.plan.piece, kernel.limit(ranks))
    return Piece(fixed, per_byte, min(main.hidden, fixed), cap, load.plan.algorithm, kernel.name, link, load)


def slowest(kinds: Iterable[str]) -> str:
    """The link kind that sets the fixed time: network before PCIe before NVLink, links of CPUs last in theirs."""
    order = ("network", "pcie", "nvlink")
    return min(kinds, key=lambda k: (order.index(tier(k)), k.startswith(("upi", "cpu")), "-nic" in k, k))


def pieces(
    loads: Sequence[Load], kind: str, constants: FabricConstants, ranks: int, libraries: Sequence[str]
) -> list[Piece]:
    """Every kernel of ``libraries`` on every plan that it can run."""
    return [
        made
        for kernel in constants.kernels_for(kind, libraries)
        for load in loads
        if kernel.runs(load.plan.algorithm) and (made := piece(load, kernel, constants, ranks))
    ]


def needed(found: Iterable[Piece]) -> tuple[Piece, ...]:
    """Those that are the fastest at some size; they come ordered by cap, so that later ones go further."""
    kept: list[Piece] = []
    for one in sorted(found, key=lambda p: (-p.cap, p.per_byte, p.fixed, p.kernel, p.algorithm)):
        if not any(other.cap >= one.cap and _never_slower(other, one) for other in kept):
            kept.append(one)
    return tuple(kept[::-1])


def _never_slower(other: Piece, one: Piece) -> bool:
    at_zero = other.fixed <= one.fixed
    later = other.per_byte <= one.per_byte and other.fixed - other.hidden <= one.fixed - one.hidden
    return at_zero and later


def forced(
    found: Sequence[Piece],
    wanted: str | Sequence[str],
    kind: str,
    constants: FabricConstants,
    libraries: Sequence[str] = (),
) -> list[Piece]:
    """Those whose algorithm, kernel or library is among ``wanted``, without the sizes at which a library stops.

    Kernels of ``libraries`` are kept where there are any, so that no engine borrows what another has.

    Raises
    ------
    InputError
        If there is none; names what could be forced.
    """
    names = {wanted} if isinstance(wanted, str) else set(wanted)
    kept = [p for p in found if names & labels(p, constants)]
    if not kept:
        choices = sorted(set().union(*(labels(p, constants) for p in found)))
        asked = " or ".join(sorted(names))
        raise InputError(f"{kind} cannot be forced to {asked} here; choose from {', '.join(choices)}")
    kept = [p for p in kept if constants.kernels[p.kernel].library in libraries] or kept
    longest = max(p.cap for p in kept)
    return [p._replace(cap=inf) if p.cap == longest else p for p in kept]


def labels(one: Piece, constants: FabricConstants) -> set[str]:
    """Names by which a piece can be forced; several rings are rings."""
    kernel = constants.kernels[one.kernel]
    return {one.algorithm, plain(one.algorithm), kernel.name, kernel.library}
