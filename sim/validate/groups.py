"""All groups of measured rows, and the validation that runs them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path

from sim.conditions import Conditions
from sim.engines import library
from sim.errors import InputError
from sim.hardware import Gpu
from sim.kernels import TABLES, Kernels, load_constants
from sim.kernels.tables import tables_folder
from sim.machine import Machine
from sim.network.constants import load_fabric_constants
from sim.run import machine
from sim.serving import ServingConstants
from sim.sweep import sweep
from sim.validate.cases import Case, constants_of
from sim.validate.csv_rows import Row, read_rows
from sim.validate.csv_rows import Rows as FileRows
from sim.validate.kernel_rows import kernel_groups
from sim.validate.latency_rows import latency_group
from sim.validate.memory_rows import memory_groups
from sim.validate.names import SHIPPED
from sim.validate.result import Group, Outcome, Validation, failed, reports
from sim.validate.serving_rows import Measured, read, serving_groups
from sim.validate.suite import priced, suite_group
from sim.validate.table_rows import both

ALONE = TABLES.model_copy(update={"quantise": 0.0})
FILES = ("suite.csv", "memory.csv", "latency.csv", "kernels.csv", "end_to_end.csv")


class Rows:
    """The measured rows of a folder, and what the simulator says of each; a file that is missing has no rows."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._read: dict[str, FileRows] = {}

    def machine(self, item: Case) -> Machine:
        """The machine of a configuration, with the constants of its engine."""
        return machine(item.gpu, item.topology, Conditions(engine=library(item.engine)))

    def serving(self, engine: str) -> ServingConstants:
        """Constants of an engine's scheduler."""
        return constants_of(engine).serving

    def kernels(self, gpu: Gpu, library: str) -> Kernels:
        """Kernels as they run alone, which is how kernels.csv measures them, on activations that are quantised."""
        return Kernels(gpu, load_constants(gpu.constants), ALONE, library, warm=True)

    def read(self, name: str) -> list[Row]:
        """The rows of a file that can be read; the others are kept for ``unreadable``."""
        if name not in self._read:
            self._read[name] = read_rows(self.folder / name)
        return self._read[name].good

    def unreadable(self) -> list[Group]:
        """Rows that cannot be read, by file."""
        return [
            Group(f"{name}: cannot be read", tuple(failed(f"{r.where}: {r.why}", r.where) for r in found.refused))
            for name, found in self._read.items()
        ]

    @cached_property
    def runs(self) -> Measured:
        """Serving runs, screened."""
        return read(self.read("end_to_end.csv"))

    @cached_property
    def memory(self) -> list[Group]:
        """Groups of memory.csv."""
        return memory_groups(self.read("memory.csv"))

    @cached_property
    def kernel(self) -> list[Group]:
        """Groups of kernels.csv."""
        return kernel_groups(
            self.folder / "kernels.csv", self.read("kernels.csv"), self.kernels, load_fabric_constants()
        )

    @cached_property
    def latency(self) -> list[Group]:
        """The group of latency.csv."""
        return [latency_group(self.read("latency.csv"), self.machine, self.serving)]

    @cached_property
    def tables(self) -> list[Group]:
        """Groups of measured kernel tables: those of the folder, or those that are installed."""
        own = self.folder / "kernel_tables"
        folder = own if own.is_dir() else tables_folder()
        return list(both(folder, load_fabric_constants())) if folder else []

    @cached_property
    def end_to_end(self) -> list[Group]:
        """Groups of end_to_end.csv."""
        return serving_groups(self.runs, self.machine, self.serving)

    @cached_property
    def suite(self) -> list[Group]:
        """The suite, from rows of the other groups."""
        known: dict[str, Outcome] = {}
        for group in (*self.memory, *self.latency, *self.kernel):
            known |= {o.row: o for o in group.outcomes if o.row not in known}
        memory = {row["row_id"]: row for row in self.read("memory.csv")}
        latency = {row["row_id"]: row for row in self.read("latency.csv")}
        return [suite_group(self.read("suite.csv"), known, memory, latency, priced(self._step))]

    def _step(self, item: Case, context: int) -> float:
        return float(sweep(item.placement, self.machine(item), 1, context).seconds[0])


GROUPS: dict[str, Callable[[Rows], list[Group]]] = {
    "suite": lambda rows: rows.suite,
    "memory": lambda rows: rows.memory,
    "latency": lambda rows: rows.latency,
    "kernels": lambda rows: rows.kernel,
    "end_to_end": lambda rows: rows.end_to_end,
    "kernel_tables": lambda rows: rows.tables,
}
"""Groups by the file that their rows stand in; another file is one more entry."""


def validate(folder: Path | None = None) -> Validation:
    """Predict every measured row.

    Parameters
    ----------
    folder
        Where the CSV files are; those that ship with the package if it is not given.

    Raises
    ------
    InputError
        If the folder has none of the files.
    """
    from sim import __version__

    folder = folder or SHIPPED
    if not any((folder / name).exists() for name in FILES):
        raise InputError(f"{folder} has none of {', '.join(FILES)}")
    rows = Rows(folder)
    groups = [group for of_file in GROUPS.values() for group in of_file(rows)] + rows.unreadable()
    return Validation(version=__version__, groups=reports(groups), screen=rows.runs.screen.counts())
