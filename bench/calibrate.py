"""Fits the constants of kernels to measured tables: ``python bench/calibrate.py --data DIR [--write]``.

DIR is a folder of CSV files with the columns of the PyPI package ``aiconfigurator-core`` (gemm, decode_attention,
prefill_attention, mla_generation, mla_context, moe_compute), measured by anyone; without it the installed package is
read (``pip install shardwise[calibrate]``). Printed, by GPU and family: rows, rows that no GPU could have measured,
the error of the fit, that of sizes left out of it, and that of a GPU left out and predicted from its nearest relative.
``--write`` writes ``sim/data/kernels/<gpu>.yaml``; the same rows give the same bytes.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path
from typing import Any

import one_thread  # noqa: F401  before numpy

# isort: split
import numpy as np
from kernel_fit import errors, fit_table

from sim.catalog.gpus import load_gpu
from sim.formats import number_format
from sim.kernels.constants import FAMILIES, KernelConstants, constant_names
from sim.kernels.cost import Device
from sim.kernels.fit import Fit
from sim.kernels.soundness import device_of, soundness
from sim.kernels.tables import Table, read_tables, tables_folder

DATA = Path(__file__).parent.parent / "sim" / "data" / "kernels"
SYSTEMS = {
    "h100_sxm": ("h100", "h100-sxm", "h200"),
    "h200_sxm": ("h200", "h200-sxm", "h100"),
    "b200_sxm": ("b200", "b200-sxm", "gb200"),
    "gb200": ("gb200", "gb200", "b200"),
    "a100_sxm": ("a100", "a100-sxm-80gb", "h100"),
    "l40s": ("l40s", "l40s", "h100"),
    "rtx_pro_6000_server": ("rtx-pro-6000", "rtx-pro-6000", "l40s"),
}
"""Constants, data sheet and nearest relative of a system of the tables."""
LEAST_ROWS = 40
QUANTISED = ("quantise", "quantise_row", "quantise_bytes")


def calibrate(folder: Path) -> tuple[dict[str, dict[str, list[Fit]]], dict[str, list[str]]]:
    """Fits by constants' name and family, and what was refused by constants' name."""
    found: dict[str, dict[str, list[Fit]]] = defaultdict(lambda: defaultdict(list))
    refused: dict[str, list[str]] = defaultdict(list)
    tables: list[tuple[str, Table, Device]] = []
    for family in FAMILIES:
        for table in read_tables(folder, family):
            if table.system not in SYSTEMS or len(table.seconds) < LEAST_ROWS:
                continue
            name, gpu, _ = SYSTEMS[table.system]
            device = device_of(load_gpu(gpu), table.format)
            possible, why = soundness(table, device)
            table, bad = table.where(possible), int((~possible).sum())
            label = f"{family} {table.library} {table.version} {table.format} {table.kernel}"
            if bad or why:
                refused[name].append(f"{label}: {why or f'{bad} rows beat the data sheet'}")
            if why:
                print(f"{name:13}{label}: refused, {why}", flush=True)
                continue
            for part, fixed in _parts(table, found[name]):
                fit = fit_table(part, device, fixed, () if _quantised(part) else QUANTISED)
                found[name][family].append(fit)
                tables.append((name, part, device))
                r = fit.residual
                assert r
                print(
                    f"{name:13}{family:18}{table.library:7}{table.format:10}{table.kernel[:32]:33}{r.rows:6} rows"
                    f"{bad:4} bad  fitted {r.error:6.1%}  left out {r.held_out:6.1%}  {_scored(part, fit, device)}",
                    flush=True,
                )
    print("\na GPU left out, predicted with the constants of its nearest relative")
    for name, table, device in tables:
        near = next(n for c, _, n in SYSTEMS.values() if c == name)
        if fits := _same(found[near][table.family], table):
            error = np.abs(errors(table, fits[0], device)).mean()
            print(f"{name:13}{table.family:18}{table.library:7}{table.format:10}from {near:13}{error:6.1%}")
    return found, refused


def _scored(table: Table, fit: Fit, device: Device) -> str:
    """The error on the rows that targets speak of."""
    off = np.abs(errors(table, fit, device))
    if table.family == "experts":
        even = table.columns["distribution"] == "balanced"
        parts = [("balanced", even), ("skewed", ~even)]
        return ", ".join(f"{what} {off[rows].mean():.1%}" for what, rows in parts if rows.any())
    return ""


def _quantised(table: Table) -> bool:
    return table.family == "gemm" and number_format(table.format).bits < 16


def _parts(table: Table, before: dict[str, list[Fit]]) -> list[tuple[Table, dict[str, Any]]]:
    """A table in the parts that one fit each stands for, with the constants that are known already."""
    parts = table.parts()
    if len(parts) > 1 and min(len(part.seconds) for part in parts) >= LEAST_ROWS:
        return list(zip(parts, ({"shared": True}, {"shared": False}), strict=True))
    if _quantised(table):  # the launch of the product alone is that of 16 bit
        plain = [fit for fit in before["gemm"] if fit.format == "bf16"]
        plain = [fit for fit in plain if fit.library == table.library] or plain
        return [(table, {"launch": plain[0].launch})] if plain else [(table, {})]
    return [(table, {})]


def _same(fits: list[Fit], table: Table) -> list[Fit]:
    alike = [f for f in fits if (f.library, f.format, f.kernel) == (table.library, table.format, table.kernel)]
    if "num_heads" in table.columns and "num_key_value_heads" in table.columns:
        several = bool((table.columns["num_heads"] > table.columns["num_key_value_heads"]).any())
        alike = [f for f in alike if getattr(f, "shared", None) in (None, several)]
    return alike


def write(name: str, fits: dict[str, list[Fit]], refused: list[str]) -> None:
    """One file of constants."""
    _, gpu, near = next(s for s in SYSTEMS.values() if s[0] == name)
    lines = [
        f"# Constants of kernels on the {load_gpu(gpu).name}, written by bench/calibrate.py: seconds, fractions of the",
        "# data sheet; residual: rows, measured over predicted at the 10th and 90th percentile, mean absolute error of",
        "# the fit and of sizes left out of it. What each constant means stands in sim/kernels.",
        "source: measured tables of the PyPI package aiconfigurator-core 0.12.0 (Apache-2.0), CUDA-graph replay",
        f"nearest: {near}",
    ]
    lines += [f"# refused: {text}" for text in refused]
    for family in FAMILIES:
        if fits.get(family):
            lines.append(f"{family}:")
            lines += [f"  - {_flow(_plain(fit))}" for fit in fits[family]]
    text = "\n".join(lines) + "\n"
    (DATA / f"{name}.yaml").write_text(text)


def _plain(fit: Fit) -> dict[str, Any]:
    return fit.model_dump(mode="json", exclude_defaults=True)


def _flow(value: Any) -> str:
    """YAML on one line, numbers so that every YAML reader takes them for numbers."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}: {_flow(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_flow, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        text = f"{value:.3g}"
        return text.replace("e", ".0e") if "e" in text and "." not in text else text
    return str(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with CSV files, or of the package")
    parser.add_argument("--write", action="store_true", help="write sim/data/kernels")
    options = parser.parse_args()
    folder = options.data or tables_folder()
    if not folder:
        raise SystemExit("give --data DIR, or install the package: pip install -e '.[calibrate]'")
    found, refused = calibrate(folder)
    if options.write:
        for name, fits in found.items():
            write(name, fits, refused[name])
        for name in constant_names():
            KernelConstants.model_validate(_read(name))


def _read(name: str) -> Any:
    from ruamel.yaml import YAML

    return YAML(typ="safe", pure=True).load((DATA / f"{name}.yaml").read_text())


if __name__ == "__main__":
    main()
