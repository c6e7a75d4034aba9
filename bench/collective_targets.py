"""What collectives are held to, and whether it is reached: printed last by ``bench/collectives.py``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np

from sim.catalog.gpus import load_gpu
from sim.catalog.topologies import parse_topology
from sim.network.collectives import Collectives
from sim.network.constants import load_fabric_constants
from sim.validate.collective_rows import Row


class Target(NamedTuple):
    """Mean absolute error of each group of rows, at most ``limit``; ``group`` names a row's group, or ``None``."""

    what: str
    limit: float
    group: Callable[[Row], str | None]


class Verdict(NamedTuple):
    """Groups reached and missed, each with its figure, and those of which no row is sound."""

    what: str
    reached: tuple[str, ...]
    missed: tuple[str, ...]
    unsound: tuple[str, ...] = ()


def _all_reduce(r: Row) -> str | None:
    one_tray = not r.system.startswith("gb") or r.ranks <= 4
    return f"{r.system} {r.library}" if r.table == "custom_allreduce" and one_tray else None


def _beyond(r: Row) -> str | None:
    far = r.system.startswith("gb") and r.ranks > 4
    return f"{r.system} {r.library} {r.ranks} GPUs" if r.table == "custom_allreduce" and far else None


def _experts(r: Row) -> str | None:
    return r.library.removesuffix("_fp4") if r.table == "alltoall_nvlink_trtllm" else None


TARGETS = (
    Target("NCCL inside one box", 0.10, lambda r: f"{r.system} {r.kind}" if r.table == "nccl_collectives" else None),
    Target("custom all-reduce inside one box", 0.10, _all_reduce),
    Target("all-reduce across the trays of an NVL72", 0.10, _beyond),
    Target("expert all-to-all on NVL72", 0.05, _experts),
    Target(
        "DeepEP low latency across nodes",
        0.05,
        lambda r: f"{r.system} {r.kind}" if r.table == "deepep_ll" and " x" in r.system else None,
    ),
)
SWITCH = {"h200-sxm": (473e9, 367e9), "b200-sxm": (838e9, 680e9)}
"""Bus bandwidth of 8 GPUs at 8 GiB with reduction in the switch and without (nccl-tests)."""
CLOSE = 0.03


def verdicts(rows: Iterable[Row], predicted: dict[Row, float], aside: dict[Row, str]) -> Iterator[Verdict]:
    """Judge every target on the sound rows that are predicted."""
    judged = [r for r in rows if r in predicted]
    for target in TARGETS:
        groups: dict[str, list[float]] = defaultdict(list)
        for r in judged:
            if (name := target.group(r)) is not None:
                groups[name] += [] if r in aside else [abs(predicted[r] / r.seconds - 1)]
        means = {name: float(np.mean(errors)) for name, errors in sorted(groups.items()) if errors}
        said = {name: f"{name} {mean:.1%}" for name, mean in means.items()}
        yield Verdict(
            f"{target.what}, at most {target.limit:.0%}",
            tuple(said[name] for name, mean in means.items() if mean <= target.limit),
            tuple(said[name] for name, mean in means.items() if mean > target.limit),
            tuple(sorted(set(groups) - set(means))),
        )
    yield in_the_switch()


def in_the_switch() -> Verdict:
    """Bus bandwidth of a long all-reduce, forced into the switch and around a ring."""
    reached, missed = [], []
    for name, wanted in SWITCH.items():
        gpu = load_gpu(name)
        fabric = parse_topology("hgx-8").build(gpu)
        for algorithm, measured in zip(("in_switch", "ring"), wanted, strict=True):
            machine = Collectives(fabric, gpu, load_fabric_constants(), forced={"all_reduce": algorithm})
            bus = 2 * 7 / 8 * 2**33 / machine.seconds("all_reduce", tuple(range(8)), 2.0**33)
            text = f"{name} {algorithm} {bus / 1e9:.0f} GB/s ({measured / 1e9:.0f} measured)"
            (reached if abs(bus / measured - 1) <= CLOSE else missed).append(text)
    return Verdict(f"reduction in the switch shows, within {CLOSE:.0%}", tuple(reached), tuple(missed))


def show(found: Iterable[Verdict]) -> None:
    print("\ntargets (rows set aside left out)")
    for v in found:
        groups = len(v.reached) + len(v.missed)
        print(f"  {'missed ' if v.missed else 'reached'} {v.what}: {len(v.reached)} of {groups}")
        for text in v.missed:
            print(f"          missed  {text}")
        for text in v.unsound:
            print(f"          no row is sound  {text}")
        for text in () if v.missed else v.reached:
            print(f"                  {text}")
