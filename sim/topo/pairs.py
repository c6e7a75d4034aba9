"""From the cells of a topology matrix to one kind of link per pair: sides compared, gaps filled where safe."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

from sim.topo.rows import CLOSE_TO_FAR, UNKNOWN

Pair = tuple[str, str]


def nvlinks(kind: str) -> int:
    """Return the number in ``NV#``, 0 for any other kind."""
    return int(kind[2:]) if kind.startswith("NV") else 0


def slowness(kind: str) -> tuple[int, int]:
    """Sort key of kinds: NVLink by number of links, XGMI, then PCIe from near to far."""
    if count := nvlinks(kind):
        return 0, -count
    order = ("XGMI", *CLOSE_TO_FAR, "PCIE")
    return 1, order.index(kind) if kind in order else len(order)


def listed(labels: Iterable[str], most: int = 6) -> str:
    """Write a few labels, and how many more there are."""
    every = list(labels)
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return ", ".join(every[:most]) + more


def counted(number: int, noun: str) -> str:
    """Write ``1 NIC``, ``2 NICs``."""
    return f"{number} {noun}{'s' * (number != 1)}"


def agree(
    seen: Mapping[Pair, str], doubtful: Iterable[Pair], columns: Sequence[str]
) -> tuple[dict[Pair, str], list[str]]:
    """Return one kind per pair in both orders, and warnings: what both sides say, what one says, or the slower.

    Parameters
    ----------
    seen
        What row ``a`` says of column ``b``, by ``(a, b)``.
    doubtful
        Cells that a cut may have shortened (``NV1`` of ``NV18``); used only where nothing else is said.
    """
    doubted = set(doubtful)
    kinds: dict[Pair, str] = {}
    warnings: list[str] = []
    for a, b in combinations(columns, 2):
        said = {pair: seen[pair] for pair in ((a, b), (b, a)) if pair in seen}
        sure = {pair: kind for pair, kind in said.items() if pair not in doubted}
        known = {pair: kind for pair, kind in sure.items() if kind != UNKNOWN}
        if not said:
            continue
        if len(set(known.values())) > 1:
            kind = max(known.values(), key=slowness)
            texts = [f"row {x} says {its} to {y}" for (x, y), its in known.items()]
            warnings.append(f"{', '.join(texts)}; {kind}, the slower, is used")
        elif known:
            (x, y), kind = next(iter(known.items()))
            if len(sure) > 1 and len(known) == 1:
                warnings.append(f"only row {x} says how {x} and {y} are linked: {kind}")
        elif sure:
            kind = UNKNOWN
        else:
            (x, y), kind = next(iter(said.items()))
            warnings.append(f"row {x} is cut after {kind} to {y}, and nothing else says how they are linked")
        kinds[a, b] = kinds[b, a] = kind
    return kinds, warnings


def fill_uniform(kinds: dict[Pair, str], gpus: Sequence[str], whole_rows: int) -> list[str] | None:
    """Give pairs that no row tells the kind of all the others; return warnings, or ``None`` if that is not safe.

    Safe is: every pair that is told has the same NVLink or XGMI, and at least half of the rows are whole.
    """
    pairs = list(combinations(gpus, 2))
    unseen = [pair for pair in pairs if pair not in kinds]
    if not unseen:
        return []
    told = {kinds[pair] for pair in pairs if pair in kinds}
    only = next(iter(told), UNKNOWN)
    if len(told) != 1 or not (nvlinks(only) or only == "XGMI") or 2 * whole_rows < len(gpus):
        return None
    for a, b in unseen:
        kinds[a, b] = kinds[b, a] = only
    missing = listed(f"{a}-{b}" for a, b in unseen)
    return [f"no row says how {missing} are linked; taken as {only}, as all others are"]
