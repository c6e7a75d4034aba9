"""Sums of a piecewise linear function over evenly spaced points, in closed form.

The time of a decode step of a fixed batch is tabulated over the mean context and linear between the knots. Contexts
grow by the same amount in every step, so the time of many steps is a sum of arithmetic series, one per pair of knots.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from math import floor, sqrt


class Row:
    """Seconds of a step over the mean context, for one batch.

    Parameters
    ----------
    knots
        Contexts in tokens, increasing, at least two.
    values
        Seconds at the knots. Below the first knot the first value counts; beyond the last one the last line goes on.
    """

    __slots__ = ("knots", "last", "slopes", "values")

    def __init__(self, knots: Sequence[float], values: Sequence[float]):
        self.knots, self.values = list(knots), list(values)
        pairs = zip(self.knots, self.knots[1:], self.values, self.values[1:], strict=False)
        self.slopes = [(y1 - y0) / (x1 - x0) for x0, x1, y0, y1 in pairs]
        self.last = len(self.slopes) - 1

    def at(self, context: float) -> float:
        """Seconds of one step."""
        j = min(max(bisect_right(self.knots, context) - 1, 0), self.last)
        return self.values[j] + self.slopes[j] * max(context - self.knots[j], 0.0 if j == 0 else -1.0)

    def total(self, context: float, growth: float, steps: int) -> float:
        """Seconds of ``steps`` steps at the contexts ``context + growth * k`` for k = 1 to ``steps``."""
        if steps == 1:
            return self.at(context + growth)
        knots = self.knots
        j = bisect_right(knots, context + growth) - 1
        if j >= 0 and (j >= self.last or context + growth * steps <= knots[j + 1]):  # all between two knots
            j = min(j, self.last)
            slope = self.slopes[j]
            first = self.values[j] + slope * (context + growth - knots[j])
            return steps * first + slope * growth * (steps * (steps - 1) / 2)
        seconds, done = 0.0, 0
        for take, first, increment in self._runs(context, growth, steps):
            seconds += take * first + increment * (take * (take - 1) / 2)
            done += take
        return seconds

    def _runs(self, context: float, growth: float, steps: int) -> list[tuple[int, float, float]]:
        """(steps, seconds of the first, increase from step to step) of each stretch between two knots."""
        found = []
        knots, done = self.knots, 0
        j = min(max(bisect_right(knots, context + growth) - 1, 0), self.last)
        while done < steps:
            here = context + growth * (done + 1)
            take = steps - done
            if here < knots[0]:
                take = min(take, max(1, floor((knots[0] - context) / growth) - done))
                found.append((take, self.values[0], 0.0))
                done += take
                continue
            if j < self.last:
                take = min(take, floor((knots[j + 1] - context) / growth) - done)
                if take <= 0:
                    j += 1
                    continue
            slope = self.slopes[j]
            found.append((take, self.values[j] + slope * (here - knots[j]), slope * growth))
            done += take
        return found

    def steps_until(self, context: float, growth: float, steps: int, seconds: float) -> int:
        """The fewest steps, 1 to ``steps``, that end at or after ``seconds``; ``steps`` if none does."""
        done = 0
        for take, first, increment in self._runs(context, growth, steps):
            whole = take * first + increment * (take * (take - 1) / 2)
            if whole < seconds:
                seconds -= whole
                done += take
                continue
            return done + _first(take, first, increment, seconds)
        return steps


def _first(take: int, first: float, increment: float, seconds: float) -> int:
    """The fewest terms of an arithmetic series that sum to ``seconds`` or more."""
    if seconds <= first:
        return 1
    half = increment / 2
    base = first - half
    n = (
        seconds / base
        if abs(half) * take < 1e-12 * base
        else (sqrt(base * base + 4 * half * seconds) - base) / (2 * half)
    )
    count = max(1, min(take, int(n)))
    while count > 1 and (count - 1) * first + half * (count - 1) * (count - 2) >= seconds:
        count -= 1
    while count < take and count * first + half * count * (count - 1) < seconds:
        count += 1
    return count
