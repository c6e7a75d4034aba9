"""A replay as text for a terminal, as CSV and as JSONL."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from sim.render.table import WIDEST, Column, bullets, subject, table, to_text
from sim.replays.requests import Requests
from sim.replays.results import ReplayReport, ReplayResult, Spread
from sim.scenario import Scenario
from sim.units import format_seconds

_COLUMNS = (
    Column("layout", right=False),
    Column("GPUs"),
    Column("answered"),
    Column("TTFT\np50"),
    Column("TTFT\np95"),
    Column("TPOT\np50"),
    Column("TPOT\np95"),
    Column("E2E\np95"),
    Column("req/s"),
    Column("output\ntok/s"),
    Column("output\ntok/s/GPU"),
    Column("good"),
    Column("KV\npeak"),
    Column("pre-\nempted"),
    Column("busy"),
)


def render_replay(result: ReplayResult, scenario: Scenario, width: int = WIDEST, color: bool = False) -> str:
    """Return the table of layouts and what follows from it.

    Parameters
    ----------
    width
        Columns of the terminal.
    color
        Whether to write ANSI escapes.
    """
    return to_text(_parts(result, scenario), width, color)


def _parts(result: ReplayResult, scenario: Scenario) -> Iterable[RenderableType]:
    yield Text(result.scenario, style="bold")
    yield Text(" · ".join(subject(result.resolved).split(" · ")[:2]))
    assert scenario.requests
    yield Text(" · ".join(_asked(scenario.requests)))
    yield Text("")
    yield table(_COLUMNS, [[Text(cell) for cell in _cells(one)] for one in result.layouts])
    if result.findings:
        yield Text("")
        yield Text("Findings", style="bold")
        yield bullets(result.findings)


def _asked(requests: Requests) -> Iterator[str]:
    if requests.trace:
        yield f"trace {requests.trace.rpartition('/')[2]}"
    if requests.count:
        yield f"{requests.count:,} requests"
    if requests.concurrency:
        yield f"{requests.concurrency:,} at once"
    elif requests.rate:
        yield f"{requests.rate:g} a second ({requests.arrivals})"
    for name in ("input", "output"):
        if length := getattr(requests, name):
            said = length.model_dump(exclude_none=True)
            yield f"{name} " + (f"{length.constant:,}" if length.constant else str(said).strip("{}").replace("'", ""))
    if requests.turns > 1:
        yield f"{requests.turns} turns"


def _cells(r: ReplayReport) -> list[str]:
    if not r.feasible:
        return [r.tag, f"{r.gpus}", "does not fit", *[""] * (len(_COLUMNS) - 3)]
    return [
        r.tag,
        f"{r.gpus}",
        f"{r.requests:,}",
        _time(r.ttft_s, "p50"),
        _time(r.ttft_s, "p95"),
        _time(r.tpot_s, "p50"),
        _time(r.tpot_s, "p95"),
        _time(r.e2e_s, "p95"),
        f"{r.requests_per_s:.3g}",
        f"{r.output_tokens_per_s:,.0f}",
        f"{r.output_tokens_per_s_per_gpu:,.0f}",
        "–" if r.good_share is None else f"{100 * r.good_share:.3g} %",
        f"{100 * r.kv_peak:.0f} %",
        f"{r.preemptions:,}",
        f"{100 * r.utilisation:.0f} %",
    ]


def _time(spread: Spread, which: str) -> str:
    return format_seconds(getattr(spread, which)).replace(" ", "\u00a0")


def replay_json(result: ReplayResult) -> str:
    """Everything but the single requests. Seconds and bytes are in the keys' names."""
    return json.dumps(result.model_dump(mode="json"), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def replay_csv(result: ReplayResult) -> str:
    """One row per layout; keys of the JSON joined by dots."""
    return to_rows([one.model_dump(mode="json", exclude={"queue"}) for one in result.layouts])


def replay_jsonl(result: ReplayResult) -> str:
    """One line per request and layout."""
    return "".join(json.dumps(row) + "\n" for one in result.layouts for row in one.rows())


def _flat(data: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = "; ".join(map(str, value)) if isinstance(value, list) else value
    return flat


def to_rows(items: list[dict[str, Any]]) -> str:
    """CSV of nested dictionaries, with keys joined by dots; nothing for no items."""
    rows = [_flat(item) for item in items]
    text = io.StringIO()
    names = dict.fromkeys(key for row in rows for key in row)
    writer = csv.DictWriter(text, fieldnames=list(names), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
