"""Fits one kernel model to one table, through the code that predicts.

Constants are found by least squares of the logarithm of predicted over measured, with a loss that grows only linearly
for rows that no constant explains. Everything is deterministic: the same rows give the same digits.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import least_squares

from sim.kernels.cost import Device
from sim.kernels.decode_attention import DecodeFit, decode_attention
from sim.kernels.experts import ExpertsFit, experts
from sim.kernels.fit import Fit, Residual
from sim.kernels.gemm import GemmFit, gemm, quantise
from sim.kernels.prefill_attention import PrefillFit, prefill_attention
from sim.kernels.tables import Table
from sim.program import Work
from sim.workload import larger

FOLDS = 3
DIGITS = 3
BOUNDS = {"cache_edge": (2.0, 16.0)}
"""A cache that is too small ends hits within a few times its size: a flat edge would leave hits at any size."""
LIGHT = 0.2
"""Weight of rows that serving hardly meets (caches of less than 1,024 tokens)."""


class Family(NamedTuple):
    """How a family is fitted: its constants with the values they start from, and variants that are tried in turn."""

    fit: type[Fit]
    start: dict[str, float]
    fractions: tuple[str, ...]
    """Constants between 0 and 1."""
    variants: tuple[dict[str, Any], ...]
    starts: tuple[dict[str, float], ...] = ({},)
    """Other starting points, of which the best end is kept."""
    sizes: tuple[str, ...] = ()
    """Columns that make a size; sizes are left out together."""
    short: tuple[str, int] = ("", 0)
    """Rows below this value of this column count little, and not for the residual."""


_CACHE = {"cache_bytes": 3e7, "cache_time": 0.5, "cache_edge": 4.0}
_HALVES = (1, 2, 4, 8)
_TILES = {
    "hopper": ((64, 64), (64, 128), (128, 128), (128, 256), (256, 128)),
    "many": ((64, 64), (64, 128), (128, 64), (128, 128), (128, 192), (192, 128), (128, 256), (256, 128), (256, 256)),
}
_DECODE = {
    "launch": 8e-6,
    "compute": 0.4,
    "memory": 0.9,
    "unit": 1.3e-6,
    "head": 0.3e-6,
    "token": 3e-9,
    "merge": 0.5e-6,
    "ramp": 8e-6,
    "ramp_bytes": 5e7,
    **_CACHE,
}
FAMILIES = {
    "gemm": Family(
        GemmFit,
        {"launch": 3e-6, "compute": 0.8, "memory": 0.8, "intensity": 0.1, "wave": 1e-7, "depth": 1e-9, "partial": 1.0}
        | {"quantise": 3e-6, "quantise_row": 1e-10, "quantise_bytes": 0.5, **_CACHE},
        ("compute", "memory", "cache_time"),
        (
            {"tiles": _TILES["hopper"], "splits": _HALVES},
            {"tiles": _TILES["hopper"], "splits": (*_HALVES, 16)},
            {"tiles": _TILES["many"], "splits": _HALVES},
            {"tiles": _TILES["many"], "splits": (*_HALVES, 16)},
        ),
        ({}, {"wave": 1e-6, "intensity": 0.01, "compute": 0.7}),
        ("n", "k"),
    ),
    "decode_attention": Family(
        DecodeFit,
        _DECODE,
        ("compute", "memory", "cache_time"),
        ({"tile": 8},),
        ({}, {"ramp": 1e-6, "token": 10e-9, "merge": 5e-6, "memory": 0.8, "cache_bytes": 9e7, "cache_time": 0.3}),
        ("num_heads", "num_key_value_heads", "head_dim"),
        ("kv_len", 1024),
    ),
    "mla_decode": Family(
        DecodeFit,
        _DECODE | {"compute": 0.65, "launch": 12e-6},
        ("compute", "memory", "cache_time"),
        ({"tile": 16}, {"tile": 64}, {"tile": 128}),
        ({}, {"ramp": 5e-6, "token": 10e-9, "merge": 1e-6}),
        ("kv_len",),
    ),
    "prefill_attention": Family(
        PrefillFit,
        {"launch": 12e-6, "compute": 0.7, "score": 2e-11, "tile_start": 2e-6, "tail": 0.5, "passes": 2.0, **_CACHE},
        ("compute", "cache_time"),
        tuple(
            {"tile": tile, "block": block, "packed": packed}
            for tile, block in ((64, 64), (64, 128), (128, 128), (256, 128))
            for packed in (False, True)
        ),
        ({},),
        ("num_heads", "num_key_value_heads", "head_dim"),
    ),
    "experts": Family(
        ExpertsFit,
        {"launch": 25e-6, "compute": 0.7, "memory": 0.85, "half": 20.0, "passes": 1.5, "expert": 3e-7, "slot": 5e-10}
        | _CACHE,
        ("compute", "memory", "cache_time"),
        ({},),
        ({}, {"half": 60.0, "slot": 1e-10}),
        ("hidden_size", "inter_size", "num_experts"),
    ),
}
FAMILIES["mla_prefill"] = FAMILIES["prefill_attention"]._replace(sizes=("isl",))


def _gemm(work: Work, fit: Any, device: Device) -> Any:
    """With the quantisation that the tables time along."""
    seconds = gemm(work, fit, device).seconds
    return seconds + quantise(work.shape, fit, device) if fit.quantise or fit.quantise_row else seconds  # type: ignore[arg-type]


MODELS: dict[str, Callable[[Work, Any, Device], Any]] = {
    "gemm": _gemm,
    "decode_attention": lambda *a: decode_attention(*a).seconds,
    "mla_decode": lambda *a: decode_attention(*a).seconds,
    "prefill_attention": lambda *a: prefill_attention(*a).seconds,
    "mla_prefill": lambda *a: prefill_attention(*a).seconds,
    "experts": lambda *a: experts(*a).seconds,
}


def predict(table: Table, fit: Fit, device: Device) -> Any:
    """Seconds of every row."""
    work = table.work
    floor = larger(0 * table.seconds, (work.weight_bytes + work.kv_bytes + work.io_bytes) * 0.0)
    return MODELS[table.family](work, fit, device) + floor


def weights(table: Table) -> Any:
    """How much rows count in a fit."""
    column, least = FAMILIES[table.family].short
    return np.where(table.columns[column] < least, LIGHT, 1.0) if column else np.ones(len(table.seconds))


def errors(table: Table, fit: Fit, device: Device) -> Any:
    """Predicted over measured, less one."""
    return predict(table, fit, device) / table.seconds - 1


class _Search:
    """Least squares over the constants of one variant."""

    def __init__(self, table: Table, device: Device, base: dict[str, Any], free: dict[str, float], family: Family):
        self.table, self.device, self.base, self.family = table, device, base, family
        self.free = free

    def fit(self, values: Iterable[float]) -> Fit:
        found = dict(zip(self.free, values, strict=True))
        return self.family.fit.model_construct(**{**_defaults(self.family.fit), **self.base, **found})

    def _inside(self, name: str, x: float) -> float:
        if name in self.family.fractions:
            return float(1 / (1 + np.exp(-x)))
        low, high = BOUNDS.get(name, (1e-35, 1e30))
        return float(np.exp(np.clip(x, np.log(low), np.log(high))))

    def run(self, start: dict[str, float], rows: Any, rounds: int) -> dict[str, float]:
        x0 = []
        for name in self.free:
            value = start[name]
            inside = min(max(value, 1e-3), 1 - 1e-3)
            x0.append(np.log(inside / (1 - inside)) if name in self.family.fractions else np.log(max(value, 1e-30)))
        seconds, table = self.table.seconds[rows], self.table.where(rows)
        weight = weights(table)

        def distance(x: Any) -> Any:
            values = [self._inside(name, v) for name, v in zip(self.free, x, strict=True)]
            return weight * np.log(MODELS[table.family](table.work, self.fit(values), self.device) / seconds)

        end = least_squares(distance, x0, loss="soft_l1", f_scale=0.1, max_nfev=rounds)
        return {name: self._inside(name, v) for name, v in zip(self.free, end.x, strict=True)}


def _defaults(fit: type[Fit]) -> dict[str, Any]:
    return {name: f.default for name, f in fit.model_fields.items() if not f.is_required()}


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def fit_table(table: Table, device: Device, fixed: dict[str, Any], dropped: tuple[str, ...] = ()) -> Fit:
    """The best fit of a table over the family's variants, with its residuals.

    ``fixed`` constants stay as they are given, ``dropped`` ones at their defaults.
    """
    family = FAMILIES[table.family]
    free = {k: v for k, v in family.start.items() if k not in fixed and k not in dropped}
    everything = np.full(len(table.seconds), True)
    best: tuple[float, dict[str, Any], dict[str, float]] | None = None
    for variant in family.variants:
        for other in family.starts:
            search = _Search(table, device, {**fixed, **variant}, free, family)
            values = search.run({**family.start, **other}, everything, 25)
            fit = search.fit(values.values())
            error = round(
                float((weights(table) * np.abs(np.log(predict(table, fit, device) / table.seconds))).mean()), 5
            )
            if best is None or error < best[0]:
                best = (error, variant, values)
    assert best
    _, variant, values = best
    search = _Search(table, device, {**fixed, **variant}, free, family)
    values = search.run(values, everything, 80)
    rounded = {name: min(_rounded(v), 1.0) if name in family.fractions else _rounded(v) for name, v in values.items()}
    left_out = _left_out(table, search, values)
    names = {"library": table.library, "format": table.format, "kernel": table.kernel}
    final = family.fit.model_validate({**names, **fixed, **variant, **rounded})
    counted = table.where(weights(table) == 1)
    ratios = 1 / (errors(counted, final, device) + 1)
    low, high = np.quantile(ratios, (0.1, 0.9))
    error = float(np.abs(1 / ratios - 1).mean())
    found = Residual(rows=len(ratios), low=_rounded(low), high=_rounded(high), error=_rounded(error), held_out=left_out)
    return final.model_copy(update={"residual": found})


def _left_out(table: Table, search: _Search, values: dict[str, float]) -> float:
    """Error of sizes that were left out, each once."""
    columns = [table.columns[c] for c in search.family.sizes if c in table.columns]
    keys = [" ".join(map(str, size)) for size in zip(*columns, strict=True)]
    fold = np.array([zlib.crc32(key.encode()) % FOLDS for key in keys])
    total = count = 0.0
    for i in range(FOLDS):
        if (fold == i).all() or not (fold == i).any():
            continue
        end = search.run(values, fold != i, 12)
        out = table.where((fold == i) & (weights(table) == 1))
        count += len(out.seconds)
        total += float(np.abs(errors(out, search.fit(end.values()), search.device)).sum())
    return _rounded(total / count) if count else 0.0
