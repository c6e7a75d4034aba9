"""Replay a scenario's requests on its layouts: ``replay(scenario) -> ReplayResult``."""

from __future__ import annotations

import time
from collections.abc import Callable
from math import inf

import numpy as np

from sim.errors import LayoutError, ScenarioError
from sim.replays.fleet import Fleet, NoRoomError, Place, fleet
from sim.replays.gaps import Gaps
from sim.replays.loop import Log
from sim.replays.requests import Slo, Work, build
from sim.replays.results import Moment, ReplayReport, ReplayResult, Spread, keeps, met
from sim.replays.scheduler import Scheduler, parse_scheduler
from sim.run import assumptions, machine
from sim.scenario import Scenario
from sim.strategy import Strategy

Progress = Callable[[str, int, int], None]
"""Called now and then with the layout's tag, requests answered, and requests in all."""


def place_of(scenario: Scenario) -> Place:
    """The model on the machine of a scenario."""
    on = machine(scenario.gpu, scenario.topology, scenario.conditions)
    return Place(scenario.model, on, scenario.precision.resolve(scenario.model), scenario.usable_memory)


def scheduler_of(scenario: Scenario) -> Scheduler:
    """The scheduler of a scenario: its own, or the defaults of the engine whose kernels run; with its drafts."""
    rules = scenario.scheduler or parse_scheduler(scenario.engine)
    return rules.model_copy(update={"speculation": scenario.speculation})


def replay(
    scenario: Scenario,
    layout: Strategy | str | None = None,
    *,
    until: float = inf,
    progress: Progress | None = None,
    stepwise: bool = False,
) -> ReplayResult:
    """Replay the requests of a scenario on one of its layouts, or on all of them.

    Parameters
    ----------
    until
        Simulated seconds after which the run is stopped; it says what it had.
    stepwise
        Take every decode step by itself: the same times, slowly.

    Raises
    ------
    ScenarioError
        If the scenario has no requests, or no layout with this tag.
    LayoutError
        If a layout cannot exist, or needs more GPUs than there are.
    """
    from sim import __version__

    if scenario.requests is None:
        raise ScenarioError("says no requests; write for example requests: {rate: 10, input: 4k, output: 500}")
    layouts = scenario.layouts
    if layout is not None:
        layouts = (scenario.layout(layout) if isinstance(layout, str) else layout,)
    work = build(scenario.requests)
    reports = []
    for one in layouts:
        reports.append(_one(scenario, one, work, until, progress, stepwise))
        if reports[-1].stopped and until == inf:
            break
    return ReplayResult(
        scenario=scenario.name,
        version=__version__,
        layouts=tuple(reports),
        findings=tuple(_findings(reports, scenario.slo)),
        assumptions=assumptions(scenario) | {"scheduler": scheduler_of(scenario).source or "own"},
        resolved=scenario.resolved(),
    )


def _one(
    scenario: Scenario, layout: Strategy, work: Work, until: float, progress: Progress | None, stepwise: bool
) -> ReplayReport:
    assert scenario.requests
    if problems := layout.check(scenario.model, "decode"):
        raise LayoutError(problems)
    begun = time.perf_counter()
    gpus = layout.gpus(scenario.model)
    pools = scenario.disaggregation
    if pools:
        gpus += pools.prefill.gpus(scenario.model)
    if gpus > scenario.topology.gpu_count:
        have = scenario.topology.gpu_count
        raise LayoutError(f"{layout.label} needs {gpus} GPUs with its prefill workers, the topology has {have}")
    try:
        made = fleet(
            place_of(scenario),
            layout,
            scheduler_of(scenario),
            work.longest,
            work.stream.grain,
            scenario.requests.router,
            pools,
            stepwise,
        )
    except NoRoomError as error:
        return ReplayReport(tag=layout.label, gpus=gpus, feasible=False, reasons=(str(error),))
    total = len(work.stream.prompts)
    log = made.loop.run(work.stream, until, progress and (lambda n: progress(layout.label, n, total)))
    return report_of(layout.label, made, work, log, scenario.slo, scenario.requests.warmup, begun)


def report_of(
    tag: str, made: Fleet, work: Work, log: Log, slo: Slo | None, warmup: int = 0, begun: float | None = None
) -> ReplayReport:
    """Put the figures of a run together."""
    arrival, first, end = (np.frombuffer(a) for a in (log.arrival, log.first, log.end))
    counts = ~np.isnan(end)
    counts[:warmup] = False
    outputs = np.array(work.stream.outputs)
    prompts = np.array(work.stream.prompts)
    ttft, e2e = (first - arrival)[counts], (end - arrival)[counts]
    between = outputs[counts] - 1
    tpot = (end - first)[counts] / np.maximum(between, 1)
    start = float(arrival[counts].min()) if counts.any() else 0.0
    duration = float(end[counts].max() - start) if counts.any() else 0.0
    per_s = 1 / duration if duration else 0.0
    out, into = float(outputs[counts].sum()) * per_s, float(prompts[counts].sum()) * per_s
    loop = made.loop
    engines = [*loop.engines, *loop.prefill]
    good = keeps(slo, ttft, tpot, e2e) if slo else None
    span = log.now or 1.0
    came = int((~np.isnan(arrival)).sum())
    answered = int((~np.isnan(end)).sum())
    report = ReplayReport(
        tag=tag,
        gpus=made.gpus,
        requests=int(counts.sum()),
        refused=len(log.refused),
        unfinished=came - answered - len(log.refused),
        duration_s=duration,
        ttft_s=Spread.of(ttft),
        tpot_s=Spread.of(tpot[between > 0]),
        itl_s=_gaps([engine.gaps for engine in loop.engines]),
        e2e_s=Spread.of(e2e),
        requests_per_s=float(counts.sum()) * per_s,
        input_tokens_per_s=into,
        output_tokens_per_s=out,
        output_tokens_per_s_per_gpu=out / made.gpus,
        goodput=None if good is None else float(good.sum()) * per_s,
        good_share=None if good is None else float(good.mean()) if len(good) else 0.0,
        slo_met=met(slo, ttft, tpot, e2e) and not log.refused and not log.stopped if slo else None,
        preemptions=sum(engine.preemptions for engine in engines),
        prefix_hit_rate=float(np.frombuffer(log.hit, dtype=np.int64).sum() / max(prompts.sum(), 1)),
        in_system=log.in_system / span,
        utilisation=sum(e.seconds_busy * e.gpus for e in loop.engines) / span / sum(e.gpus for e in loop.engines),
        prefill_utilisation=(
            sum(e.seconds_busy for e in loop.prefill) / span / len(loop.prefill) if loop.prefill else None
        ),
        kv_tokens=made.decode.blocks * loop.engines[0].rules.block,
        kv_peak=max(lane.peak / lane.pool.total for engine in engines for lane in engine.lanes),
        transferred_bytes=getattr(loop.transfer, "sent", 0.0),
        steps=sum(engine.steps for engine in engines),
        largest_batch=max(engine.largest for engine in loop.engines),
        stopped=log.stopped,
        interrupted=log.interrupted,
        wall_s=time.perf_counter() - begun if begun is not None else 0.0,
        queue=tuple(
            Moment(time_s=s.time, waiting=s.waiting, running=s.running, kv_occupancy=s.kv) for s in log.samples
        ),
    )
    report._log, report._stream = log, work.stream
    return report


def _gaps(every: list[Gaps]) -> Spread:
    gaps = every[0].merged(every[1:])
    p = gaps.percentiles((50, 90, 95, 99, 100))
    return Spread(mean=gaps.mean(), p50=p[0], p90=p[1], p95=p[2], p99=p[3], max=p[4])


def _findings(reports: list[ReplayReport], slo: Slo | None) -> list[str]:
    """What the figures say, in sentences."""
    found = []
    for r in reports:
        if not r.feasible:
            found.append(f"{r.tag}: {r.reasons[0]}")
            continue
        if r.stopped:
            found.append(f"{r.tag}: stopped; {r.unfinished:,} requests were not answered yet")
        if r.refused:
            found.append(f"{r.tag}: {r.refused:,} requests are longer than a group's cache of {r.kv_tokens:,} tokens")
        if r.preemptions:
            found.append(f"{r.tag}: {r.preemptions:,} preemptions; the KV cache was full ({100 * r.kv_peak:.0f} %)")
        waited = max((m.waiting for m in r.queue), default=0)
        if r.queue and len(r.queue) > 8 and r.queue[-2].waiting > 0.5 * waited > 8:
            found.append(f"{r.tag}: the queue still grows at the end ({waited:,} waiting): the load is beyond capacity")
    kept = [r for r in reports if r.slo_met]
    if slo and kept:
        best = max(kept, key=lambda r: r.output_tokens_per_s_per_gpu)
        found.append(
            f"Most output per GPU within the SLO: {best.tag} ({best.output_tokens_per_s_per_gpu:,.0f} tokens/s/GPU)"
        )
    elif slo:
        found.append("No layout keeps the SLO")
    return found
