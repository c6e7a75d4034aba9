"""A plan as text for a terminal, as JSON and as CSV."""

from __future__ import annotations

import json
from collections.abc import Iterable

from rich.console import RenderableType
from rich.text import Text

from sim.planner.result import Deployment, PlanResult
from sim.render.replay import to_rows
from sim.render.table import WIDEST, Column, bullets, subject, table, to_text
from sim.units import format_seconds

_COLUMNS = (
    Column("deployment", wraps=True, right=False),
    Column("GPUs"),
    Column("TTFT\np95"),
    Column("TPOT\np95"),
    Column("output\ntok/s/GPU"),
    Column("good"),
    Column("largest\nbatch"),
    Column("holds\nat rate"),
    Column("cost\n/hour"),
    Column("cost/1M\noutput"),
)


def render_plan(result: PlanResult, width: int = WIDEST, color: bool = False) -> str:
    """Return the deployments, cheapest first, and what the search has passed over and why.

    Parameters
    ----------
    width
        Columns of the terminal.
    color
        Whether to write ANSI escapes.
    """
    return to_text(_parts(result), width, color)


def _parts(result: PlanResult) -> Iterable[RenderableType]:
    yield Text(result.scenario, style="bold")
    yield Text(" · ".join(subject(result.resolved).split(" · ")[:2]))
    yield Text("")
    if result.deployments:
        yield table(_COLUMNS, [[Text(cell) for cell in _cells(one)] for one in result.deployments])
    else:
        yield Text("No deployment keeps the SLO", style="bold")
    yield Text("")
    yield bullets([*_findings(result)])


def _cells(d: Deployment) -> list[str]:
    r = d.replay
    costs = (d.cost_per_hour, d.cost_per_million_output_tokens)
    return [
        d.tag,
        f"{d.gpus}",
        format_seconds(r.ttft_s.p95).replace(" ", "\u00a0"),
        format_seconds(r.tpot_s.p95).replace(" ", "\u00a0"),
        f"{r.output_tokens_per_s_per_gpu:,.0f}",
        f"{100 * (r.good_share or 0):.3g}\u00a0%",
        f"{d.largest_batch:,}",
        f"{d.headroom:g}x",
        *("–" if cost is None else f"{cost:,.2f}" for cost in costs),
    ]


def _findings(result: PlanResult) -> Iterable[str]:
    for d in result.deployments:
        yield f"{d.tag}: at twice the rate breaks {d.breaks_first}"
    passed = f"{result.ruled_out:,} of {result.considered:,} deployments ruled out without a replay"
    yield f"{passed}; {result.replayed:,} replays"
    yield from result.reasons[:8]
    if not result.complete:
        yield "stopped: deployments that are not shown may cost less"


def plan_json(result: PlanResult) -> str:
    """Everything, with the replay of each deployment."""
    return json.dumps(result.model_dump(mode="json"), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def plan_csv(result: PlanResult) -> str:
    """One row per deployment."""
    return to_rows([one.model_dump(mode="json", exclude={"replay": {"queue"}}) for one in result.deployments])
