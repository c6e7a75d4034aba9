"""How a machine's devices are linked, read from what ``nvidia-smi topo -m``, ``rocm-smi --showtopo`` or ``amd-smi
topology`` print.

What a damaged paste still says is used: a cell that is lost on one side is taken from the other, and each such repair
is a warning that names the row. Where the links of a pair stay unknown, reading fails and says which rows are needed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations

from sim.errors import Problem, TopologyError
from sim.topo.pairs import Pair, agree, counted, fill_uniform, listed, nvlinks
from sim.topo.rows import BUS, GPU, SELF, UNKNOWN, Row, Table, Text, read_tables

MOST_BYTES = 2**20
MOST_DEVICES = 1024
MOST_LISTED = 8
"""Matrices of one text that an error describes."""
WHOLE = "paste all of what `nvidia-smi topo -m` prints, from the header to the legend"


@dataclass(frozen=True)
class TopoMatrix:
    """Devices of one machine and the kind of link between any two.

    ``kinds`` maps pairs, in both orders, to ``NV#``, ``PIX``, ``PXB``, ``PHB``, ``NODE``, ``SYS``, ``XGMI``,
    ``PCIE`` or ``?`` (the tool does not know). It has every pair of GPUs; pairs with a NIC may be absent. ``numa``
    is the NUMA node by device, ``names`` the adapter's name by NIC, ``hops`` what AMD's tools count.
    """

    tool: str
    line: int
    gpus: tuple[str, ...]
    nics: tuple[str, ...]
    kinds: Mapping[Pair, str]
    numa: Mapping[str, int] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    hops: Mapping[Pair, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def nvlinks(self, a: str, b: str) -> int:
        """Return how many NVLinks join two GPUs, directly or over a switch; 0 if none."""
        return nvlinks(self.kinds.get((a, b), ""))

    def summary(self) -> str:
        """Say in a few words what it holds: GPUs, NICs, and how many pairs of GPUs have which link."""
        counts = Counter(self.kinds[pair] for pair in combinations(self.gpus, 2))
        found = [counted(len(self.gpus), "GPU"), *([counted(len(self.nics), "NIC")] if self.nics else [])]
        return ", ".join([*found, *(f"{kind} {n}" for kind, n in sorted(counts.items()))])


def read_matrix(text: str, name: str = "", which: int | None = None) -> TopoMatrix:
    """Read the one matrix of a text, or its ``which``-th, counted from 1.

    Parameters
    ----------
    name
        What the text is called in errors.

    Raises
    ------
    TopologyError
        If there is none, there are several and ``which`` does not say which, or it does not say how all GPUs are
        linked; names the rows.
    """
    if len(text) > MOST_BYTES:
        raise TopologyError(Problem(f"is larger than {MOST_BYTES:,} characters; is it a matrix?", where=name))
    found = read_tables(text)
    machines = _machines(found.tables)
    if not machines:
        raise TopologyError(Problem(f"holds no rows such as 'GPU0  X  NV18'; {WHOLE}", where=name))
    if which is not None and not 1 <= which <= len(machines):
        counted = f"{len(machines)} matri{'x' if len(machines) == 1 else 'ces'}"
        raise TopologyError(Problem(f"holds {counted}, so there is no matrix {which}", where=name))
    if which is None and len(machines) > 1:
        raise TopologyError(Problem(_ask(machines, found), where=name))
    return _Reader(machines[(which or 1) - 1], found, name).read()


def _ask(machines: list[list[Table]], found: Text) -> str:
    said = []
    for i, tables in enumerate(machines[:MOST_LISTED], 1):
        try:
            what = _Reader(tables, found, "").read().summary()
        except TopologyError:
            what = "damaged"
        said.append(f"{i} on line {tables[-1].line} ({what})")
    if more := len(machines) - len(said):
        said.append(f"and {more:,} more")
    return f"holds {len(machines)} matrices: {'; '.join(said)}; choose one with --matrix 1 to {len(machines)}"


def _machines(tables: list[Table]) -> list[list[Table]]:
    """Tables by machine, that of the links last. AMD's tools print weights and hops in tables of their own."""
    machines: list[list[Table]] = []
    figures: list[Table] = []
    for table in tables:
        cells = {c for row in table.rows for c in row.cells} - {UNKNOWN, SELF}
        if not cells or not all(c.isdigit() for c in cells):
            machines.append([*figures, table])
            figures = []
        elif re.search(r"(?i)hops?", table.title):
            # rocm-smi prints the hops before the link types, amd-smi too
            figures.append(table)
    return [m for m in machines if any(c != UNKNOWN for row in m[-1].rows for c in row.cells)]


class _Reader:
    """Makes a ``TopoMatrix`` of one machine's tables."""

    def __init__(self, tables: list[Table], found: Text, name: str):
        self.table = tables[-1]
        self.figures = tables[:-1]
        self.found = found
        self.name = name
        self.warnings: list[str] = list(self.table.warnings)
        self.rows: dict[str, Row] = {}
        self.columns: list[str] = []
        self.gpus: list[str] = []
        self.nics: list[str] = []
        self.doubtful: list[Pair] = []

    def fail(self, message: str, row: Row | None = None) -> TopologyError:
        """An error at a row, or at the table."""
        line = (row or self.table).line
        return TopologyError(Problem(message, where=f"{self.name}:{line}:1" if self.name else f"line {line}"))

    def read(self) -> TopoMatrix:
        """Read the machine. Raises as ``read_matrix`` does."""
        self._labels()
        self._first_of_each()
        for row in list(self.rows.values()):
            self._check_row(row)
        kinds = self._kinds()
        return TopoMatrix(
            tool="AMD" if any(kind in ("XGMI", "PCIE") for kind in kinds.values()) else "NVIDIA",
            line=self.table.line,
            gpus=tuple(self.gpus),
            nics=tuple(self.nics),
            kinds=kinds,
            numa=self._numa(),
            names={nic: self.found.names[nic] for nic in self.nics if nic in self.found.names},
            hops=self._hops(),
            warnings=tuple(self.warnings),
        )

    # -- which devices there are

    def _labels(self) -> None:
        """GPUs and NICs, from the header, or from the rows where there is none or it was cut."""
        named = self.table.columns
        if twice := sorted({c for c in named if named.count(c) > 1}):
            raise self.fail(f"the header names {twice[0]} twice; {WHOLE}")
        widest = max(len(row.cells) for row in self.table.rows)
        self.columns = named if named and widest <= len(named) else self._inferred(named, widest)
        self.gpus = [c for c in self.columns if GPU.fullmatch(c) or BUS.fullmatch(c)]
        self.nics = [c for c in self.columns if c not in self.gpus]
        if not any(row.label in self.gpus for row in self.table.rows):
            raise self.fail(f"has no row of a GPU; {WHOLE}")
        if len(self.columns) > MOST_DEVICES:
            raise self.fail(f"has more than {MOST_DEVICES} devices; is it a matrix?")

    def _inferred(self, named: list[str], widest: int) -> list[str]:
        """GPUs are the numbers that rows begin with, and every column that holds an NVLink; the rest are NICs."""
        rows = self.table.rows
        own = [int(row.label[3:]) + 1 for row in rows if GPU.fullmatch(row.label)]
        linked = [i + 1 for row in rows for i, cell in enumerate(row.cells) if nvlinks(cell)]
        count = max([*own, *linked], default=0)
        nics = [row for row in rows if re.fullmatch(r"NIC[0-9]+", row.label) and SELF in row.cells]
        first = {row.cells.index(SELF) - int(row.label[3:]) for row in nics}
        if len(first) == 1 and min(first) >= count:
            count = min(first)
        if count > MOST_DEVICES:
            raise self.fail(f"has more than {MOST_DEVICES} devices; is it a matrix?")
        rest = max(0, widest - count)
        what = f"the header has {len(named)} columns, the rows {widest}" if named else "there is no header"
        devices = counted(count, "GPU") + f" and {counted(rest, 'NIC')}" * bool(rest)
        self.warnings.append(f"{what}; {devices} are inferred from the rows, the NVLinks and the places of X")
        return [*(f"GPU{i}" for i in range(count)), *(f"NIC{i}" for i in range(rest))]

    def _first_of_each(self) -> None:
        extra: list[str] = []
        for row in self.table.rows:
            if row.label not in self.columns:
                extra.append(row.label)
            elif row.label in self.rows:
                self.warnings.append(f"row {row.label} is there twice (line {row.line}); the first one counts")
            else:
                self.rows[row.label] = row
        if extra:
            self.warnings.append(f"rows without a column are left out: {listed(extra)}")
        for what, labels in (("GPU", self.gpus), ("NIC", self.nics)):
            missing = [label for label in labels if label not in self.rows]
            if missing and (what == "GPU" or len(missing) < len(labels) or self._nic_rows_expected()):
                self.warnings.append(f"missing row{'s' * (len(missing) > 1)} {listed(missing)}")

    def _nic_rows_expected(self) -> bool:
        return bool(self.nics) and all(gpu in self.rows for gpu in self.gpus)

    # -- rows

    def _check_row(self, row: Row) -> None:
        """Warn about damage; a row whose own X is not in its own column is not used."""
        label, cells, columns = row.label, row.cells, self.columns
        if row.glued:
            self.warnings.append(f"row {label} has cells glued together; they are split")
        if row.wrapped:
            self.warnings.append(f"row {label} is broken over several lines; they are joined")
        if len(cells) < len(columns):
            self.warnings.append(f"row {label} has {len(cells)} of {len(columns)} cells")
            if cells and nvlinks(cells[-1]) and not row.tail:
                self.doubtful.append((label, columns[len(cells) - 1]))
        index = columns.index(label)
        own = cells[index] in (SELF, "0") if index < len(cells) else SELF not in cells
        if not own or cells.count(SELF) > 1:
            place = f"stands in column {columns[cells.index(SELF)]}" if SELF in cells else "is missing"
            self.warnings.append(f"row {label} is shifted (its X {place}); it is read from the other rows")
            del self.rows[label]
        elif row.tail and self.table.columns and not self.table.affinity and not row.tail[0][0].isdigit():
            said = " ".join(row.tail)
            self.warnings.append(f"row {label} ends in words that are not read: {said[:40]!r}")

    # -- pairs

    def _kinds(self) -> dict[Pair, str]:
        seen = {
            (label, column): UNKNOWN if cell.isdigit() or cell == SELF else cell
            for label, row in self.rows.items()
            for column, cell in zip(self.columns, row.cells, strict=False)
            if column != label
        }
        kinds, warnings = agree(seen, self.doubtful, self.columns)
        whole = sum(len(self.rows[g].cells) >= len(self.gpus) for g in self.gpus if g in self.rows)
        filled = fill_uniform(kinds, self.gpus, whole)
        if filled is None:
            raise self.fail(self._needed(kinds), list(self.rows.values())[-1] if self.rows else None)
        self.warnings += [*warnings, *filled]
        dark = [f"{a}-{b}" for a, b in combinations(self.gpus, 2) if kinds[a, b] == UNKNOWN]
        if dark:
            self.warnings.append(f"the tool does not say how {listed(dark)} are linked; no direct link is assumed")
        return kinds

    def _needed(self, kinds: Mapping[Pair, str]) -> str:
        """Say what is missing for the pairs that no row tells."""
        rows = [g for g in self.gpus if g in self.rows]
        missing = [g for g in self.gpus if g not in self.rows]
        found = [f"{counted(len(self.gpus), 'GPU column')} but {counted(len(rows), 'row')}"] if missing else []
        cells = {g: len(self.rows[g].cells) for g in rows}
        found += [f"row {g} has {n} of {len(self.columns)} cells" for g, n in cells.items() if n < len(self.gpus)]
        if missing:
            found.append(f"missing row{'s' * (len(missing) > 1)} {listed(missing)}")
        unseen = [pair for pair in combinations(self.gpus, 2) if pair not in kinds]
        more = f" and {len(unseen) - 1} more pairs" if len(unseen) > 1 else ""
        return f"{'; '.join(found)}; nothing says how {' and '.join(unseen[0])}{more} are linked: {WHOLE}"

    # -- what stands beside the matrix

    def _numa(self) -> dict[str, int]:
        numa = {gpu: node for gpu, node in self.found.numa.items() if gpu in self.gpus}
        for label, row in self.rows.items():
            tail = row.tail[1:] if len(row.cells) == len(self.columns) else []
            if (self.table.affinity or not self.table.columns) and tail and re.fullmatch(r"[0-9]{1,4}", tail[0]):
                numa[label] = int(tail[0])
        return numa

    def _hops(self) -> dict[Pair, int]:
        hops: dict[Pair, int] = {}
        for table in self.figures:
            for row in table.rows:
                for column, cell in zip(table.columns, row.cells, strict=False):
                    if cell.isdigit() and len(cell) < 5 and row.label != column:
                        hops[row.label, column] = int(cell)
        return hops
