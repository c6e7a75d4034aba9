"""The text of a topology tool, line by line: which lines are headers and rows of tables, and what their cells say.

Tolerant where pastes are damaged in known ways (colour codes with or without their escape byte, tabs, stripped or
wrapped lines, words glued by a terminal's width, markdown around them), and silent about everything that is no table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

CLOSE_TO_FAR = ("PIX", "PXB", "PHB", "NODE", "SYS")
"""PCIe between two devices: one bridge, several, a host bridge, host bridges of one NUMA node, across NUMA nodes."""
UNKNOWN = "?"
SELF = "X"

_COLOUR = re.compile(r"(?:\x1b|\^\[|\\033|\\x1b|\\e)?\[[0-9;]*[mK]")
_CELL = re.compile(r"NV[1-9][0-9]?|PIX|PXB|PHB|NODE|SYS|SOC|XGMI|PCIE|XXXX|SELF|X")
_SPELLED = {"SOC": "SYS", "SELF": SELF, "XXXX": UNKNOWN}
_NOTHING = {"N/A", "?", "??", "???", "-", "--", "ERR", "ERR!", "UNK", "UNKNOWN"}
_AMD = {"XGMI", "PCIE", UNKNOWN}
_PREFIXES = {kind[:n] for kind in (*CLOSE_TO_FAR, "XGMI", "PCIE", "NV") for n in range(1, len(kind))} | {"NV"}
GPU = re.compile(r"GPU[0-9]{1,4}")
BUS = re.compile(r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f]")
_NUMBERED = re.compile(r"(?:GPU|NIC)[0-9]{1,4}|mlx[0-9]_(?:bond_?)?[0-9]{1,3}")
_DEVICE = re.compile(r"[A-Za-z][\w.-]*[0-9]")
_TITLE = re.compile(r"(?i)\b(weight|hops?|link type|access|numa bw|cache coheren|coheran|atomics|dma|bi-directional)\b")
_LEGEND = re.compile(r"(NIC[0-9]{1,4})\s*[:=]\s*(\S+)")
_NUMA = re.compile(r"(?i)GPU\[([0-9]{1,4})\].*numa node:?\s+([0-9]{1,4})\s*$")


@dataclass
class Row:
    """One row: what it is about, its cells, the words after them, and how it was damaged."""

    line: int
    label: str
    cells: list[str]
    tail: list[str] = field(default_factory=list)
    glued: bool = False
    wrapped: bool = False
    cut_word: bool = False


@dataclass
class Table:
    """One table: the columns that its header names (none without a header), and its rows."""

    line: int
    title: str = ""
    columns: list[str] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    affinity: bool = False
    goes_on: bool = False
    """Whether it is a further block of columns of the table before."""
    warnings: list[str] = field(default_factory=list)

    def row(self, label: str) -> Row | None:
        """Return the first row of this label."""
        return next((row for row in self.rows if row.label == label), None)


@dataclass
class Text:
    """All tables of a text, the adapters' names by NIC label, and NUMA nodes by GPU label."""

    tables: list[Table] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    numa: dict[str, int] = field(default_factory=dict)


def read_tables(text: str) -> Text:
    """Find every table in a text. Raises nothing: what is no table is skipped."""
    found = Text()
    title = ""
    current: Table | None = None
    adjacent = False  # the line above is part of the table: one without a label may go on with it
    for number, words in _lines(text):
        line = " ".join(words)
        if match := _LEGEND.fullmatch(line):
            found.names.setdefault(match[1], match[2])
        elif match := _NUMA.search(line):
            found.numa.setdefault(f"GPU{match[1]}", int(match[2]))
        elif header := _header(number, words):
            if current and adjacent and not current.rows and not GPU.fullmatch(header.columns[0]):
                current.columns += header.columns
                current.affinity |= header.affinity
            else:
                header.title = title
                header.goes_on = current is not None and _goes_on(current, header)
                found.tables.append(current := header)
            adjacent = True
        elif row := _row(number, words, current):
            if current is None or (current.rows and row.label == current.rows[0].label):
                found.tables.append(current := Table(number, title))
            current.rows.append(row)
            adjacent = True
        elif not (current and adjacent and current.rows and _wrapped(current, words)):
            adjacent = False
            if line.startswith("=") or (_TITLE.search(line) and "rror" not in line and "upported" not in line):
                title = line.strip("= ")
    found.tables = [t for t in _joined(found.tables) if any(row.cells for row in t.rows)]
    return found


def _lines(text: str) -> Iterator[tuple[int, list[str]]]:
    """Lines with anything in them, numbered from 1, without colours and frames, as words."""
    for number, line in enumerate(text.splitlines(), 1):
        plain = _COLOUR.sub(" ", line).replace("|", " ").replace("\ufeff", " ").replace("\x00", "").lstrip("> \t`*")
        if words := plain.split():
            yield number, words


def _header(number: int, words: list[str]) -> Table | None:
    """Read a line as a header: device labels, then perhaps the words of the affinity columns."""
    columns: list[str] = []
    glued: list[str] = []
    rest: list[str] = []
    for i, word in enumerate(words):
        parts = [] if _cells_of(word.upper()) else _NUMBERED.findall(word)
        whole = "".join(parts) == word
        if BUS.fullmatch(word) or (columns and not parts and _names_device(word)):
            columns.append(word)
        elif parts and (whole or (word.startswith("".join(parts)) and word[len("".join(parts)) :] in ("CPU", "NUMA"))):
            columns += parts
            glued += [word] * (len(parts) > 1 or not whole)
            if not whole:
                rest = words[i:]
                break
        else:
            rest = words[i:]
            break
    gpus = [c for c in columns if GPU.fullmatch(c) or BUS.fullmatch(c)]
    ends = not rest or rest[0] in ("CPU", "NUMA", "GPU") or "ffinity" in rest[0] or len(glued) > 0
    cut = len(rest) == 1 and rest[0] in ("G", "GP", "N", "NI", "NIC", "m", "ml", "mlx")
    if (len(columns) < 2 and not (gpus and rest and ends)) or not (ends or cut):
        return None
    table = Table(number, columns=columns, affinity="affinity" in " ".join(rest).lower())
    table.warnings = [f"the header has columns glued together: {word}" for word in glued]
    return table


def _names_device(word: str) -> bool:
    return word != "GPU" and _DEVICE.fullmatch(word) is not None and not _cells_of(word.upper())


def _row(number: int, words: list[str], table: Table | None) -> Row | None:
    """Read a line as a row: a device, then cells. A device alone is a row that was cut."""
    label, *rest = words
    columns = table.columns if table else []
    if label not in columns and not _NUMBERED.fullmatch(label):
        match = _NUMBERED.match(label)
        if not match or not _cells_of(label[match.end() :].upper()):
            return None
        label, rest = match[0], [label[match.end() :], *rest]
    row = Row(number, label, [])
    _take(row, rest, len(columns))
    if not row.cells and not row.cut_word and (rest or table is None):
        return None
    return row


def _take(row: Row, words: list[str], expected: int) -> None:
    """Add the cells that ``words`` begin with; the rest is the tail. ``expected``: cells of a whole row, 0: unknown."""
    for i, word in enumerate(words):
        upper = word.upper()
        missing = len(row.cells) < expected
        if cells := _cells_of(upper):
            row.cells += cells
            row.glued |= len(cells) > 1
        elif missing and upper in _NOTHING:
            row.cells.append(UNKNOWN)
        elif missing and word.isascii() and word.isdigit() and all(c.isdigit() or c in _AMD for c in row.cells):
            row.cells.append(word)
        elif (start := _CELL.match(upper)) and re.match(r"[0-9]+[-,0-9]*$", word[start.end() :]):
            row.cells.append(_SPELLED.get(start[0], start[0]))
            row.glued = True
            row.tail = [word[start.end() :], *words[i + 1 :]]
            return
        elif upper in _PREFIXES and i == len(words) - 1:
            row.cut_word = True
        else:
            row.tail = words[i:]
            return


def _cells_of(word: str) -> list[str]:
    """Split a word into the cells it consists of; none if it does not."""
    cells = _CELL.findall(word)
    return [_SPELLED.get(c, c) for c in cells] if "".join(cells) == word else []


def _wrapped(table: Table, words: list[str]) -> bool:
    """Add a line without a label to the row above that lacks cells; says whether it did."""
    row = table.rows[-1]
    if len(row.cells) >= len(table.columns) or row.tail or not _cells_of(words[0].upper()) or words[1:2] == ["="]:
        return False
    _take(row, words, len(table.columns))
    row.wrapped = True
    return True


def _goes_on(table: Table, header: Table) -> bool:
    """Whether a header continues the table above with further GPU columns."""
    first = header.columns[0]
    return bool(table.columns and table.rows) and first not in table.columns and GPU.fullmatch(first) is not None


def _joined(tables: Iterable[Table]) -> list[Table]:
    """Put blocks of columns that belong to one table side by side."""
    whole: list[Table] = []
    for table in tables:
        if not table.goes_on:
            whole.append(table)
            continue
        first = whole[-1]
        before = len(first.columns)
        first.columns += table.columns
        for row in table.rows:
            known = first.row(row.label)
            if known is None:
                row.cells = [UNKNOWN] * before + row.cells
                first.rows.append(row)
            elif len(known.cells) == before:
                known.cells += row.cells
    return whole
