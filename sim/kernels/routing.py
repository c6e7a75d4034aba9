"""How tokens really choose experts: not evenly.

A step reads the weights of the experts that are hit. T tokens that prefer some experts reach as many distinct ones as
T^skew tokens would that choose evenly; and the rank that waits for nobody is the one with the most rows, which lies
above the mean by some standard deviations of a Poisson count.
"""

from __future__ import annotations

from math import log, sqrt

import numpy as np
from pydantic import Field

from sim.noun import Noun
from sim.program import Work
from sim.shapes import GroupedGemm
from sim.workload import Number, smaller


class Routing(Noun):
    """Constants of the choice of experts. The defaults are even routing."""

    skew: float = Field(1.0, gt=0, le=1)
    """Exponent of the tokens that choose evenly instead."""
    uneven: float = Field(0.0, ge=0)
    """Standard deviations of the fullest rank's rows above the mean, over sqrt(2 ln ranks)."""

    @property
    def even(self) -> bool:
        """Whether every expert is as likely as another."""
        return self.skew == 1.0 and not self.uneven

    def apply(self, work: Work) -> Work:
        """The same work with the experts that such a choice hits; other operations as they are."""
        shape = work.shape
        if self.even or not isinstance(shape, GroupedGemm):
            return work
        if not shape.held or _nothing(shape.hit):
            return work
        ranks = shape.experts / shape.held
        tokens = shape.rows * ranks / shape.choices
        reached = shape.rows * _at_least_one(tokens) ** (self.skew - 1)
        if ranks > 1:
            reached = reached * (1 + self.uneven * sqrt(2 * log(ranks)) / _at_least_one(shape.rows) ** 0.5)
        hit = smaller(shape.held * (1 - (1 - 1 / shape.held) ** reached), shape.hit)
        return work._replace(shape=shape._replace(hit=hit), weight_bytes=work.weight_bytes * (hit / shape.hit))


def _nothing(hit: Number) -> bool:
    return not isinstance(hit, np.ndarray) and not hit


def _at_least_one(value: Number) -> Number:
    return np.maximum(value, 1.0) if isinstance(value, np.ndarray) else max(value, 1.0)
