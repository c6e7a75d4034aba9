"""Times between two tokens, all of them, in bins of half a percent: millions of gaps in the memory of a few."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import exp, log

WIDTH = log(1.005)
"""Width of a bin: a percentile is exact to half a percent."""


class Gaps:
    """A histogram of gaps over their logarithm."""

    def __init__(self) -> None:
        self.bins: dict[int, float] = {}
        self.zero = 0.0

    def add(self, seconds: float, count: float) -> None:
        """``count`` gaps of one length."""
        if seconds <= 0:
            self.zero += count
            return
        key = int(log(seconds) // WIDTH)
        self.bins[key] = self.bins.get(key, 0.0) + count

    def ramp(self, low: float, high: float, count: float) -> None:
        """``count`` gaps spread evenly between two lengths."""
        if low > high:
            low, high = high, low
        if low <= 0:
            self.add(high, count)
            return
        first, last = int(log(low) // WIDTH), int(log(high) // WIDTH)
        if first == last:
            self.bins[first] = self.bins.get(first, 0.0) + count
            return
        density = count / (high - low)
        for key in range(first, last + 1):
            part = min(high, exp((key + 1) * WIDTH)) - max(low, exp(key * WIDTH))
            self.bins[key] = self.bins.get(key, 0.0) + density * part

    def merged(self, others: Iterable[Gaps]) -> Gaps:
        """All gaps of several histograms."""
        found = Gaps()
        for one in (self, *others):
            found.zero += one.zero
            for key, count in one.bins.items():
                found.bins[key] = found.bins.get(key, 0.0) + count
        return found

    def mean(self) -> float:
        """Mean of all gaps in seconds, each taken at the middle of its bin."""
        total = self.zero + sum(self.bins.values())
        return sum(count * exp((key + 0.5) * WIDTH) for key, count in self.bins.items()) / total if total else 0.0

    def percentiles(self, wanted: Sequence[float]) -> list[float]:
        """Seconds at these percentiles; 0 where there is no gap."""
        total = self.zero + sum(self.bins.values())
        keys = sorted(self.bins)
        found = []
        for p in wanted:
            rest = p / 100 * total - self.zero
            value = 0.0
            for key in keys:
                if rest <= 0:
                    break
                rest -= self.bins[key]
                value = exp((key + 0.5) * WIDTH)
            found.append(value)
        return found
