"""Kernels as measured: times from tables where they cover a shape, the fitted model where they do not.

What is interpolated is not the time but its ratio to the fitted model, log-linearly between the measured shapes around
a point. On a measured shape that is the measurement, but for what a benchmark that repeats one call finds in the cache;
between two of them the model's staircases and bounds stay, and what an engine makes of kernels applies alike. Outside
of what was measured the ratio would be a guess, so there the model stands alone and is counted.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator
from math import exp, log
from pathlib import Path
from typing import Any

import numpy as np

from sim.errors import InputError, not_installed
from sim.explain import show
from sim.hardware import Gpu
from sim.kernels.constants import TABLES, EngineConstants, KernelConstants
from sim.kernels.cost import Cost
from sim.kernels.fit import Fit
from sim.kernels.pricing import IN_ENGINE, LIBRARIES, Kernels
from sim.kernels.tables import FOLDER, SYSTEMS, Table, read_tables, tables_folder
from sim.program import Work
from sim.shapes import DecodeAttention, Gemm, GroupedGemm, PrefillAttention

Point = tuple[tuple[float, ...], tuple[float, ...]]
"""What has to be equal, and what is interpolated between: positive numbers."""
Grid = dict[float, Any]
"""Values by the first coordinate, each again by the next, at last the logarithm of a ratio."""


def _gemm(work: Work) -> Iterator[Any]:
    m, n, k, count = work.shape  # type: ignore[misc]
    yield (count,)
    yield (n, k, m)


def _decode(work: Work) -> Iterator[Any]:
    s: Any = work.shape
    width = work.flops / (2 * s.tokens * s.query_heads * s.queries)
    shared = s.query_heads * s.queries / s.kv_heads
    latent = s.query_heads if work.family == "mla_decode" else 1  # interpolated: one latent serves any number of heads
    yield (width, shared / latent)
    yield (latent, s.sequences * s.kv_heads, s.tokens / s.sequences)


def _prefill(work: Work) -> Iterator[Any]:
    s: Any = work.shape
    length = s.rows / s.sequences
    whole = s.sequences * length * (length + 1) / 2
    yield (s.width, s.query_heads / s.kv_heads, s.pairs / whole)  # the last is 1 without a window and a prefix
    yield (s.query_heads, s.sequences, length)


def _experts(work: Work) -> Iterator[Any]:
    s: Any = work.shape
    yield (s.hidden, s.width, s.experts, s.held, s.choices)
    yield (s.rows,)


PLACES: dict[type, Callable[[Work], Iterator[Any]]] = {
    Gemm: _gemm,
    DecodeAttention: _decode,
    PrefillAttention: _prefill,
    GroupedGemm: _experts,
}


def points(work: Work) -> list[Point]:
    """Where the shapes of some work lie among the tables', one point per entry of its arrays."""
    place = next(p for kind, p in PLACES.items() if isinstance(work.shape, kind))
    equal, between = place(work)
    columns = np.broadcast_arrays(*(np.asarray(x, float) for x in (*equal, *between)))
    rows = np.stack([c.ravel() for c in columns], 1).tolist()
    cut = len(equal)
    return [(tuple(round(x, 9) for x in row[:cut]), tuple(row[cut:])) for row in rows]


def interpolate(grid: Grid | float, at: tuple[float, ...]) -> float | None:
    """Value at a point, linear in the logarithm of each coordinate in turn; ``None`` outside."""
    if not isinstance(grid, dict):
        return grid
    x, *rest = at
    if x in grid:
        return interpolate(grid[x], tuple(rest))
    known = sorted(grid)
    right = bisect_left(known, x)
    if right in (0, len(known)):
        return None
    low, high = known[right - 1], known[right]
    left_value, right_value = (interpolate(grid[v], tuple(rest)) for v in (low, high))
    if left_value is None or right_value is None:
        return None
    share = (log(x) - log(low)) / (log(high) - log(low))
    return left_value + share * (right_value - left_value)


class MeasuredKernels(Kernels):
    """Prices operations by measured tables, and by the fitted model where these end.

    Parameters
    ----------
    folder
        Tables as ``sim.kernels.tables`` reads them; without it, those that ``tables_folder`` finds.

    Raises
    ------
    InputError
        If there are no tables.
    """

    def __init__(
        self,
        gpu: Gpu,
        constants: KernelConstants,
        engine: EngineConstants = TABLES,
        library: str = LIBRARIES[0],
        folder: Path | None = None,
    ):
        super().__init__(gpu, constants, engine, library)
        found = folder or tables_folder()
        if found is None:
            what = f"measured kernels need tables: a folder that {FOLDER} names, or the public ones"
            raise not_installed(what, "calibrate")
        if not found.is_dir():
            raise InputError(f"measured kernels need tables: there is no folder {show(str(found))} (see {FOLDER})")
        self.folder = found
        self.looked_up: Counter[str] = Counter()
        """Shapes by family that tables covered."""
        self.modelled: Counter[str] = Counter()
        """Shapes by family that they did not."""
        self._alone = Kernels(gpu, constants, TABLES, library, warm=True)
        self._grids: dict[tuple[str, ...], dict[tuple[float, ...], Grid]] = {}

    def notes(self) -> list[str]:
        """What tables did not cover, a line per family."""
        return super().notes() + [
            f"{family.replace('_', ' ')}: {count} of {count + self.looked_up[family]} shapes are not in the measured "
            "tables and come from the fitted model"
            for family, count in sorted(self.modelled.items())
        ]

    def _price(self, work: Work) -> Cost:
        cost = super()._price(work)
        if work.family in (*IN_ENGINE, "host"):
            return cost
        grids = self._tables(work.family, self.fits(work.family, work.format)[0][0])
        ratios = [interpolate(grids[equal], at) if equal in grids else None for equal, at in points(work)]
        hits = sum(r is not None for r in ratios)
        self.looked_up += Counter({work.family: hits})  # adding counters keeps no zeros
        self.modelled += Counter({work.family: len(ratios) - hits})
        times = np.array([1.0 if r is None else exp(r) for r in ratios])
        shape = np.shape(cost.seconds)
        by: Any = times.reshape(shape) if shape else float(times[0])
        return cost._replace(
            seconds=cost.seconds * by, fixed=cost.fixed * by, compute=cost.compute * by, memory=cost.memory * by
        )

    def _tables(self, family: str, fit: Fit) -> dict[tuple[float, ...], Grid]:
        """Logarithms of measured over modelled, by what has to be equal and then by coordinates."""
        key = (family, fit.library, fit.format, fit.kernel)
        if key not in self._grids:
            grids: dict[tuple[float, ...], Grid] = {}
            system = SYSTEMS.get(self.gpu.name, "")
            for table in read_tables(self.folder, family, system, "balanced") if system else ():
                if (family, table.library, table.format, table.kernel) == key:
                    for part in table.parts():
                        self._add(grids, part)
            self._grids[key] = grids
        return self._grids[key]

    def _add(self, grids: dict[tuple[float, ...], Grid], table: Table) -> None:
        """Put a table into the grids."""
        shape = table.seconds.shape
        modelled = np.broadcast_to(self._alone.cost(table.work).seconds, shape)
        for (equal, at), ratio in zip(points(table.work), np.log(table.seconds / modelled).tolist(), strict=True):
            grid: Grid = grids.setdefault(equal, {})
            for x in at[:-1]:
                grid = grid.setdefault(x, {})
            grid.setdefault(at[-1], ratio)
