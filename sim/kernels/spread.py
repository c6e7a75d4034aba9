"""How sure a time is: the range of measurements around a fit, and the range of a sum of times.

Errors of one fit go together (a model that is 5 % too fast for one GEMM of a step is so for the others), those of
different fits do not; so deviations add up inside a fit and as a root of squares between fits.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Spread(NamedTuple):
    """A tenth of measurements lies below ``low`` times the prediction and a tenth above ``high`` times."""

    fit: str
    """Names the fit: times with the same name are wrong together."""
    low: float
    high: float


EXACT = Spread("", 1.0, 1.0)


def interval(parts: Iterable[tuple[float, Spread]]) -> tuple[float, float]:
    """Low and high of a sum of times, each given in seconds with its spread."""
    total = 0.0
    below: dict[str, float] = {}
    above: dict[str, float] = {}
    for seconds, spread in parts:
        total += seconds
        below[spread.fit] = below.get(spread.fit, 0.0) + seconds * (1 - spread.low)
        above[spread.fit] = above.get(spread.fit, 0.0) + seconds * (spread.high - 1)
    down, up = (sum(max(v, 0.0) ** 2 for v in side.values()) ** 0.5 for side in (below, above))
    return total - down, total + up
