"""The cheapest deployments that serve a scenario's requests within its SLO: ``plan(scenario) -> PlanResult``.

All layouts times all numbers of instances are ordered by their GPUs and replayed in this order, except those that a
safe bound (``sim.planner.bounds``) rules out. So no deployment with fewer GPUs than an answer was passed over, as
far as replays tell. Once a layout serves with some number of instances, larger numbers of it are not tried.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from math import ceil, inf
from typing import NamedTuple

from sim.errors import ScenarioError
from sim.planner.bounds import Bound, bound
from sim.planner.candidates import layouts
from sim.planner.result import Deployment, PlanResult
from sim.planner.settings import PlanSettings
from sim.replaying import place_of, report_of, scheduler_of
from sim.replays.fleet import Disaggregation, Instance, NoRoomError, Place, fleet_of, instance
from sim.replays.loop import Patience
from sim.replays.requests import Slo, Work, build
from sim.replays.results import ReplayReport
from sim.replays.scheduler import Scheduler
from sim.scenario import Scenario
from sim.strategy import Strategy
from sim.workload import Phase

Progress = Callable[[str, int, int], None]
FACTORS = (1.1, 1.25, 1.5, 2.0)
"""Factors on the rate that headroom is told by."""


class Layout(NamedTuple):
    """One layout with its instance and what it can do at most."""

    strategy: Strategy
    made: Instance
    most: Bound


class Candidate(NamedTuple):
    """A deployment to try."""

    gpus: int
    slack: float
    """How far the bound is above the rate; the larger, the likelier it works."""
    decode: Layout
    instances: int
    prefill: Layout | None = None
    workers: int = 0

    @property
    def tag(self) -> str:
        """Of the layouts and their numbers."""
        own = f"{self.instances} x {self.decode.strategy.label}"
        return f"{self.workers} x {self.prefill.strategy.label} prefill + {own} decode" if self.prefill else own


class Search:
    """A search over one scenario's deployments."""

    def __init__(self, scenario: Scenario):
        if scenario.requests is None or scenario.slo is None:
            raise ScenarioError("plan needs requests and an slo; write for example slo: {ttft: 2 s, tpot: 50 ms}")
        if not scenario.requests.rate:
            raise ScenarioError("plan needs the rate of the requests, in requests a second")
        self.scenario, self.requests, self.slo = scenario, scenario.requests, scenario.slo
        self.settings: PlanSettings = scenario.plan or PlanSettings()
        self.rules: Scheduler = scheduler_of(scenario)
        self.place: Place = place_of(scenario)
        self.rate: float = scenario.requests.rate
        self.work: Work = build(self.requests)
        self.reasons: list[str] = []
        self.considered = self.ruled_out = self.replayed = 0

    def known(self, phase: Phase, prefill: bool, decode: bool) -> list[Layout]:
        """Layouts that may keep the SLO; of those that cost and do the same the first one."""
        found: dict[tuple[float, ...], Layout] = {}
        settings = self.settings
        reach = min(settings.gpus, self.scenario.topology.gpu_count)
        for one in layouts(self.scenario.model, settings.strategies, reach, settings.most_stages, phase):
            if prefill and "prefill" not in one.phases:
                continue
            try:
                made = instance(self.place, one, self.rules, self.work.longest)
            except NoRoomError as error:
                self._rule_out(one, str(error))
                continue
            most = bound(made, self.rules, self.work, self.slo, prefill, decode)
            if most.why:
                self._rule_out(one, f"{one.label}: {most.why}")
                continue
            found.setdefault((made.gpus, made.groups, made.blocks, *most[:2]), Layout(one, made, most))
        return list(found.values())

    def _rule_out(self, layout: Strategy, why: str) -> None:
        every = self.settings.gpus // layout.gpus(self.scenario.model)
        self.considered += every
        self.ruled_out += every
        self.reasons.append(why)

    def candidates(self) -> list[Candidate]:
        """Deployments that no bound rules out, fewest GPUs first, the likeliest of equals first."""
        found = [*self._together()]
        if self.settings.disaggregated:
            found += self._apart()
        return sorted(found, key=lambda c: (c.gpus, -c.slack, c.tag))

    def _together(self) -> Iterator[Candidate]:
        for one in self.known("decode", True, True):
            every = self.settings.gpus // one.made.gpus
            least = max(1, ceil(self.rate / one.most.rate))
            self.considered += every
            self.ruled_out += min(every, least - 1)
            for count in range(least, every + 1):
                yield Candidate(count * one.made.gpus, count * one.most.rate / self.rate, one, count)

    def _apart(self) -> Iterator[Candidate]:
        fronts, backs = self.known("prefill", True, False), self.known("decode", False, True)
        for front in fronts:
            for back in backs:
                first = max(1, ceil(self.rate / front.most.prefill_rate))
                second = max(1, ceil(self.rate / back.most.decode_rate))
                for workers in range(1, self.settings.gpus // front.made.gpus + 1):
                    for count in range(1, (self.settings.gpus - workers * front.made.gpus) // back.made.gpus + 1):
                        self.considered += 1
                        if workers < first or count < second:
                            self.ruled_out += 1
                            continue
                        slack = min(workers * front.most.prefill_rate, count * back.most.decode_rate) / self.rate
                        gpus = workers * front.made.gpus + count * back.made.gpus
                        yield Candidate(gpus, slack, back, count, front, workers)

    # -- replays -----------------------------------------------------------------------------------------------

    def replay(self, candidate: Candidate, factor: float = 1.0) -> ReplayReport:
        """Replay the requests, arriving ``factor`` times as fast; stopped when too many have missed the SLO."""
        work = self.work if factor == 1.0 else self._faster(factor)
        layout = candidate.decode.strategy.model_copy(update={"replicas": candidate.instances})
        pools = None
        if candidate.prefill:
            front = candidate.prefill.strategy.model_copy(update={"replicas": candidate.workers})
            pools = Disaggregation(prefill=front)
        made = fleet_of(
            self.place,
            candidate.decode.made,
            layout.replicas,
            self.rules,
            work.stream.grain,
            self.requests.router,
            candidate.prefill.made if candidate.prefill else None,
            candidate.workers,
            pools is None or pools.transfer == "layerwise",
        )
        if factor < FACTORS[-1]:  # twice the rate runs to its end, to say what breaks first
            most = (1 - self.slo.percentile / 100) * len(work.stream.prompts)
            made.loop.patience = Patience(self.slo.ttft or inf, self.slo.tpot or inf, most + 1)
        log = made.loop.run(work.stream)
        self.replayed += 1
        return report_of(candidate.tag, made, work, log, self.slo, self.requests.warmup)

    def _faster(self, factor: float) -> Work:
        stream = self.work.stream
        return self.work._replace(stream=stream._replace(arrivals=[t / factor for t in stream.arrivals]))

    def deployment(self, candidate: Candidate, report: ReplayReport) -> Deployment:
        """A candidate that works, with its headroom and what breaks first."""
        headroom, twice = 1.0, None
        for factor in FACTORS:
            more = self.replay(candidate, factor)
            twice = more if factor == FACTORS[-1] else twice
            if more.slo_met:
                headroom = factor
            elif factor != FACTORS[-1]:
                twice = self.replay(candidate, FACTORS[-1])
                break
        price = self.settings.price_per_gpu_hour
        hourly = price * candidate.gpus if price else None
        per_token = 3600 * report.output_tokens_per_s
        front = candidate.prefill
        return Deployment(
            tag=candidate.tag,
            gpus=candidate.gpus,
            layout=_written(candidate.decode.strategy, candidate.instances),
            prefill=_written(front.strategy, candidate.workers) if front else None,
            ratio=f"{candidate.workers}:{candidate.instances}" if front else "",
            cost_per_hour=hourly,
            cost_per_million_output_tokens=1e6 * hourly / per_token if hourly and per_token else None,
            largest_batch=report.largest_batch,
            headroom=headroom,
            breaks_first=breaks_first(twice, self.slo) if twice else "",
            replay=report,
        )


def _written(layout: Strategy, count: int) -> dict[str, object]:
    plain = layout.model_copy(update={"replicas": count}).model_dump(mode="json", exclude_defaults=True)
    return {"strategy": layout.kind, **plain}


def breaks_first(report: ReplayReport, slo: Slo) -> str:
    """What is worst in a replay that is too much: by how much each limit is missed, and whether the cache is full."""
    limits = {
        "TTFT": (report.ttft_s.p95, slo.ttft),
        "TPOT": (report.tpot_s.p95, slo.tpot),
        "E2E": (report.e2e_s.p95, slo.e2e),
    }
    missed = {name: value / limit for name, (value, limit) in limits.items() if limit and value > limit}
    full = f", KV cache full ({report.preemptions:,} preemptions)" if report.preemptions else ""
    if not missed:
        return f"nothing{full}"
    worst = max(missed, key=lambda name: missed[name])
    return f"{worst}: p95 {missed[worst]:.3g} times the limit{full}"


def plan(scenario: Scenario, progress: Progress | None = None) -> PlanResult:
    """Search the cheapest deployments of a scenario's model on its GPU that keep its SLO.

    Raises
    ------
    ScenarioError
        If the scenario has no rate of requests or no SLO.
    """
    from sim import __version__

    begun = time.perf_counter()
    search = Search(scenario)
    found: list[Deployment] = []
    complete = True
    try:
        candidates = search.candidates()
        served: set[tuple[str, str]] = set()
        for i, candidate in enumerate(candidates):
            if len(found) >= search.settings.answers:
                break
            pair = (candidate.decode.strategy.label, candidate.prefill.strategy.label if candidate.prefill else "")
            if pair in served:
                continue  # the same layouts do it with fewer
            if progress:
                progress(f"{candidate.gpus} GPUs, {len(found)} found", i, len(candidates))
            report = search.replay(candidate)
            if report.stopped and report.interrupted:
                complete = False
                break
            if report.slo_met:
                served.add(pair)
                found.append(search.deployment(candidate, report))
    except KeyboardInterrupt:
        complete = False
    return PlanResult(
        scenario=scenario.name,
        version=__version__,
        rate=search.rate,
        deployments=tuple(found),
        considered=search.considered,
        ruled_out=search.ruled_out,
        replayed=search.replayed,
        reasons=tuple(dict.fromkeys(search.reasons)),
        complete=complete,
        wall_s=time.perf_counter() - begun,
        resolved=scenario.resolved(),
    )
