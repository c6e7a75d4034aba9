"""Whole serving runs (``end_to_end.csv``): time per token, time to the first one, and ratios between layouts."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import NamedTuple

from sim.machine import Machine
from sim.serving import ServingConstants, time_per_token, time_to_first_token
from sim.validate.cases import Case
from sim.validate.floors import floors
from sim.validate.names import names
from sim.validate.result import Group, Outcome
from sim.validate.runs import Run, read_runs
from sim.validate.screen import Screen, screen
from sim.validate.step_times import Plan, Times, plan, step_times


class Prediction(NamedTuple):
    """Seconds of one run."""

    tpot: float
    ttft: float


def predict(run: Run, times: Times, constants: ServingConstants) -> Prediction:
    """The closed forms of ``sim.serving`` for a measured run."""
    isl, osl = run.lengths
    base = (times.step, times.prefill, times.batch)
    per_token = float(time_per_token(*base, osl, run.lockstep, constants))
    waiting = max(0, -(-(run.concurrency or 0) // run.dp) - times.batch)
    first = float(time_to_first_token(*base, isl, osl, run.lockstep, waiting, constants, run.random))
    return Prediction(per_token, first)


class Measured(NamedTuple):
    """All runs of a file, what is simulated for each, and which can be trusted."""

    plans: tuple[Plan, ...]
    screen: Screen


def read(rows: Iterable[dict[str, str]]) -> Measured:
    """Read and screen the runs."""
    plans = plan(read_runs(rows))
    found = screen([p.run for p in plans], floors(plans), lambda run: names().drafts(run.model))
    return Measured(tuple(plans), found)


def serving_groups(
    measured: Measured, machine: Callable[[Case], Machine], serving: Callable[[str], ServingConstants]
) -> list[Group]:
    """TPOT of the screened and of all runs, TTFT, and ratios of TPOT between layouts."""
    times = step_times(measured.plans, machine)
    predicted = {
        p.run.name: predict(p.run, times[p.run.name], serving(p.run.engine))
        for p in measured.plans
        if p.run.name in times
    }
    tpot = [_outcome(p, "TPOT", p.run.tpot, predicted, 0) for p in measured.plans]
    ttft = [_outcome(p, "TTFT", p.run.ttft, predicted, 1) for p in measured.plans]
    kept = [measured.screen.keeps(p.run) for p in measured.plans]
    first = [measured.screen.keeps_ttft(p.run) for p in measured.plans]
    good = [p for p, keep in zip(measured.plans, kept, strict=True) if keep]
    return [
        Group("end to end: TPOT, screened", _kept(tpot, kept)),
        Group("end to end: TPOT, all rows", tuple(tpot)),
        Group("end to end: TPOT ratio of two layouts", tuple(_ratios(good, predicted))),
        Group("end to end: TTFT, screened", _kept(ttft, first)),
    ]


def _kept(outcomes: list[Outcome], keep: list[bool]) -> tuple[Outcome, ...]:
    return tuple(o for o, kept in zip(outcomes, keep, strict=True) if kept)


def _text(run: Run) -> str:
    layout = f"tp{run.tp}" + f" dp{run.dp}" * (run.dp > 1) + f" ep{run.moe_ep}" * (run.moe_ep > 1)
    engine = f"{run.engine} {run.version}".strip()
    return f"{run.model} {run.system} {engine} {run.weights} {layout} c{run.concurrency} {run.isl}/{run.osl}"


def _outcome(one: Plan, what: str, value: float, predicted: dict[str, Prediction], which: int) -> Outcome:
    found = predicted.get(one.run.name)
    text = f"{what} {_text(one.run)}"
    return Outcome(
        one.run.name, text, one.run.source, 1e3 * value, None if found is None else 1e3 * found[which], "ms", one.why
    )


def _ratios(plans: list[Plan], predicted: dict[str, Prediction]) -> list[Outcome]:
    """Each layout of a campaign against the campaign's first one, at equal lengths and load."""
    alike: dict[Hashable, list[Plan]] = {}
    for p in plans:
        r = p.run
        key = (r.engine, r.version, r.measured, r.model, r.system, r.weights, r.isl, r.osl, r.concurrency)
        alike.setdefault(key, []).append(p)
    found = []
    for members in alike.values():
        first = members[0]
        seen = {first.case}
        for other in members[1:]:
            if other.case in seen or first.run.name not in predicted or other.run.name not in predicted:
                continue
            seen.add(other.case)
            ratio = predicted[other.run.name].tpot / predicted[first.run.name].tpot
            text = f"{_text(other.run)} over {first.case.strategy.label if first.case else ''}"
            name = f"{other.run.name} over {first.run.name}"
            found.append(Outcome(name, text, other.run.source, other.run.tpot / first.run.tpot, ratio, "x"))
    return found
