"""From a part of a study to its rows: one pass over arrays per layout, or point by point where that is not enough."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from sim import variation
from sim.errors import InputError
from sim.placement import Placement
from sim.run import evaluate, machine
from sim.scenario import Scenario
from sim.strategy import Strategy
from sim.study.columns import FIGURES, PLACE, WORKLOAD
from sim.study.definition import Part, Study, Task
from sim.sweep import sweep
from sim.units import format_bytes, parse_count
from sim.workload import Workload

Rows = dict[str, list[Any]]
"""A column per name; ``None`` is a figure that does not exist."""


def price(study: Study, part: Part) -> Rows:
    """The rows of a part, in order. Whatever one layout raises ends in its rows' ``error``."""
    rows: Rows = {name: [] for name in (*study.columns.values(), *PLACE, *FIGURES)}
    for task in part:
        _task(study, task, rows)
    return rows


def _task(study: Study, task: Task, rows: Rows) -> None:
    lengths = _lengths(study)
    try:
        scenario = study.scenario(task.change)
        layouts = study.layouts(scenario)[task.first : task.last]
    except InputError as error:
        _add(study, task, lengths, rows, None, reason="; ".join(map(str, error.problems)))
        return
    points = _points(scenario, lengths)
    for layout in layouts:
        gpus: int | None = None
        try:
            if problems := layout.check(scenario.model, scenario.workload.phase):
                _add(study, task, points, rows, layout, reason="; ".join(map(str, problems)))
                continue
            gpus = layout.gpus(scenario.model)
            if reason := _excluded(study, scenario, layout, gpus):
                _add(study, task, points, rows, layout, gpus, reason=reason)
                continue
            one_by_one = scenario.granularity != "folded" or scenario.workload.generated or scenario.workload.ragged
            found = (_each if one_by_one or layout.replicas > 1 else _swept)(scenario, layout, gpus, points)
            _add(study, task, points, rows, layout, gpus, found)
        except InputError as error:
            _add(study, task, points, rows, layout, gpus, reason="; ".join(map(str, error.problems)))
        except Exception as error:  # one point must not stop the others
            _add(study, task, points, rows, layout, gpus, error=f"{type(error).__name__}: {error}")


def _lengths(study: Study) -> dict[str, np.ndarray[Any, Any]]:
    """What the study varies of batch, context and query tokens: a column each."""
    changes = [dict(change) for change in variation.product(study.lengths)]
    paths = [path for axis in study.lengths for path in axis.paths]
    return {WORKLOAD[path]: np.array([parse_count(c[path]) for c in changes], np.int64) for path in paths}


def _points(scenario: Scenario, lengths: Mapping[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    work = scenario.workload
    longest = max(work.context) if isinstance(work.context, tuple) else work.context
    fixed = {"batch": work.sequences.count, "context": longest, "query_tokens": work.query_tokens}
    size = max((len(column) for column in lengths.values()), default=1)
    return {name: lengths.get(name, np.full(size, value, np.int64)) for name, value in fixed.items()}


def _excluded(study: Study, scenario: Scenario, layout: Strategy, gpus: int) -> str:
    """Why a layout need not be priced, if so."""
    if gpus > scenario.topology.gpu_count:
        return f"needs {gpus} GPUs, the topology ({scenario.topology.kind}) has {scenario.topology.gpu_count}"
    known = {"gpus": gpus, "strategy": layout.kind, "layout": layout.label}
    for condition in study.conditions:
        if condition.column in known and not bool(condition.holds(known)):
            return f"does not meet {condition.text}"
    return ""


def _swept(scenario: Scenario, layout: Strategy, gpus: int, points: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of one layout at all lengths at once."""
    placement = Placement(scenario.model, layout, scenario.precision.resolve(scenario.model))
    at = machine(scenario.gpu, scenario.topology, scenario.conditions)
    work = (points["batch"], points["context"], points["query_tokens"], scenario.workload.phase)
    found = sweep(placement, at, *work, usable_memory=scenario.usable_memory)
    return _figures(scenario, gpus, points, found.seconds, found.kv_bytes, found.total_bytes, found.pieces)


def _each(scenario: Scenario, layout: Strategy, gpus: int, points: Mapping[str, Any]) -> dict[str, Any]:
    """The same, point by point: for what a pass over arrays does not see."""
    found = []
    for batch, context, query in zip(*(points[k].tolist() for k in ("batch", "context", "query_tokens")), strict=True):
        work = scenario.workload
        if not work.ragged:
            work = work.model_copy(update={"batch": batch, "context": context, "query_tokens": query})
            work = Workload.model_validate(work.model_dump())
        one = evaluate(scenario.model_copy(update={"workload": work}), layout)
        lanes = [(kind.stage, one.lane(kind.ranks[0], one.replica)) for kind in one.kinds]
        kv = max(one.placement.kv_bytes(stage, lane) for stage, lane in lanes)
        found.append((one.step().seconds, kv, one.fullest.total(one.replica), one.best.pieces))
    return _figures(scenario, gpus, points, *(np.array(column) for column in zip(*found, strict=True)))


def _figures(
    scenario: Scenario,
    gpus: int,
    points: Mapping[str, Any],
    seconds: np.ndarray[Any, Any],
    kv: np.ndarray[Any, Any],
    total: np.ndarray[Any, Any],
    pieces: np.ndarray[Any, Any],
) -> dict[str, Any]:
    capacity = scenario.gpu.memory_bytes
    fits = total <= capacity
    per_user = points["context"] if scenario.workload.phase == "prefill" else np.ones_like(points["batch"])
    need = [
        "" if ok else f"needs {format_bytes(used)} of {format_bytes(capacity)}"
        for ok, used in zip(fits.tolist(), total.tolist(), strict=True)
    ]
    return {
        "feasible": fits,
        "reason": need,
        "step_seconds": seconds,
        "tpot_seconds": seconds / per_user,
        "tokens_per_s_per_user": per_user / seconds,
        "output_tokens_per_s_per_gpu": points["batch"] / seconds / gpus,
        "kv_bytes": kv,
        "total_bytes": total,
        "pieces": pieces,
    }


def _add(
    study: Study,
    task: Task,
    points: Mapping[str, Any],
    rows: Rows,
    layout: Strategy | None,
    gpus: int | None = None,
    figures: Mapping[str, Any] | None = None,
    reason: str = "",
    error: str | None = None,
) -> None:
    """Append the rows of one layout."""
    size = max((len(column) for column in points.values()), default=1)
    columns: dict[str, Any] = {path: [_plain(value)] * size for path, value in task.change}
    columns |= {"strategy": [layout and layout.kind] * size, "layout": [layout and layout.label] * size}
    columns |= {"gpus": [gpus] * size, **points}
    columns |= {"feasible": [False] * size, "reason": [reason] * size, "error": [error] * size, **(figures or {})}
    if figures:
        named = {study.columns.get(name, name): np.asarray(column) for name, column in columns.items()}
        meets = np.ones(size, bool)
        for condition in study.conditions:
            meets &= np.broadcast_to(condition.holds(named), size)
        columns["meets"] = meets
    else:
        columns["meets"] = [False] * size
    for name, column in rows.items():
        values = columns.get(name, [None] * size)
        column.extend(values.tolist() if isinstance(values, np.ndarray) else values)


def _plain(value: Any) -> str:
    """A varied value as a cell: names and numbers as they are, anything larger as JSON."""
    return value if isinstance(value, str) else json.dumps(value)
