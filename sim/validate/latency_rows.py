"""Published step latencies (``latency.csv``): time per output token of layouts on many machines.

A row becomes a run of the same shape as those of ``end_to_end.csv``. ``decode`` rows are steps at a context; the others
are whole runs, whose tokens also wait for other requests' prompts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from sim.machine import Machine
from sim.serving import ServingConstants, time_per_token
from sim.validate.cases import Case
from sim.validate.result import Group, Outcome
from sim.validate.runs import Run
from sim.validate.step_times import plan, step_times

Row = dict[str, str]
SUSTAINED = 2048
"""Tokens that a run of 30 seconds generates at most."""
WEIGHTS = {"bf16": "bf16", "fp8": "fp8", "fp4": "nvfp4", "nvfp4": "nvfp4", "int4": "int4_wo", "mxfp4": "mxfp4"}
KV = {"fp8": "fp8", "bf16": "bf16", "fp8_ds_mla": "fp8_ds_mla"}


class UnusableError(ValueError):
    """Why a row cannot be predicted."""


def latency_group(
    rows: Iterable[Row], machine: Callable[[Case], Machine], serving: Callable[[str], ServingConstants]
) -> Group:
    """TPOT of every measured row; constants of the scheduler by engine."""
    rows = [row for row in rows if row["evidence"] == "measured"]
    runs: list[Run] = []
    why: dict[str, str] = {}
    for row in rows:
        try:
            runs.append(read(row))
        except UnusableError as reason:
            why[row["row_id"]] = str(reason)
    plans = plan(runs)
    times = step_times(plans, machine)
    found = {p.run.name: p for p in plans}
    outcomes = []
    for row in rows:
        name, measured = row["row_id"], _number(row["tpot_or_itl_ms"])
        text = (
            f"{row['model']} {row['gpu']} {row['engine']} tp{row['tp']} c{row['concurrency']} {row['isl']}/{row['osl']}"
        )
        predicted = None
        if name in times:
            t, run = times[name], found[name].run
            if t.batch * run.dp < (run.concurrency or 1):
                why[name] = f"{t.batch} sequences fit in the cache, more are running"
            wait = 0.0 if row["phase"] == "decode" else t.prefill
            constants = serving(run.engine)
            predicted = 1e3 * float(time_per_token(t.step, wait, t.batch, run.osl, run.lockstep, constants))
        elif name in found:
            why[name] = found[name].why
        failed = "" if predicted is not None else why[name]
        outcomes.append(Outcome(name, text, row["source_url"], measured or 0.0, predicted, "ms", failed))
    return Group("latency: time per output token", tuple(outcomes))


def _number(text: str) -> float | None:
    return float(text) if re.fullmatch(r"\d+(\.\d+)?", text) else None


def _count(row: Row, key: str, default: int | None = None) -> int:
    value = _number(row[key])
    if value is None:
        if default is None:
            raise UnusableError(f"{key} is {row[key] or 'missing'!r}, not a number")
        return default
    return max(1, round(value))


def single(row: Row) -> Run:
    """The layout of a row whose figure is a line over the context."""
    return read({**row, "isl": "1024", "osl": "128", "concurrency": "1", "tpot_or_itl_ms": "1"})


def read(row: Row) -> Run:
    """A row as a run. Raises ``UnusableError`` with the reason."""
    if _number(row["tpot_or_itl_ms"]) is None:
        raise UnusableError("the figure is not a time per output token")
    if row["spec_decode"] not in ("", "none"):
        raise UnusableError("speculative decoding with an acceptance that only the run knows")
    if not row["tp"] and not row["dp_attn"]:
        raise UnusableError("the row does not say the layout")
    sustained = row["osl"].startswith("30 s")
    isl = 1 if row["isl"] == "0" else _count(row, "isl")
    osl = SUSTAINED if sustained else _count(row, "osl")
    words = row["weights_dtype"].partition(" ")[0]
    if words not in WEIGHTS:
        raise UnusableError(f"the weights are {row['weights_dtype'] or 'not said'!r}")
    dp = _count(row, "dp_attn", 1)
    # the launcher's tp counts the ranks of all attention replicas
    tp = max(1, _count(row, "tp") // dp) if row["tp"] else 1
    engine = row["engine"].lower().replace("tensorrt-llm", "trtllm").replace("tensorrt", "trtllm").split(" ")[0]
    return Run(
        name=row["row_id"],
        engine=engine if engine in ("trtllm", "vllm", "sglang") else "any",
        version=row["engine"],
        model=row["model"],
        system=row["gpu"],
        weights=WEIGHTS[words],
        isl=isl,
        osl=osl,
        random=False,
        lockstep=False,
        tp=tp,
        dp=dp,
        moe_tp=1,
        moe_ep=_count(row, "ep", 1),
        batch=-(-_count(row, "concurrency") // dp),
        concurrency=_count(row, "concurrency"),
        ttft=0.0,
        tpot=float(row["tpot_or_itl_ms"]) / 1e3,
        measured="",
        dcp=_count(row, "cp_dcp", 1),
        kv_cache=KV.get(row["kv_dtype"], ""),
        publisher=row["source_url"],
    )
