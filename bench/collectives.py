"""Collectives against published measurements: ``python bench/collectives.py --data DIR [--fit]``.

DIR holds CSV files with the columns of ``aiconfigurator-core`` (nccl_collectives, custom_allreduce,
alltoall_nvlink_trtllm, deepep_ll, deepep_normal, moe_a2a_deepep) and, beside it or above it, kernels.csv. Printed: mean
absolute percentage error and bias by table and system, the worst rows, and what cannot be predicted and why.
``--fit`` first writes ``sim/data/collectives/fitted.yaml``, from two thirds of the sizes; same bytes every time.
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
from collective_fit import fit_all, unfitted, write
from sim.validate.collective_rows import Row, predict, rows

from sim.constants_fabric import DATA, load_fabric_constants


def report(measured: list[Row], predicted: dict[Row, float]) -> None:
    groups: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    for r in measured:
        what = r.kind if "nccl" in r.table else r.library if r.table != "kernels" else ""
        groups[(r.table, r.system, what)].append(r)
    print(f"{'table':24} {'system':22} {'':18} {'rows':>5} {'error':>7} {'median':>7} {'bias':>7}  not predicted")
    for (table, system, what), members in sorted(groups.items()):
        ratios = np.array([predicted[r] / r.seconds for r in members if r in predicted])
        left = len(members) - len(ratios)
        error = np.abs(ratios - 1)
        figures = (
            f"{error.mean():7.1%} {np.median(error):7.1%} {(ratios - 1).mean():+7.1%}" if len(ratios) else " " * 23
        )
        print(f"{table:24} {system:22} {what:18} {len(ratios):5} {figures}  {left or ''}")
    worst = sorted(predicted, key=lambda r: -abs(np.log(predicted[r] / r.seconds)))
    print("\nworst rows")
    for r in worst[:5]:
        print(f"  {r.system} {r.label}: {r.seconds * 1e6:.1f} us measured, {predicted[r] * 1e6:.1f} predicted")
    print("\nnot predicted")
    for (table, why), count in sorted(Counter((r.table, r.why) for r in measured if r.why).items()):
        print(f"  {count:5} {table}: {why}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with the CSV files")
    parser.add_argument("--fit", action="store_true", help="fit the constants first")
    options = parser.parse_args()
    measured = rows(options.data)
    if options.fit:
        write(fit_all(measured, unfitted()), DATA / "collectives" / "fitted.yaml")
        load_fabric_constants.cache_clear()
    report(measured, predict(measured, load_fabric_constants()))


if __name__ == "__main__":
    main()
