"""Measured tables of kernels, as work and seconds.

Reads a folder of CSV files, or the folder of the PyPI package ``aiconfigurator-core`` (parquet files under
``systems/data/<system>/<kind>/<library>/<version>``, milliseconds; needs pyarrow). A table is turned into the same
``Work`` that a program asks for, with arrays, so what is fitted or looked up is what is priced.
"""

from __future__ import annotations

import csv
import os
import zlib
from collections.abc import Iterator
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sim.errors import not_installed
from sim.formats import FORMATS
from sim.program import Work
from sim.shapes import DecodeAttention, Gemm, GroupedGemm, LatentDecode, LatentPrefill, PrefillAttention

FOLDER = "SHARDWISE_TABLES"
"""Environment variable that names a folder of tables."""
Array = npt.NDArray[Any]
Columns = dict[str, Array]

FILES = {
    "gemm": ("gemm", "gemm/*/*/gemm_perf"),
    "decode_attention": ("decode_attention", "attention/*/*/generation_attention_perf"),
    "prefill_attention": ("prefill_attention", "attention/*/*/context_attention_perf"),
    "mla_decode": ("mla_generation", "mla/*/*/generation_mla_perf"),
    "mla_prefill": ("mla_context", "mla/*/*/context_mla_perf"),
    "experts": ("moe_compute", "moe/*/*/moe_perf"),
}
"""CSV file and files of the package by family."""
TYPES = {
    "bfloat16": "bf16",
    "float16": "bf16",
    "fp8": "fp8",
    "fp8_block": "fp8_block",
    "nvfp4": "nvfp4",
    "sq": "int8",
    "int4_wo": "int4",
    "w4a16_mxfp4": "mxfp4",
}
"""Number formats by what the tables call them; other types are not served."""
SYSTEMS = {
    "h100-sxm": "h100_sxm",
    "h200-sxm": "h200_sxm",
    "b200-sxm": "b200_sxm",
    "b300-sxm": "b300_sxm",
    "gb200": "gb200",
    "gb300": "gb300",
    "a100-sxm-80gb": "a100_sxm",
    "l40s": "l40s",
    "rtx-pro-6000": "rtx_pro_6000_server",
}
"""Names that the tables give to GPUs of the catalogue."""
LATENT, ROPE, NOPE, VALUE = 512, 64, 128, 128  # the latent attention that the tables measure, DeepSeek-V3's


class Table(NamedTuple):
    """Rows of one family, system, library, kernel and format."""

    family: str
    system: str
    library: str
    version: str
    kernel: str
    format: str
    work: Work
    """With arrays."""
    seconds: Array
    columns: Columns

    def parts(self) -> list[Table]:
        """Rows with query heads that share a KV head, and rows without: kernels may differ. At most two tables."""
        if "num_key_value_heads" not in self.columns or self.family != "decode_attention":
            return [self]
        shared = self.columns["num_heads"] > self.columns["num_key_value_heads"]
        return [self.where(rows) for rows in (shared, ~shared) if rows.any()]

    def where(self, keep: Array) -> Table:
        """Only some rows."""
        work = self.work._replace(
            shape=type(self.work.shape)(*(_some(v, keep) for v in self.work.shape)),
            **{
                name: _some(getattr(self.work, name), keep)
                for name in ("flops", "weight_bytes", "kv_bytes", "io_bytes")
            },
        )
        columns = {name: values[keep] for name, values in self.columns.items()}
        return self._replace(work=work, seconds=self.seconds[keep], columns=columns)


def _some(value: Any, keep: Array) -> Any:
    return value[keep] if isinstance(value, np.ndarray) else value


def tables_folder() -> Path | None:
    """Where tables are: the folder that the environment names, or the installed package."""
    if named := os.environ.get(FOLDER):
        return Path(named)
    spec = find_spec("aiconfigurator_core")
    return Path(next(iter(spec.submodule_search_locations))) if spec and spec.submodule_search_locations else None


def read_tables(folder: Path, family: str, system: str = "", routing: str = "") -> Iterator[Table]:
    """Tables of one family, those of the newest version of each library; only of one system or routing, if named.

    Raises
    ------
    InputError
        If parquet files are there and pyarrow is not.
    """
    csv_file = folder / f"{FILES[family][0]}.csv"
    columns = _csv(csv_file) if csv_file.exists() else _package(folder, family, system)
    if not columns:
        return
    for name, wanted in (("system", system), ("distribution", routing)):
        if wanted and name in columns:
            keep = columns[name] == wanted
            columns = {c: v[keep] for c, v in columns.items()}
    newest: dict[tuple[str, str], str] = {}
    for system, library, version in {*zip(*(columns[c] for c in ("system", "library", "version")), strict=True)}:
        key = (system, library)
        newest[key] = max(newest.get(key, version), version, key=_age)
    names = np.array(["\t".join(r) for r in zip(*(columns[c] for c in _KEYS), strict=True)])
    for name in sorted(set(names)):
        system, library, version, kernel, kind, cache = name.split("\t")
        form = TYPES.get(kind if family in ("gemm", "experts") else cache)
        if newest[system, library] != version or form is None or "nongated" in kernel:
            continue
        if family == "prefill_attention" and kind != cache:
            kernel = f"{kernel} {TYPES[kind]}"  # computes in another format than the cache has
        rows = {c: v[names == name] for c, v in columns.items() if c not in _KEYS}
        work = WORKS[family](rows, form)
        yield Table(family, system, library, version, kernel, form, work, rows["seconds"], rows)


_KEYS = ("system", "library", "version", "kernel", "type", "cache")


def _age(version: str) -> tuple[int, ...]:
    """Order of versions: numbers in turn, a release candidate before its release."""
    parts = version.replace("rc", ".-1.").replace("post", ".").split(".")
    return tuple(int(p) for p in parts if p.lstrip("-").isdigit())


def _csv(path: Path) -> Columns:
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    raw = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    return _named(raw, raw["system"], raw["backend_fw"], raw["fw_version"], raw["latency_us"].astype(float) * 1e-6)


def _package(folder: Path, family: str, system: str) -> Columns:
    found = sorted((folder / "systems" / "data").glob(f"{system or '*'}/{FILES[family][1]}.parquet"))
    if not found:
        return {}
    try:
        from pyarrow import parquet
    except ImportError:
        raise not_installed("the package's tables are Parquet files, which need pyarrow", "calibrate") from None
    parts = []
    for path in found:
        where, _, library, version, _ = path.relative_to(folder / "systems" / "data").parts
        table = parquet.read_table(path)
        raw = {name: table[name].to_numpy() for name in table.column_names}
        systems, libraries, versions = (np.full(len(raw["latency"]), text) for text in (where, library, version))
        parts.append(_named(raw, systems, libraries, versions, raw["latency"].astype(float) * 1e-3))
    shared = set.intersection(*(set(p) for p in parts))
    return {name: np.concatenate([p[name] for p in parts]) for name in sorted(shared)}


def _named(raw: Columns, system: Array, library: Array, version: Array, seconds: Array) -> Columns:
    """Columns under our names, numbers as numbers."""
    kind = next(raw[c] for c in ("gemm_dtype", "moe_dtype", "attn_dtype", "mla_dtype") if c in raw)
    cache = raw.get("kv_cache_dtype", kind)
    columns = {"system": system, "library": library, "version": version, "kernel": raw["kernel_source"]}
    columns |= {"type": kind, "cache": cache, "seconds": seconds}
    if "kv_len" in raw:
        columns["kv_len"] = raw["kv_len"].astype(int)
    elif "isl" in raw:
        columns["kv_len"] = raw["isl"].astype(int) + raw["step"].astype(int)
    wanted = ("m", "n", "k", "batch_size", "isl", "step", "num_heads", "num_key_value_heads", "head_dim", "window_size")
    experts = ("num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size")
    columns |= {name: raw[name].astype(int) for name in (*wanted, *experts) if name in raw}
    if "distribution" in raw:
        columns["distribution"] = raw["distribution"]
    return columns


def _gemm(c: Columns, form: str) -> Work:
    m, n, k = c["m"], c["n"], c["k"]
    weights = np.array([FORMATS[form].bytes(int(size)) for size in n * k])
    return Work(Gemm(m, n, k), 2.0 * m * n * k, form, weights, io_bytes=2 * m * (k + n))


def _decode(c: Columns, form: str) -> Work:
    batch, heads, keys, width = (c[x] for x in ("batch_size", "num_heads", "num_key_value_heads", "head_dim"))
    window = np.where(c["window_size"] > 0, c["window_size"], c["kv_len"])
    tokens = batch * np.minimum(c["kv_len"], window)
    size = 1 if form == "fp8" else 2
    shape = DecodeAttention(batch, heads, keys, tokens)
    return Work(
        shape, 4.0 * tokens * heads * width, form, 0, size * 2 * tokens * keys * width, 4 * batch * heads * width
    )


def _latent_decode(c: Columns, form: str) -> Work:
    batch, heads = c["batch_size"], c["num_heads"]
    tokens = batch * c["kv_len"]
    size = 1 if form == "fp8" else 2
    flops = 2.0 * tokens * heads * (2 * LATENT + ROPE)
    io = 2 * batch * heads * (2 * LATENT + ROPE)
    return Work(LatentDecode(batch, heads, 1, tokens), flops, form, 0, size * tokens * (LATENT + ROPE), io)


def _prefill(c: Columns, form: str) -> Work:
    batch, new, past = c["batch_size"], c["isl"], c["step"]
    latent = "head_dim" not in c
    heads = c["num_heads"]
    keys = heads if latent else c["num_key_value_heads"]
    width = np.full(len(batch), (NOPE + ROPE + VALUE) / 2) if latent else c["head_dim"]
    window = c["window_size"] if "window_size" in c else np.zeros(len(batch), int)
    window = np.where(window > 0, window, new + past)
    reach = np.minimum(new + past, window)  # of the last query; the first queries see past + 1, + 2, ...
    growing = np.maximum(0, np.minimum(new, window - past))
    pairs = batch * (growing * past + growing * (growing + 1) // 2 + (new - growing) * window)
    kind = LatentPrefill if latent else PrefillAttention
    shape = kind(batch, heads, keys, width, batch * new, pairs, reach)
    return Work(shape, 4.0 * pairs * heads * width, form, io_bytes=4 * batch * new * (heads + keys) * width)


def _experts(c: Columns, form: str) -> Work:
    load = np.array(
        [
            routed(int(t), int(e), int(k), int(ep), str(d))
            for t, e, k, ep, d in zip(
                *(c[x] for x in ("num_tokens", "num_experts", "topk", "moe_ep_size", "distribution")), strict=True
            )
        ]
    )
    rows, hit = load.T
    width, hidden = c["inter_size"] / c["moe_tp_size"], c["hidden_size"]
    held = c["num_experts"] / c["moe_ep_size"]
    elements = 3 * hidden * width
    weights = hit * elements * float(FORMATS[form].bits) / 8
    slots = c["num_tokens"] * c["topk"]
    shape = GroupedGemm(rows, hit, slots, hidden, width, held, c["num_experts"], c["topk"])
    return Work(shape, 2.0 * rows * elements, form, weights, 0, 2 * rows * (2 * hidden + 3 * width))


WORKS = {
    "gemm": _gemm,
    "decode_attention": _decode,
    "mla_decode": _latent_decode,
    "prefill_attention": _prefill,
    "mla_prefill": _prefill,
    "experts": _experts,
}
DRAWS = 24


@lru_cache(maxsize=100_000)
def routed(tokens: int, experts: int, choices: int, ranks: int, distribution: str) -> tuple[float, float]:
    """Rows of the fullest rank, and how many of its experts are hit, under the routing that a table names.

    ``balanced`` deals out evenly. ``power_law_a`` gives experts loads drawn from x^-a between 1 and 0.8 of the tokens,
    scaled to all choices; the table times the fullest rank. The mean of seeded draws stands for it.
    """
    held = experts // ranks
    if distribution == "balanced":
        return tokens * choices / ranks, float(min(held, max(1.0, tokens * choices / ranks)))
    power = 1 - float(distribution.split("_")[2])
    seed = np.random.default_rng(zlib.crc32(f"{tokens} {experts} {choices}".encode()))
    most = max(0.8 * tokens, 2.0) ** power
    load = ((most - 1) * seed.random((DRAWS, experts)) + 1) ** (1 / power)
    for _ in range(2):  # no expert sees a token twice
        load = np.minimum(load * (tokens * choices / load.sum(1, keepdims=True)), tokens)
    whole = np.floor(load)
    whole = whole + (seed.random(load.shape) < load - whole)
    ranked = whole.reshape(DRAWS, ranks, held)
    fullest = ranked[np.arange(DRAWS), ranked.sum(2).argmax(1)]
    return float(fullest.sum(1).mean()), float(max(1.0, (fullest > 0).sum(1).mean()))
