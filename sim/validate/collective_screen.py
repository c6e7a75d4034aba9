"""Measured rows of collectives that cannot be sound, told from the rows alone and never from a prediction.

A row that is set aside is still predicted, and the benchmark prints its error with and without such rows.
"""

from __future__ import annotations

from collections import defaultdict
from math import inf
from statistics import median

from sim.validate.collective_rows import Row

JITTER = 1.25
"""A message that took so many times as long as a longer one of its series met something else than its kernel."""
LONG = 16 * 2**20
"""Bytes from which every library is bound by the links, so that campaigns on one kind of machine can be compared."""
FACTOR = 2.0
"""Engines fall back on NCCL, so on long messages they cannot be so much slower over the same links, nor faster."""
NOISE = "slower than a longer message of its own series"
CAMPAIGN = "of a campaign whose long messages are more than twice off NCCL's on the same system: not the same links"


def jitter(rows: list[Row]) -> set[Row]:
    """Rows that took ``JITTER`` times as long as a longer message of the same series."""
    series: dict[tuple[str, str, str, int, str], list[Row]] = defaultdict(list)
    for r in rows:
        if r.series and not r.why:
            series[(r.table, r.system, r.kind, r.ranks, r.series)].append(r)
    found = set()
    for members in series.values():
        least = inf
        for r in sorted(members, key=lambda r: -r.message):
            if r.seconds > JITTER * least:
                found.add(r)
            least = min(least, r.seconds)
    return found


def campaigns(rows: list[Row]) -> set[tuple[str, str]]:
    """(system, campaign) of which most long messages of some number of ranks are off NCCL's by ``FACTOR``."""
    alone: dict[tuple[str, str, int, float], list[float]] = defaultdict(list)
    for r in rows:
        if r.table == "nccl_collectives" and not r.why:
            alone[(r.system, r.kind, r.ranks, r.message)].append(r.seconds)
    off: dict[tuple[str, str, int], list[bool]] = defaultdict(list)
    for r in rows:
        same = alone.get((r.system, r.kind, r.ranks, r.message))
        if r.campaign and not r.why and r.message >= LONG and same:
            off[(r.system, r.campaign, r.ranks)].append(not 1 / FACTOR < r.seconds / median(same) < FACTOR)
    return {key[:2] for key, flags in off.items() if 2 * sum(flags) > len(flags)}


def screened(rows: list[Row]) -> dict[Row, str]:
    """Rows set aside, and by which rule."""
    lost = campaigns(rows)
    aside = {r: CAMPAIGN for r in rows if not r.why and (r.system, r.campaign) in lost}
    return {**dict.fromkeys(jitter(rows), NOISE), **aside}
