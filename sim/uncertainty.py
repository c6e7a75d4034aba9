"""How sure a step time is, and whether two of them can be told apart.

Every operation's time comes from a fit with residuals. Errors of one fit go together, those of different fits do not
(``sim.kernels.spread``). So what two layouts have in common cancels when they are compared: two steps that spend the
same time in the same kernels differ by less than either of them is sure by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from sim.kernels import Kernels, Spread
from sim.kernels.fit import Residual
from sim.kernels.spread import EXACT
from sim.network.collectives import Collectives
from sim.totals import LaneTotals


class Share(NamedTuple):
    """Seconds of a step that come from one fit, and how far measurements lie below and above it."""

    seconds: float
    low: float
    high: float


Shares = Mapping[str, Share]
"""By the name of the fit."""


def shares(lanes: Iterable[LaneTotals], kernels: Kernels, collectives: Collectives, seconds: float) -> dict[str, Share]:
    """What a step of ``seconds`` on the given lanes is made of, by fit; waiting and bubbles go with the rest."""
    found: dict[str, Share] = {}
    explained = 0.0
    for lane in lanes:
        spreads = _spreads(lane, kernels, collectives)
        for name, own in lane.operations.items():
            fit, low, high = spreads.get(name, EXACT)
            before = found.get(fit, Share(0.0, low, high))
            found[fit] = Share(before.seconds + own, min(low, before.low), max(high, before.high))
            explained += own
    scale = seconds / explained if explained else 1.0
    return {fit: share._replace(seconds=share.seconds * scale) for fit, share in found.items()}


def _spreads(lane: LaneTotals, kernels: Kernels, collectives: Collectives) -> dict[str, Spread]:
    """The spread of every operation that a lane ran, by name."""
    found: dict[str, Spread] = {}
    for track in lane.tracks:
        for price in track.prices:
            if price.name in found:
                continue
            if price.work is not None:
                found[price.name] = kernels.spread(price.work)
            elif price.meeting is not None:
                meeting = price.meeting
                found[price.name] = Spread(
                    *collectives.residual(meeting.kind, meeting.gpus, float(meeting.message.size))
                )
    return found


def interval(of: Shares, steps: Residual | None = None) -> tuple[float, float]:
    """Low and high of a step: a tenth of steps like it lie below, a tenth above.

    ``steps`` says how far whole measured steps lie from predicted ones. What kernels leave open is part of that, so of
    the two ranges the wider one counts, on each side.
    """
    total = sum(share.seconds for share in of.values())
    down = sum((share.seconds * max(0.0, 1 - share.low)) ** 2 for share in of.values()) ** 0.5
    up = sum((share.seconds * max(0.0, share.high - 1)) ** 2 for share in of.values()) ** 0.5
    if steps:
        down, up = max(down, total * (1 - steps.low)), max(up, total * (steps.high - 1))
    return total - down, total + up


def distinct(fast: Shares, slow: Shares) -> bool:
    """Whether the slower of two steps is slower beyond what their fits leave open."""
    ahead = sum(share.seconds for share in slow.values()) - sum(share.seconds for share in fast.values())
    open_ = 0.0
    for fit in {**fast, **slow}:
        a, b = fast.get(fit), slow.get(fit)
        spread = a or b
        assert spread
        more = (b.seconds if b else 0.0) - (a.seconds if a else 0.0)
        # the gap shrinks where the slower one's extra time is overestimated, and the faster one's underestimated
        open_ += (more * (1 - spread.low) if more > 0 else -more * (spread.high - 1)) ** 2
    return bool(ahead > open_**0.5)
