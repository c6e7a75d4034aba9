"""Refit the constants of engines from measured serving runs: ``python bench/engines.py [--data DIR] [--fit]``.

Printed: TPOT and TTFT errors in sample, with each model left out of the fit, and with each GPU left out.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

from sim.collectives import Collectives
from sim.constants_fabric import load_fabric_constants
from sim.engines import Engine, EngineCollectives, EngineKernels, load_engine
from sim.kernels import Kernels, load_constants
from sim.serving import ServingConstants, time_per_token
from sim.step import Machine
from sim.validate.names import SHIPPED
from sim.validate.runs import Run, read_runs
from sim.validate.screen import Screen, screen
from sim.validate.step_times import Plan, plan, step_times

# name, start, low, high
TPOT = (
    ("launch.gemm", 1.0, 0.2, 3.0),
    ("launch.decode_attention", 1.0, 0.2, 3.0),
    ("launch.mla_decode", 1.0, 0.2, 3.0),
    ("launch.prefill_attention", 1.0, 0.2, 3.0),
    ("launch.experts", 1.0, 0.2, 3.0),
    ("launch.elementwise", 1.0, 0.2, 5.0),
    ("launch.host", 1.0, 0.1, 10.0),
    ("skew", 0.9, 0.6, 1.0),
    ("uneven", 0.5, 0.0, 2.0),
    ("collective_latency", 1.2, 0.5, 3.0),
    ("serving.interference", 0.9, 0.1, 2.0),
    ("serving.interference_lockstep", 0.5, 0.1, 2.0),
)


def engine(values: np.ndarray, base: Engine) -> Engine:
    """An engine with these values of the fitted constants."""
    data = base.model_dump()
    for (name, *_), value in zip(TPOT, values, strict=True):
        where, _, last = name.rpartition(".")
        (data[where] if where else data)[last] = float(value)
    return Engine.model_validate(data)


class Fitter:
    """Predictions of runs as a function of the engine's constants."""

    def __init__(self, plans: list[Plan], base: Engine):
        self.plans, self.base = plans, base
        self.fabrics: dict = {}

    def machine(self, item, constants: Engine) -> Machine:
        key = (item.gpu.name, item.topology.kind)
        if key not in self.fabrics:
            self.fabrics[key] = (item.topology.build(item.gpu), Kernels(item.gpu, load_constants(item.gpu.constants)))
        fabric, kernels = self.fabrics[key]
        key = (key, item.engine, constants.collective_latency)
        if key not in self.fabrics:
            named = constants.model_copy(update={"name": item.engine})
            self.fabrics[key] = EngineCollectives(fabric, item.gpu, load_fabric_constants(), named)
        return Machine(EngineKernels(kernels, constants), self.fabrics[key])

    def tpot(self, plans: list[Plan], constants: Engine) -> np.ndarray:
        times = step_times(plans, lambda item: self.machine(item, constants))
        found = []
        for p in plans:
            t = times[p.run.name]
            found.append(
                time_per_token(t.step, t.prefill, t.batch, p.run.lengths[1], p.run.lockstep, constants.serving)
            )
        return np.array(found)

    def fit(self, plans: list[Plan], start: np.ndarray) -> np.ndarray:
        measured = np.array([p.run.tpot for p in plans])
        low, high = (np.array([row[i] for row in TPOT]) for i in (2, 3))

        def residuals(x: np.ndarray) -> np.ndarray:
            return np.log(self.tpot(plans, engine(x, self.base)) / measured)

        found = least_squares(
            residuals, start, bounds=(low, high), loss="soft_l1", f_scale=0.1, diff_step=0.02, max_nfev=12, x_scale=start
        )
        return found.x


def show(what: str, error: np.ndarray) -> None:
    print(f"{what:40} {len(error):5} median {np.median(np.abs(error)):6.1%} mean {np.abs(error).mean():6.1%} "
          f"bias {error.mean():+6.1%}")
