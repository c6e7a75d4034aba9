"""Which measured runs can be trusted. A rule looks at data-sheet peaks and at the rows, never at a prediction.

In order: copies of another row; layouts that do not multiply out; runs faster than the data sheet allows, and whole
campaigns of which many are; runs that get faster under more load; runs that look like speculative decoding without
saying so; one configuration measured twice with different answers.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from sim.validate.runs import Run

FAST_CAMPAIGN = 0.3
"""A campaign with this share of runs below the floor is left out as a whole."""
FALL = 0.97
"""More requests at once never lower TPOT by more than the noise inside one run."""
SPECULATIVE = 0.76
"""Two engines on equal GPUs differ by less than this; a whole run below it drafts tokens."""
REPEATED = 1.5
"""Two measurements of one configuration by one engine version agree to better than this."""
QUEUE_JUMP = 4.0
"""TTFT per doubling of concurrency."""


class Screen(NamedTuple):
    """Why rows are left out, by name of the row; the first reason that applies."""

    copies: frozenset[str]
    reasons: dict[str, str]
    repaired: int
    ttft: dict[str, str]
    """Further reasons that concern TTFT only."""

    def keeps(self, run: Run) -> bool:
        """Whether a run counts for TPOT."""
        return run.name not in self.copies and run.name not in self.reasons

    def keeps_ttft(self, run: Run) -> bool:
        """Whether a run counts for TTFT."""
        return self.keeps(run) and run.name not in self.ttft

    def counts(self) -> dict[str, int]:
        """Rows by reason."""
        found = {"labels repaired and kept": self.repaired, "copies": len(self.copies)}
        found |= Counter(self.reasons.values())
        return found | Counter(f"TTFT only: {reason}" for reason in self.ttft.values())


def _digits(value: float) -> str:
    return f"{value:.2e}"


def copies(runs: Iterable[Run]) -> frozenset[str]:
    """Rows that repeat an earlier one: same engine, lengths, concurrency, and both times to three digits."""
    seen: set[Hashable] = set()
    found = []
    for run in runs:
        key = (run.engine, run.isl, run.osl, run.concurrency, _digits(run.tpot), _digits(run.ttft))
        if key in seen:
            found.append(run.name)
        seen.add(key)
    return frozenset(found)


def _series(run: Run) -> tuple[Hashable, ...]:
    """Everything but the concurrency: the runs of one series differ in load only."""
    layout = (run.tp, run.dp, run.moe_tp, run.moe_ep)
    return (run.engine, run.version, run.measured, run.model, run.system, run.weights, run.isl, run.osl, *layout)


def _campaign(run: Run) -> tuple[Hashable, ...]:
    return run.engine, run.version, run.measured, run.model, run.system, run.weights


def _grouped(runs: Iterable[Run], key: Callable[[Run], Hashable]) -> dict[Hashable, list[Run]]:
    found: dict[Hashable, list[Run]] = defaultdict(list)
    for run in runs:
        found[key(run)].append(run)
    return found


def screen(runs: list[Run], floors: Mapping[str, float], drafts: Callable[[Run], str]) -> Screen:
    """Apply every rule.

    Parameters
    ----------
    floors
        Seconds per token below which no run can be, by name of the row, from data-sheet peaks.
    drafts
        The shape of a run's model if it ships a head that drafts tokens, else nothing.
    """
    double = copies(runs)
    reasons: dict[str, str] = {}
    left = [run for run in runs if run.name not in double]

    def drop(found: Iterable[Run], reason: str) -> None:
        nonlocal left
        reasons.update({run.name: reason for run in found})
        left = [run for run in left if run.name not in reasons]

    drop([run for run in left if run.unusable], "layout or concurrency does not multiply out")
    drop(_too_fast(left, floors), "faster than the data sheet allows, or of a campaign that is")
    drop(_falling(left), "faster under more load")
    drop(_speculative(left, drafts), "speculative decoding suspected")
    drop(_irreproducible(left), "measured twice with different answers")
    return Screen(double, reasons, sum(bool(run.repaired) for run in runs), _queues(left))


def _too_fast(runs: list[Run], floors: Mapping[str, float]) -> list[Run]:
    found = []
    for members in _grouped(runs, _campaign).values():
        fast = [run for run in members if run.tpot < floors.get(run.name, 0.0)]
        found += members if len(fast) >= FAST_CAMPAIGN * len(members) else fast
    return found


def _falling(runs: list[Run]) -> list[Run]:
    """The runs of a series that are faster than one with less load."""
    found = []
    for members in _grouped(runs, _series).values():
        slowest = 0.0
        for run in sorted(members, key=lambda r: r.concurrency or 0):
            if run.tpot < FALL * slowest:
                found.append(run)
            slowest = max(slowest, run.tpot)
    return found


def _speculative(runs: list[Run], drafts: Callable[[Run], str]) -> list[Run]:
    """Whole series that are below another series of the same model, lengths, GPUs and bits at every shared load."""
    found = []
    alike = _grouped(
        (run for run in runs if drafts(run)), lambda r: (drafts(r), r.system, r.gpus, _bits(r), r.isl, r.osl)
    )
    for members in alike.values():
        series = list(_grouped(members, _series).values())
        load = [{run.concurrency: run.tpot for run in one} for one in series]
        for mine, one in zip(load, series, strict=True):
            for other in load:
                shared = [mine[c] / other[c] for c in mine if c in other]
                if shared and median(shared) < SPECULATIVE:
                    found += one
                    break
    return found


def _bits(run: Run) -> int:
    return {"nvfp4": 4, "int4_wo": 4, "bf16": 16}.get(run.weights, 8)


def _irreproducible(runs: list[Run]) -> list[Run]:
    found = []
    for members in _grouped(runs, lambda r: (*_series(r), r.concurrency)).values():
        middle = median(run.tpot for run in members)
        found += [run for run in members if run.tpot > REPEATED * middle]
    return found


def _queues(runs: list[Run]) -> dict[str, str]:
    """Runs whose first tokens wait for room rather than for the GPU."""
    found: dict[str, str] = {}
    for members in _grouped(runs, _series).values():
        ordered = sorted(members, key=lambda r: r.concurrency or 0)
        for before, run in pairwise(ordered):
            doublings = max(1.0, (run.concurrency or 1) / (before.concurrency or 1) / 2)
            if run.ttft > QUEUE_JUMP * doublings * before.ttft or before.name in found:
                found[run.name] = "TTFT jumps with the load"
    return found
