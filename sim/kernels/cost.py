"""What every kernel model is given and gives back."""

from __future__ import annotations

from typing import NamedTuple

from sim.workload import Number, larger


class Device(NamedTuple):
    """The figures of a GPU that kernels depend on, at the rate of one number format."""

    peak: float
    """FLOP/s, data sheet."""
    bandwidth: float
    """Bytes/s, data sheet."""
    multiprocessors: int
    warm: bool = False
    """Whether the operands of the last run are still in the cache, as in a benchmark that repeats one kernel."""


class Cost(NamedTuple):
    """Seconds of one operation and what they are made of: ``fixed`` + the larger of ``compute`` and ``memory``.

    ``floor`` is the roofline at data-sheet figures, which no operation beats.
    """

    seconds: Number
    floor: Number
    fixed: Number
    compute: Number
    memory: Number


def split(fixed: Number, rest: Number, compute: Number, memory: Number) -> Cost:
    """``fixed`` + ``rest`` seconds, of which ``rest`` is shared out so that its larger bound stands for all of it."""
    bound = larger(compute, memory)
    share = rest / larger(bound, 1e-30)
    return Cost(fixed + rest, 0.0, fixed, compute * share, memory * share)


def ceil_div(a: Number, b: Number) -> Number:
    """Whole pieces of ``b`` that hold ``a``."""
    return -(-a // b)


def both(a: Number, b: Number) -> Number:
    """Two bounds that overlap, but not perfectly: their 3-norm, at most a quarter above the larger one."""
    return (a * a * a + b * b * b) ** (1 / 3)
