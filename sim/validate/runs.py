"""Measured serving runs (``end_to_end.csv``) as rows of one shape, with labels that are known to be wrong repaired.

Two properties of a harness are read from its rows. One draws lengths uniformly from 0.8 N to N (InferenceX) and is
recognised by its three pairs of lengths. One sends a whole batch and waits until all of it is answered: its requests
arrive in lockstep, so that the time to the first token grows in proportion to the load.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import isqrt
from statistics import median
from typing import NamedTuple

from sim.validate.csv_rows import LINE

RANDOM_LENGTHS = {(1024, 1024), (1024, 8192), (8192, 1024)}
"""Lengths (in, out) of the harness whose requests differ in length."""
RANDOM_MEAN = 0.9
"""Mean of a uniform draw from 0.8 N to N, over N."""
LOCKSTEP_RANGE = 8
LOCKSTEP_GROWTH = 0.5
CAMPAIGN_KEYS = 4


class Run(NamedTuple):
    """One measured run of aggregated serving. Lengths in tokens, times in seconds."""

    name: str
    engine: str
    version: str
    model: str
    system: str
    weights: str
    """Format of the weights: bf16, fp8, fp8_block, nvfp4, int4_wo."""
    isl: int
    osl: int
    random: bool
    """Whether lengths are drawn from 0.8 N to N, and not all N."""
    lockstep: bool
    """Whether requests arrive a batch at a time."""
    tp: int
    dp: int
    moe_tp: int
    moe_ep: int
    batch: int
    """Sequences per attention replica, as the file says it."""
    concurrency: int | None
    ttft: float
    tpot: float
    measured: str
    repaired: str = ""
    """Which label was wrong, and how it was read."""
    unusable: str = ""
    """Why its layout cannot be read."""
    dcp: int = 1
    """Ranks that share the tokens of the cache."""
    kv_cache: str = ""
    """Format of the cache, where the row says it."""
    publisher: str = "aiconfigurator-core 0.12.0"

    @property
    def gpus(self) -> int:
        """GPUs of the layout."""
        return self.tp * self.dp

    @property
    def lengths(self) -> tuple[float, float]:
        """Mean prompt and output lengths in tokens."""
        share = RANDOM_MEAN if self.random else 1.0
        return self.isl * share, self.osl * share

    @property
    def source(self) -> str:
        """Where it was published."""
        return f"{self.publisher}, {self.name}"


def read_runs(rows: Iterable[dict[str, str]]) -> list[Run]:
    """All runs of the file, in its order; what is wrong with one is said in it."""
    rows = list(rows)
    mixed = {_campaign(row) for row in rows if (_int(row["isl"]), _int(row["osl"])) not in RANDOM_LENGTHS}
    waits = _in_lockstep(rows)
    return [_run(row[LINE], row, _campaign(row) not in mixed, _campaign(row) in waits) for row in rows]


def _in_lockstep(rows: list[dict[str, str]]) -> set[tuple[str, ...]]:
    """Campaigns whose time to the first token grows, between least and most load, by half of what the load does."""
    series: dict[tuple[str, ...], list[tuple[float, float]]] = {}
    for row in rows:
        layout = (row["tp_size"], row["attention_dp_size"], row["moe_ep_size"], row["isl"], row["osl"])
        if row["concurrency"]:
            point = (float(row["concurrency"]), float(row["silicon_ttft_ms"]))
            series.setdefault((*_campaign(row), *layout), []).append(point)
    growth: dict[tuple[str, ...], list[float]] = {}
    for key, points in series.items():
        (low, early), (high, late) = min(points), max(points)
        if high >= LOCKSTEP_RANGE * low:
            growth.setdefault(key[:CAMPAIGN_KEYS], []).append((late / early) / (high / low))
    return {key for key, found in growth.items() if median(found) > LOCKSTEP_GROWTH}


def _campaign(row: dict[str, str]) -> tuple[str, ...]:
    """A harness measured one model with one engine on one kind of GPU, at its own lengths."""
    return row["backend"], row["backend_version"], row["model_path"], row["system"]


def _int(text: str) -> int:
    return int(float(text)) if text else 0


def _run(line: str, row: dict[str, str], random: bool, lockstep: bool) -> Run:
    tp, dp = _int(row["tp_size"]), _int(row["attention_dp_size"])
    moe_tp, moe_ep = _int(row["moe_tp_size"]) or 1, _int(row["moe_ep_size"]) or 1
    group, said = moe_tp * moe_ep, row["attention_dp_size"] != ""
    isl, osl, batch, c = (_int(row[k]) for k in ("isl", "osl", "batch_size", "concurrency"))
    repaired = unusable = ""
    tp, dp = tp or 1, dp or 1
    once = isqrt(group)
    if said and group > 1 and once * once == group == tp * dp and (moe_tp == moe_ep or tp == dp):
        # the group that the experts are spread over was counted once as tensor and once as expert parallel
        repaired = f"{once} ranks counted twice: tp {tp} dp {dp} moe_tp {moe_tp} moe_ep {moe_ep}"
        replicated = tp == 1
        tp, dp, moe_tp, moe_ep = (1, once, 1, once) if replicated else (once, 1, 1, once)
        batch = c // dp if c else batch
    elif not said and group > tp and group % tp == 0:
        dp = group // tp
        repaired = f"attention DP {dp} follows from the group of the experts"
    if group > 1 and moe_tp * moe_ep != tp * dp:
        unusable = f"moe_tp {moe_tp} x moe_ep {moe_ep} is not tp {tp} x dp {dp}"
    elif not c:
        unusable = "no concurrency"
    elif c != batch * dp:
        unusable = f"concurrency {c} is not batch {batch} x dp {dp}"
    return Run(
        name=f"row {line}",
        engine=row["backend"],
        version=row["backend_version"],
        model=row["model_path"],
        system=row["system"],
        weights=row["gemm_quant_mode"] or "bf16",
        isl=isl,
        osl=osl,
        random=random,
        lockstep=lockstep and not random,
        tp=tp,
        dp=dp,
        moe_tp=moe_tp,
        moe_ep=moe_ep,
        batch=batch,
        concurrency=c or None,
        ttft=float(row["silicon_ttft_ms"]) / 1e3,
        tpot=float(row["silicon_tpot_ms"]) / 1e3,
        measured=row["measured"],
        repaired=repaired,
        unusable=unusable,
    )
