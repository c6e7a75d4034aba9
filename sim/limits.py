"""The largest batch and the longest context that fit: a monotone search that starts at a guess."""

from __future__ import annotations

from collections.abc import Callable

HIGHEST = 2**40


def largest(fits: Callable[[int], bool], guess: int) -> int:
    """The largest number from 1 to ``HIGHEST`` for which ``fits`` is true, or 0. ``fits`` must be monotone.

    A good ``guess`` only saves calls.
    """
    low, high, step = 0, HIGHEST + 1, 1
    probe = min(max(guess, 1), HIGHEST)
    upwards = fits(probe)
    if upwards:
        low = probe
    else:
        high = probe
    while high - low > step:
        probe = low + step if upwards else high - step
        if fits(probe) != upwards:
            low, high = (low, probe) if upwards else (probe, high)
            break
        low, high = (probe, high) if upwards else (low, probe)
        step *= 4
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
