"""Points per second of a study in one process and in two, and what a point costs in memory.

python bench/study.py [STUDY] [PARTS]
"""

from __future__ import annotations

import resource
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from multiprocessing import get_context

from sim.study.definition import load_study
from sim.study.execute import work


def main() -> None:
    name = sys.argv[1] if len(sys.argv) > 1 else "qwen3_32b_32xh200"
    most = int(sys.argv[2]) if len(sys.argv) > 2 else 8
    began = time.perf_counter()
    study = load_study(name)
    parts, layouts, points = study.count()
    print(
        f"{name}: {points:,} points, {layouts:,} layouts, {parts} parts; listed in {time.perf_counter() - began:.2f} s"
    )
    chosen = list(islice(study.parts(), most))
    for workers in (1, 2):
        with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
            list(pool.map(work, [study] * workers, [chosen[0]] * workers))  # imports and caches are not counted
            began = time.perf_counter()
            rows = sum(count for _, count in pool.map(work, [study] * len(chosen), chosen))
            seconds = time.perf_counter() - began
        print(f"{workers} process{'es' * (workers > 1)}: {rows:,} points, {rows / seconds:,.0f} points/s")
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(f"largest worker: {peak:,.0f} MiB")


if __name__ == "__main__":
    main()
