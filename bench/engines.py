"""Refit the constants of engines from measured serving runs: ``python bench/engines.py [--data DIR] [--fit]``.

Printed: the screen's counts, and TPOT and TTFT errors in sample, with each model left out of the fit, and with each
GPU left out. ``--fit`` writes ``sim/data/engines/any.yaml``; same bytes every time.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Hashable
from pathlib import Path

import numpy as np
from engine_fit import Array, Constant, Linear, fit, solve

from sim.engines import Engine, EngineCollectives, EngineKernels, load_engine
from sim.constants_fabric import load_fabric_constants
from sim.kernels import Kernels, load_constants
from sim.serving import time_per_token
from sim.step import Machine
from sim.validate.cases import Case
from sim.validate.floors import floors
from sim.validate.names import SHIPPED
from sim.validate.runs import read_runs
from sim.validate.screen import screen
from sim.validate.step_times import Plan, plan, step_times

TPOT = [
    Constant("launch.gemm", 1.0, 0.2, 3.0),
    Constant("launch.decode_attention", 1.0, 0.2, 3.0),
    Constant("launch.mla_decode", 1.0, 0.2, 3.0),
    Constant("launch.experts", 1.0, 0.2, 3.0),
    Constant("launch.elementwise", 1.0, 0.2, 5.0),
    Constant("launch.recurrence", 15.0, 0.2, 40.0),
    Constant("launch.index", 5.0, 0.2, 20.0),
    Constant("launch.host", 1.0, 0.1, 10.0),
    Constant("skew", 0.9, 0.6, 1.0),
    Constant("uneven", 0.5, 0.0, 2.0),
    Constant("collective_latency", 1.2, 0.5, 3.0),
    Constant("serving.interference", 0.9, 0.1, 2.0),
    Constant("serving.interference_lockstep", 0.5, 0.1, 2.0),
]


def with_values(base: Engine, constants: list[Constant], values: Array) -> Engine:
    """An engine with these values of the fitted constants."""
    data = base.model_dump()
    for constant, value in zip(constants, values, strict=True):
        where, _, last = constant.name.rpartition(".")
        (data[where] if where else data)[last] = float(value)
    return Engine.model_validate(data)


class Predictor:
    """Predictions of runs as a function of the engine's constants."""

    def __init__(self, plans: list[Plan], base: Engine):
        self.plans, self.base = plans, base
        self.measured = np.array([p.run.tpot for p in plans])
        self._fabrics: dict = {}
        self._collectives: dict = {}

    def machine(self, item: Case, constants: Engine) -> Machine:
        key = (item.gpu.name, item.topology.kind)
        if key not in self._fabrics:
            kernels = Kernels(item.gpu, load_constants(item.gpu.constants))
            self._fabrics[key] = (item.topology.build(item.gpu), kernels)
        fabric, kernels = self._fabrics[key]
        wanted = (key, item.engine, constants.collective_latency)
        if wanted not in self._collectives:
            named = constants.model_copy(update={"name": item.engine})
            self._collectives[wanted] = EngineCollectives(fabric, item.gpu, load_fabric_constants(), named)
        return Machine(EngineKernels(kernels, constants), self._collectives[wanted])

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
        part._fabrics, part._collectives = predictor._fabrics, predictor._collectives
        ratios[out] = np.exp(part.residuals(values))
        show(f"  without {name}", ratios[out])
    return ratios


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=SHIPPED, help="folder with end_to_end.csv")
    parser.add_argument("--fit", action="store_true", help="fit the constants and write them")
    parser.add_argument("--leave-out", action="store_true", help="also fit without each model and without each GPU")
    options = parser.parse_args()
    with (options.data / "end_to_end.csv").open(newline="") as file:
        runs = read_runs(csv.DictReader(file))
    plans = plan(runs)
    screened = screen(runs, floors(plans), names_shape)
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


def names_shape(run) -> str:
    from sim.validate.names import names

    return names().drafts(run.model)


if __name__ == "__main__":
    main()
