"""Measured kernel tables against the kernel models, each table against the fit of its own kernel.

The fits were made from such tables, so their errors are in sample on the public ones; on tables of one's own they are
not. Rows that no GPU can have measured count as failures.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from sim.catalog.gpus import load_gpu
from sim.hardware import Gpu
from sim.kernels import TABLES, Kernels, load_constants
from sim.kernels.constants import FAMILIES
from sim.kernels.fit import Fit
from sim.kernels.soundness import device_of, soundness
from sim.kernels.tables import SYSTEMS, Table, read_tables
from sim.network.constants import FabricConstants
from sim.validate.collective_rows import predict, rows
from sim.validate.collective_screen import screened
from sim.validate.result import Group, Outcome

LONG = 1024
"""Cached tokens from which decode attention counts; shorter caches are mostly launch time and a group of their own."""
SIZES = (
    "m",
    "n",
    "k",
    "batch_size",
    "isl",
    "step",
    "kv_len",
    "num_heads",
    "num_key_value_heads",
    "head_dim",
    "window_size",
    "num_tokens",
    "hidden_size",
    "inter_size",
    "topk",
    "num_experts",
    "moe_tp_size",
    "moe_ep_size",
)


def table_groups(folder: Path) -> list[Group]:
    """Kernels by family, format or routing, and GPU."""
    gpus = {system: name for name, system in SYSTEMS.items()}
    found: dict[str, list[Outcome]] = defaultdict(list)
    for family in FAMILIES:
        for table in read_tables(folder, family):
            if table.system in gpus:
                gpu = load_gpu(gpus[table.system])
                for part, label in _parts(table):
                    found[f"table: {label}, {gpu.name}"] += _outcomes(part, gpu)
    return [Group(name, tuple(outcomes)) for name, outcomes in sorted(found.items())]


def _parts(table: Table) -> Iterator[tuple[Table, str]]:
    """A table in the parts that figures are given for."""
    name = table.family.replace("_", " ")
    if table.family == "gemm":
        yield table, f"GEMM {table.format}"
    elif table.family == "experts":
        even = table.columns["distribution"] == "balanced"
        yield from _some(table, even, "experts, balanced routing", "experts, skewed routing")
    elif table.family == "decode_attention":
        for part in table.parts():
            long = part.columns["kv_len"] >= LONG
            yield from _some(part, long, f"{name} from {LONG:,} tokens", f"{name} below {LONG:,} tokens")
    else:
        yield table, name


def _some(table: Table, which: np.ndarray, yes: str, no: str) -> Iterator[tuple[Table, str]]:
    for keep, label in ((which, yes), (~which, no)):
        if keep.any():
            yield table.where(keep), label


def _outcomes(table: Table, gpu: Gpu) -> Iterator[Outcome]:
    constants = load_constants(gpu.constants)
    fits = tuple(fit for fit in constants.fits(table.family) if _same(fit, table))
    sound = soundness(table, device_of(gpu, table.format))
    why = sound.why or ("" if fits else f"no {table.family} was fitted for {table.library} {table.kernel}")
    predicted = np.zeros(len(table.seconds))
    if not why:
        own = constants.model_copy(update={table.family: fits})
        kernels = Kernels(gpu, own, TABLES, table.library, warm=True)
        predicted = predicted + kernels.cost(table.work).seconds
    source = f"{table.library} {table.version} {table.format} {table.kernel}"
    columns = {name: table.columns[name].tolist() for name in SIZES if name in table.columns}
    for i, (seconds, guess, possible) in enumerate(
        zip(table.seconds.tolist(), predicted.tolist(), sound.possible.tolist(), strict=True)
    ):
        reason = why or ("" if possible else "faster than the data sheet allows")
        text = " ".join(f"{name} {values[i]}" for name, values in columns.items())
        yield Outcome(table.family, text, source, 1e6 * seconds, None if reason else 1e6 * guess, "us", reason)


def _same(fit: Fit, table: Table) -> bool:
    return (fit.library, fit.format, fit.kernel) == (table.library, table.format, table.kernel)


def collective_groups(folder: Path, constants: FabricConstants) -> list[Group]:
    """Collectives and exchanges by table and system; rows that cannot be sound are failures."""
    measured = [row for row in rows(folder) if row.table != "kernels"]
    aside = screened(measured)
    predicted = predict(measured, constants)
    found: dict[str, list[Outcome]] = defaultdict(list)
    for row in measured:
        seconds = predicted.get(row)
        why = row.why or aside.get(row, "")
        value = None if why or seconds is None else 1e6 * float(seconds)
        name = f"table: {row.table}, {row.system}"
        found[name].append(Outcome(row.table, row.label, row.library, 1e6 * row.seconds, value, "us", why))
    return [Group(name, tuple(outcomes)) for name, outcomes in sorted(found.items())]


def both(folder: Path, constants: FabricConstants) -> Iterable[Group]:
    """Groups of all tables of a folder."""
    return [*table_groups(folder), *collective_groups(folder, constants)]
