"""Least squares on logarithms of ratios, robust to outliers, by Gauss-Newton steps inside bounds.

One Jacobian serves the fit on all rows and every fit on a part of them, which is what makes leaving one out cheap.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import lsq_linear

Array = np.ndarray[Any, np.dtype[np.float64]]
SCALE = 0.1
"""Residuals beyond this count by their size and not by their square."""
STEPS = 4
CLOSE = 0.02
"""Of a constant's start: a smaller step ends the search."""
DIFFERENCE = 0.03
PULL = 0.02
"""Weight, in residuals of one row in a hundred, of the wish to stay at the start: for constants that no row decides."""


class Constant(NamedTuple):
    """A constant to fit: its path in the engine's file, where the search starts, and its bounds."""

    name: str
    start: float
    low: float
    high: float


class Linear(NamedTuple):
    """Residuals around a point."""

    at: Array
    residuals: Array
    jacobian: Array


def linearise(residuals: Callable[[Array], Array], at: Array, constants: list[Constant]) -> Linear:
    """Residuals and their derivatives by differences."""
    here = residuals(at)
    columns = []
    for number, c in enumerate(constants):
        step = DIFFERENCE * max(at[number], 0.1 * c.high)
        step = -step if at[number] + step > c.high else step
        moved = at.copy()
        moved[number] += step
        columns.append((residuals(moved) - here) / step)
    return Linear(at, here, np.stack(columns, axis=1))


def solve(model: Linear, rows: Array, constants: list[Constant]) -> Array:
    """The best point for these rows in the linear model, weights of outliers repeated until they settle."""
    j, r = model.jacobian[rows], model.residuals[rows]
    start, low, high = (np.array([getattr(c, side) for c in constants]) for side in ("start", "low", "high"))
    j = j * start  # constants in units of their starts: seconds and factors side by side
    at, x = model.at / start, model.at / start
    pull = PULL * np.sqrt(len(r) / 100) * np.eye(len(start))
    for _ in range(15):
        left = r + j @ (x - at)
        weight = (1 + (left / SCALE) ** 2) ** -0.25  # the square root of soft l1's
        matrix = np.concatenate([j * weight[:, None], pull])
        target = np.concatenate([-(r - j @ at) * weight, pull @ np.ones(len(start))])
        new = lsq_linear(matrix, target, (low / start, high / start)).x
        if np.allclose(new, x, rtol=1e-4):
            break
        x = new
    return np.asarray(x * start)


def fit(residuals: Callable[[Array], Array], constants: list[Constant], steps: int = STEPS) -> Linear:
    """Gauss-Newton from the start; returns the linear model at the last point, which is its own solution."""
    at = np.array([c.start for c in constants])
    model = linearise(residuals, at, constants)
    everything = np.ones(len(model.residuals), bool)
    for _ in range(steps):
        goal = solve(model, everything, constants)
        before = _loss(model.residuals)
        step = goal - model.at
        for _halving in range(4):
            if _loss(residuals(model.at + step)) <= before:
                break
            step = step / 2
        if np.abs(step / [c.start for c in constants]).max() < CLOSE:
            break
        model = linearise(residuals, model.at + step, constants)
    return model


def _loss(residuals: Array) -> float:
    return float((np.sqrt(1 + (residuals / SCALE) ** 2) - 1).sum())
