"""Refit the constants of engines from measured serving runs: ``python bench/engines.py [--data DIR] [--fit]``.

Printed: the screen's counts, and TPOT and TTFT errors in sample, with each model left out of the fit, and with each
GPU left out. ``--fit`` writes ``sim/data/engines/any.yaml``; same bytes every time.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Hashable
from pathlib import Path

import numpy as np
from engine_fit import Array, Constant, Linear, fit, solve

from sim.collectives import Collectives
from sim.constants_fabric import load_fabric_constants
from sim.engines import Engine, load_engine
from sim.kernels import Kernels, load_constants
from sim.machine import Machine
from sim.serving import time_per_token
from sim.validate.cases import Case
from sim.validate.csv_rows import read_rows
from sim.validate.groups import library
from sim.validate.names import SHIPPED
from sim.validate.serving_rows import read
from sim.validate.step_times import Plan, step_times

TPOT = [
    Constant("kernels.launch.gemm", 0.84, 0.2, 2.0),
    Constant("kernels.launch.decode_attention", 0.84, 0.2, 2.0),
    Constant("kernels.launch.mla_decode", 0.84, 0.2, 3.0),
    Constant("kernels.launch.experts", 0.57, 0.1, 2.0),
    Constant("kernels.time.prefill_attention+mla_prefill", 0.91, 0.3, 2.0),
    Constant("kernels.elementwise.launch", 1.5e-6, 0.2e-6, 6e-6),
    Constant("kernels.recurrence.launch", 26e-6, 1e-6, 80e-6),
    Constant("kernels.index.launch", 64e-6, 1e-6, 120e-6),
    Constant("kernels.host.step", 320e-6, 20e-6, 2e-3),
    Constant("kernels.host.sequence", 5.5e-6, 0.1e-6, 30e-6),
    Constant("kernels.quantise", 2e-6, 0.0, 6e-6),
    Constant("kernels.routing.skew", 0.9, 0.6, 1.0),
    Constant("kernels.routing.uneven", 0.5, 0.0, 2.0),
    Constant("collective_latency", 1.2, 0.5, 3.0),
    Constant("serving.interference", 0.9, 0.1, 2.0),
    Constant("serving.interference_lockstep", 0.5, 0.1, 2.0),
]


def with_values(base: Engine, constants: list[Constant], values: Array) -> Engine:
    """An engine with these values of the fitted constants."""
    data = base.model_dump()
    for constant, value in zip(constants, values, strict=True):
        *where, last = constant.name.split(".")
        place = data
        for key in where:
            place = place[key]
        for name in last.split("+"):
            place[name] = float(value)
    return Engine.model_validate(data)


class Predictor:
    """Predictions of runs as a function of the engine's constants."""

    def __init__(self, plans: list[Plan], base: Engine):
        self.plans, self.base = plans, base
        self.measured = np.array([p.run.tpot for p in plans])
        self._collectives: dict = {}
        self._machines: tuple[Engine, dict] = (base, {})

    def machine(self, item: Case, constants: Engine) -> Machine:
        whose = library(item.engine)
        key = (item.gpu.name, item.topology.kind, whose, constants.collective_latency)
        if key not in self._collectives:
            built, latency = item.topology.build(item.gpu), constants.collective_latency
            self._collectives[key] = Collectives(built, item.gpu, load_fabric_constants(), whose, latency=latency)
        if self._machines[0] is not constants:
            self._machines = (constants, {})
        machines = self._machines[1]
        if key not in machines:
            kernels = Kernels(item.gpu, load_constants(item.gpu.constants), constants.kernels, whose)
            machines[key] = Machine(kernels, self._collectives[key])
        return machines[key]

    def tpot(self, constants: Engine) -> Array:
        times = step_times(self.plans, lambda item: self.machine(item, constants))
        found = []
        for p in self.plans:
            t, run = times[p.run.name], p.run
            found.append(time_per_token(t.step, t.prefill, t.batch, run.lengths[1], run.lockstep, constants.serving))
        return np.array(found)

    def residuals(self, values: Array) -> Array:
        return np.log(self.tpot(with_values(self.base, TPOT, values)) / self.measured)


def show(what: str, ratios: Array) -> None:
    error = np.abs(ratios - 1)
    print(f"{what:36} {len(error):5} rows  median {np.median(error):6.1%}  mean {error.mean():6.1%}"
          f"  bias {np.mean(ratios - 1):+6.1%}")


def left_out(predictor: Predictor, model: Linear, key: Callable[[Plan], Hashable]) -> Array:
    """Ratios of every row with the constants of a fit that has not seen its group."""
    names = [key(p) for p in predictor.plans]
    ratios = np.ones(len(names))
    for name in dict.fromkeys(names):
        out = np.array([n == name for n in names])
        values = solve(model, ~out, TPOT)
        part = Predictor([p for p, left in zip(predictor.plans, out, strict=True) if left], predictor.base)
        part._collectives = predictor._collectives
        ratios[out] = np.exp(part.residuals(values))
        show(f"  without {name}", ratios[out])
    return ratios


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=SHIPPED, help="folder with end_to_end.csv")
    parser.add_argument("--fit", action="store_true", help="fit the constants and write them")
    parser.add_argument("--leave-out", action="store_true", help="also fit without each model and without each GPU")
    options = parser.parse_args()
    measured = read(read_rows(options.data / "end_to_end.csv"))
    plans, screened = measured.plans, measured.screen
    for reason, count in screened.counts().items():
        print(f"{count:5} {reason}")
    predictor = Predictor([p for p in plans if p.case and screened.keeps(p.run)], load_engine("any"))
    show("TPOT, shipped constants", predictor.tpot(predictor.base) / predictor.measured)
    if options.fit or options.leave_out:
        model = fit(predictor.residuals, TPOT)
        for constant, value in zip(TPOT, model.at, strict=True):
            print(f"  {constant.name:32} {value:.3f}")
        show("TPOT, fitted", np.exp(model.residuals))
        groups(predictor, np.exp(model.residuals))
    if options.leave_out:
        show("TPOT, model left out", left_out(predictor, model, lambda p: p.case and p.case.model.name))
        show("TPOT, GPU left out", left_out(predictor, model, lambda p: p.run.system))


def groups(predictor: Predictor, ratios: Array) -> None:
    found: dict = {}
    for p, ratio in zip(predictor.plans, ratios, strict=True):
        r = p.run
        found.setdefault((p.case.model.name, r.system, r.engine, r.weights), []).append(ratio)
    for key, members in sorted(found.items()):
        show(" ".join(key)[:36], np.array(members))


if __name__ == "__main__":
    main()
