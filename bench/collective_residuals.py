"""How far measurements lie from the fitted kernels: ``sim/data/collectives/residuals.yaml``.

For every kernel and kind of link the ratio of measured to predicted time that a tenth of its rows lies below, and a
tenth above. A row counts for the kernel that the prediction takes at its size; rows that are set aside do not count.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from sim.network.collectives import CollectiveCost
from sim.network.constants import FabricConstants
from sim.validate.collective_rows import Row, collectives

LEAST = 5  # rows that say something about a tenth


def residuals(measured: Iterable[Row], constants: FabricConstants) -> dict[str, dict[str, tuple[float, float]]]:
    """Measured over predicted time at the 10th and the 90th percentile, by kernel and kind of link."""
    ratios: dict[tuple[str, str], list[float]] = defaultdict(list)
    costs: dict[tuple[object, ...], CollectiveCost] = {}
    for r in measured:
        key = (r.system, r.kind, r.ranks, r.library, r.engine, r.chosen)
        if key not in costs:
            costs[key] = collectives(r, constants).cost(r.kind, tuple(range(r.ranks)))
        used = costs[key].used(r.message)
        if used:
            ratios[used.kernel, used.link].append(r.seconds / used.seconds(r.message))
    found: dict[str, dict[str, tuple[float, float]]] = defaultdict(dict)
    for (kernel, link), values in sorted(ratios.items()):
        if len(values) >= LEAST:
            low, high = np.quantile(values, [0.1, 0.9])
            found[kernel][link] = (float(low), float(high))
    return found


def write(found: dict[str, dict[str, tuple[float, float]]], path: Path) -> None:
    lines = [
        "# Written by bench/collectives.py --fit: measured over predicted, a tenth of rows below and above, by link."
    ]
    for kernel, by_link in sorted(found.items()):
        lines.append(f"{kernel}: {{{', '.join(f'{k}: [{a:.3g}, {b:.3g}]' for k, (a, b) in by_link.items())}}}")
    path.write_text("\n".join(lines) + "\n")
