"""Collectives against published measurements: ``python bench/collectives.py --data DIR [--fit]``.

DIR holds CSV files with the columns of ``aiconfigurator-core`` (nccl_collectives, custom_allreduce,
alltoall_nvlink_trtllm, deepep_ll, deepep_normal, moe_a2a_deepep) and, beside it or above it, kernels.csv. Printed: mean
absolute percentage error and bias by table and system, with and without the rows that ``collective_screen`` sets aside;
the worst rows; what cannot be predicted and why; and each target, reached or missed.
``--fit`` first writes ``sim/data/collectives/fitted.yaml``, from two thirds of the sizes; same bytes every time.
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
from collective_fit import fit_all, unfitted, write
from collective_residuals import residuals
from collective_residuals import write as write_residuals
from collective_targets import show, verdicts

from sim.network.constants import DATA, load_fabric_constants
from sim.validate.collective_rows import Row, predict, rows
from sim.validate.collective_screen import screened


def report(measured: list[Row], predicted: dict[Row, float], aside: dict[Row, str]) -> None:
    groups: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    for r in measured:
        what = r.kind if "nccl" in r.table else r.library if r.table != "kernels" else ""
        groups[(r.table, r.system, what)].append(r)
    head = f"{'rows':>5} {'error':>7} {'median':>7} {'bias':>7} {'aside':>6} {'error with':>10}  not predicted"
    print(f"{'table':24} {'system':22} {'':18} {head}")
    for (table, system, what), members in sorted(groups.items()):
        sound = errors([r for r in members if r not in aside], predicted)
        every = errors(members, predicted)
        left = len(members) - len(every)
        figures = " " * 23
        if len(sound):
            figures = f"{np.abs(sound).mean():7.1%} {np.median(np.abs(sound)):7.1%} {sound.mean():+7.1%}"
        others = f"{len(every) - len(sound):6} {np.abs(every).mean():10.1%}" if len(every) > len(sound) else " " * 17
        print(f"{table:24} {system:22} {what:18} {len(sound):5} {figures} {others}  {left or ''}".rstrip())
    worst = sorted((r for r in predicted if r not in aside), key=lambda r: -abs(np.log(predicted[r] / r.seconds)))
    print("\nworst rows")
    for r in worst[:5]:
        print(f"  {r.system} {r.label}: {r.seconds * 1e6:.1f} us measured, {predicted[r] * 1e6:.1f} predicted")
    counts("set aside", {r: why for r, why in aside.items() if r in predicted})
    counts("not predicted", {r: r.why for r in measured if r.why})


def errors(rows: list[Row], predicted: dict[Row, float]) -> np.ndarray:
    """Relative errors of those that are predicted."""
    return np.array([predicted[r] / r.seconds - 1 for r in rows if r in predicted])


def counts(title: str, reasons: dict[Row, str]) -> None:
    print(f"\n{title}")
    for (table, why), count in sorted(Counter((r.table, why) for r, why in reasons.items()).items()):
        print(f"  {count:5} {table}: {why}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with the CSV files")
    parser.add_argument("--fit", action="store_true", help="fit the constants first")
    options = parser.parse_args()
    measured = rows(options.data)
    aside = screened(measured)
    if options.fit:
        sound = [r for r in measured if r not in aside]
        write(fit_all(sound, unfitted()), DATA / "collectives" / "fitted.yaml")
        load_fabric_constants.cache_clear()
        found = residuals([r for r in sound if not r.why], load_fabric_constants())
        write_residuals(found, DATA / "collectives" / "residuals.yaml")
        load_fabric_constants.cache_clear()
    predicted = predict(measured, load_fabric_constants())
    report(measured, predicted, aside)
    show(verdicts(measured, predicted, aside))


if __name__ == "__main__":
    main()
