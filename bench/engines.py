"""Refit the constants of engines from measured serving runs: ``python bench/engines.py [--data DIR] [--fit]``.

Printed: the screen's counts, and errors of TPOT and TTFT with the constants as they are; with ``--fit`` those after the
fit, with each model left out of it, and with each GPU left out. ``--fit`` writes ``sim/data/engines``; same bytes.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Hashable
from copy import deepcopy
from pathlib import Path
from typing import Any

import one_thread  # noqa: F401  before numpy

# isort: split
import numpy as np
from engine_files import write
from engine_fit import Array, Constant, Linear, fit, solve

from sim.engines import ANY, Engine, combined, engine_names, library, read_engine
from sim.kernels import Kernels, load_constants
from sim.machine import Machine
from sim.network.collectives import Collectives
from sim.network.constants import load_fabric_constants
from sim.serving import time_per_token
from sim.validate.cases import Case
from sim.validate.csv_rows import read_rows
from sim.validate.names import SHIPPED
from sim.validate.serving_rows import predict, read
from sim.validate.step_times import Plan, Times, step_times

TPOT = [
    Constant("any.kernels.launch.experts", 1.0, 0.2, 2.0),
    Constant("vllm.kernels.launch.experts", 1.7, 0.2, 3.0),
    Constant("sglang.kernels.launch.experts", 1.4, 0.2, 3.0),
    Constant("any.kernels.time.gemm", 0.9, 0.7, 1.1),
    Constant("any.kernels.elementwise.launch", 4.8e-6, 0.2e-6, 10e-6),
    Constant("any.kernels.elementwise.memory", 0.12, 0.05, 1.0),
    Constant("any.kernels.recurrence.launch+any.kernels.index.launch", 55e-6, 1e-6, 120e-6),
    Constant("any.kernels.host.sequence", 1.5e-6, 0.0, 30e-6),
    Constant("any.kernels.quantise", 1.4e-6, 0.0, 6e-6),
    Constant("any.kernels.routing.skew", 0.92, 0.6, 1.0),
    Constant("any.collective_latency", 0.75, 0.3, 2.0),
    Constant("any.serving.interference", 0.65, 0.1, 2.0),
    Constant("any.serving.interference_lockstep", 0.32, 0.1, 2.0),
]
TTFT = [
    Constant("trtllm.serving.front_end", 0.022, 0.0, 1.0),
    Constant("vllm.serving.front_end", 0.01, 0.0, 1.0),
    Constant("sglang.serving.front_end", 0.2, 0.0, 1.0),
    Constant("trtllm.serving.client", 0.065, 0.0, 1.0),
    Constant("vllm.serving.client", 0.01, 0.0, 1.0),
    Constant("sglang.serving.client", 0.01, 0.0, 1.0),
    Constant("any.serving.front_end_per_token", 2.5e-6, 0.0, 1e-4),
    Constant("any.serving.first_steps", 3.6, 0.0, 20.0),
    Constant("any.serving.burst", 0.16, 0.0, 1.0),
    Constant("sglang.serving.burst", 0.4, 0.0, 1.0),
    Constant("any.serving.wait_lockstep", 0.3, 0.0, 2.0),
]
Raw = dict[str, dict[str, Any]]
"""What the files of all engines say."""


def with_values(base: Raw, constants: list[Constant], values: Array) -> Raw:
    """The files with these values of the fitted constants."""
    data = deepcopy(base)
    for constant, value in zip(constants, values, strict=True):
        for name in constant.name.split("+"):
            *where, last = name.split(".")
            place: dict[str, Any] = data
            for key in where:
                place = place.setdefault(key, {})
            place[last] = float(value)
    return data


class Predictor:
    """Predictions of runs as a function of the engines' files."""

    def __init__(self, plans: list[Plan], collectives: dict[Hashable, Collectives] | None = None):
        self.plans = plans
        self.tpot = np.array([p.run.tpot for p in plans])
        self.ttft = np.array([p.run.ttft for p in plans])
        self.collectives = {} if collectives is None else collectives

    def times(self, engines: dict[str, Engine]) -> dict[str, Times]:
        """Times of every run."""
        machines: dict[Hashable, Machine] = {}

        def machine(item: Case) -> Machine:
            whose, constants = library(item.engine), engines.get(item.engine, engines[ANY])
            latency = constants.collective_latency
            key = (item.gpu.name, item.topology.kind, item.engine)
            if key not in machines:
                where = (item.gpu.name, item.topology.kind, whose, latency)
                if where not in self.collectives:
                    built = item.topology.build(item.gpu)
                    found = Collectives(built, item.gpu, load_fabric_constants(), whose, latency=latency)
                    self.collectives[where] = found
                kernels = Kernels(item.gpu, load_constants(item.gpu.constants), constants.kernels, whose)
                machines[key] = Machine(kernels, self.collectives[where])
            return machines[key]

        return step_times(self.plans, machine)

    def per_token(self, raw: Raw) -> Array:
        """TPOT of every run, predicted over measured."""
        engines = build(raw)
        times = self.times(engines)
        found = []
        for p in self.plans:
            t, run = times[p.run.name], p.run
            constants = engines.get(run.engine, engines[ANY]).serving
            found.append(time_per_token(t.step, t.prefill, t.batch, run.lengths[1], run.lockstep, constants))
        return np.array(found) / self.tpot

    def first(self, raw: Raw, times: dict[str, Times]) -> Array:
        """TTFT of every run, predicted over measured, with step times that are known."""
        engines = build(raw)
        runs = [p.run for p in self.plans]
        found = [predict(r, times[r.name], engines.get(r.engine, engines[ANY]).serving).ttft for r in runs]
        return np.array(found) / self.ttft


def build(raw: Raw) -> dict[str, Engine]:
    """Engines from what their files say."""
    return {n: Engine.model_validate(d if n == ANY else combined(raw[ANY], d)) for n, d in raw.items()}


def show(what: str, ratios: Array) -> None:
    error = np.abs(ratios - 1)
    print(
        f"{what:40} {len(error):5} rows  median {np.median(error):6.1%}  mean {error.mean():6.1%}"
        f"  bias {np.mean(ratios - 1):+6.1%}",
        flush=True,
    )


def without(
    key: Callable[[Plan], Hashable], per_token: Predictor, first: Predictor, raw: Raw, models: tuple[Linear, Linear]
) -> tuple[Array, Array]:
    """TPOT and TTFT over measured of every row, with the constants of a fit that has not seen its group."""
    ratios = np.ones(len(per_token.plans)), np.ones(len(first.plans))
    for name in dict.fromkeys(key(p) for p in per_token.plans):
        outs = [np.array([key(p) == name for p in one.plans]) for one in (per_token, first)]
        seen = raw
        for constants, model, out in zip((TPOT, TTFT), models, outs, strict=True):
            seen = with_values(seen, constants, solve(model, ~out, constants))
        parts = [
            Predictor([p for p, left in zip(one.plans, out, strict=True) if left], per_token.collectives)
            for one, out in zip((per_token, first), outs, strict=True)
        ]
        ratios[0][outs[0]] = parts[0].per_token(seen)
        if outs[1].any():
            ratios[1][outs[1]] = parts[1].first(seen, parts[1].times(build(seen)))
        show(f"  TPOT without {name}", ratios[0][outs[0]])
    return ratios


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=SHIPPED, help="folder with end_to_end.csv")
    parser.add_argument("--fit", action="store_true", help="fit the constants, leave models and GPUs out, write them")
    parser.add_argument("--groups", action="store_true", help="also print errors by model, GPU, engine and format")
    options = parser.parse_args()
    measured = read(read_rows(options.data / "end_to_end.csv").good)
    for reason, count in measured.screen.counts().items():
        print(f"{count:5} {reason}")
    good = [p for p in measured.plans if p.case and measured.screen.keeps(p.run)]
    per_token = Predictor(good)
    first = Predictor([p for p in good if measured.screen.keeps_ttft(p.run)], per_token.collectives)
    raw: Raw = {name: read_engine(name) for name in engine_names()}
    if not options.fit:
        show("TPOT, shipped constants", per_token.per_token(raw))
        show("TTFT, shipped constants", first.first(raw, first.times(build(raw))))
    else:
        raw = refit(per_token, first, raw)
        write(raw)
    if options.groups:
        groups(per_token, per_token.per_token(raw))
        groups(first, first.first(raw, first.times(build(raw))))


def refit(per_token: Predictor, first: Predictor, raw: Raw) -> Raw:
    """Fit both sets of constants and print their errors; returns the files with their residuals."""
    model = fit(lambda values: np.log(per_token.per_token(with_values(raw, TPOT, values))), TPOT)
    raw = with_values(raw, TPOT, rounded(model.at))
    times = first.times(build(raw))
    other = fit(lambda values: np.log(first.first(with_values(raw, TTFT, values), times)), TTFT)
    raw = with_values(raw, TTFT, rounded(other.at))
    own = [raw[name]["serving"]["front_end"] for name in raw if name != ANY]
    raw[ANY]["serving"]["front_end"] = float(f"{np.mean(own):.3g}")
    for constant, value in zip([*TPOT, *TTFT], [*model.at, *other.at], strict=True):
        print(f"  {constant.name:60} {value:.3g}")
    fitted = per_token.per_token(raw), first.first(raw, times)
    for what, ratios in zip(("TPOT", "TTFT"), fitted, strict=True):
        show(f"{what}, fitted", ratios)
    by_model = without(lambda p: p.case and p.case.model.name, per_token, first, raw, (model, other))
    by_gpu = without(lambda p: p.run.system, per_token, first, raw, (model, other))
    for what, left in (("model", by_model), ("GPU", by_gpu)):
        show(f"TPOT, {what} left out", left[0])
        show(f"TTFT, {what} left out", left[1])
    raw[ANY]["kernels"]["residual"] = residual(fitted[0], by_model[0])
    raw[ANY]["ttft"] = residual(fitted[1], by_model[1])
    return raw


def rounded(values: Array) -> Array:
    return np.array([float(f"{value:.3g}") for value in values])


def residual(fitted: Array, left_out: Array) -> dict[str, float]:
    """Measured over predicted of models left out at the 10th and 90th percentile; mean errors, in the fit and out."""
    low, high = np.quantile(1 / left_out, (0.1, 0.9))
    inside = np.mean((1 / fitted >= low) & (1 / fitted <= high))
    print(
        f"range {low:.3f} to {high:.3f} of the prediction: holds 80 % of rows of models left out, {inside:.0%} fitted"
    )
    error, held_out = (float(np.abs(ratios - 1).mean()) for ratios in (fitted, left_out))
    figures = {"low": low, "high": high, "error": error, "held_out": held_out}
    return {"rows": len(fitted), **{name: float(f"{value:.3g}") for name, value in figures.items()}}


def groups(predictor: Predictor, ratios: Array) -> None:
    found: dict[tuple[str, ...], list[float]] = {}
    for p, ratio in zip(predictor.plans, ratios, strict=True):
        assert p.case
        found.setdefault((p.case.model.name, p.run.system, p.run.engine, p.run.weights), []).append(ratio)
    for key, members in sorted(found.items()):
        show(" ".join(key)[:40], np.array(members))


if __name__ == "__main__":
    main()
