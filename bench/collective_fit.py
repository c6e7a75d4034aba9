"""Fits the kernels of ``sim/data/collectives.yaml`` to measurements, through the code that predicts.

Two thirds of the sizes are fitted, one third is held out; the descent is deterministic, so the same rows give
the same bytes.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sim import selection
from sim.network.constants import DATA, FabricConstants, Fit, Kernel, read_constants, relatives
from sim.validate.collective_rows import Row, collectives


class Job(NamedTuple):
    """Kernels of one kind of link that are fitted together, and where their numbers start from."""

    link: str
    systems: tuple[str, ...]
    table: str
    libraries: tuple[str, ...]
    kinds: tuple[str, ...]
    start: dict[str, Fit]
    least: int = 2
    """Ranks of the smallest group that counts."""
    fixed: tuple[tuple[str, str], ...] = ()
    """(kernel, field) that stay as they start."""
    engines: tuple[str, ...] = ()
    """Whose rows count in ``custom_allreduce``."""
    most: int = 72
    """Ranks of the largest group that counts."""


def _start(launch: float, step: float, efficiency: float, own: float, cap: float | None, source: str) -> Fit:
    return Fit(launch, step, efficiency, own, 0.0, cap, source)


RINGS = {
    "nccl_ll": _start(5e-6, 1e-6, 0.2, 0.0, 5e4, "nccl"),
    "nccl_ll128": _start(8e-6, 1e-6, 0.3, 0.0, 1e6, "nccl"),
    "nccl_simple": _start(2e-5, 1e-6, 0.82, 5e-13, None, "nccl"),
}
P2P = {
    "nccl_p2p_ll": _start(7e-6, 1e-7, 0.1, 0.0, 1.7e4, "nccl"),
    "nccl_p2p_simple": _start(1.5e-5, 1e-7, 0.5, 5e-13, None, "nccl"),
    "nccl_p2p_wide": _start(3e-5, 1e-7, 0.75, 5e-13, None, "nccl"),
}


LONG = {"nvlink4": (0.817, 0.676), "nvlink5": (0.757, 0.603)}
"""Efficiency of long all-reduces on 8 GPUs in nccl-tests, ring and in the switch: 367 and 473 of 450 GB/s on H200,
680 and 838 of 900 on B200, as bus bandwidth, and a little that a ring loses to its own copies."""


def _two(library: str, source: str, own: float = 1e-13, step: float = 1e-7) -> dict[str, Fit]:
    start = _start(1.5e-5 - 3 * step, step, 0.6, own, None, source)
    return {f"{library}_dispatch": start, f"{library}_combine": start}


def _shots(engine: str) -> dict[str, Fit]:
    shots = {f"{engine}_one_shot": _start(3e-6, 1e-7, 0.5, 1e-12, None, "custom")}
    return shots | {f"{engine}_two_shot": _start(5e-6, 1e-7, 0.5, 1e-12, None, "custom")}


RING_KINDS = ("all_reduce", "all_gather", "reduce_scatter")
BOXES = {
    "nvlink3": ("a100_sxm",),
    "nvlink4": ("h100_sxm", "h200_sxm"),
    "nvlink5": ("b200_sxm", "gb200", "gb300"),
    "pcie4": ("l40s",),
    "pcie": ("rtx_pro_6000_server",),
}
MULTICAST = {
    "trtllm_multicast_one_shot": _start(4.3e-6, 0.0, 0.5, 0.0, None, "custom"),
    "trtllm_multicast_two_shot": _start(5e-6, 0.0, 0.5, 0.0, None, "custom"),
}
SYMMETRIC = {"vllm_symmetric": _start(1.3e-5, 0.0, 0.45, 0.0, None, "custom")}
IN_THE_SWITCH = tuple(("vllm_symmetric", field) for field in ("step", "own"))  # no rank adds, none waits for its turn
MORE = {("nvlink5", "trtllm"): MULTICAST, ("nvlink5", "vllm"): SYMMETRIC, ("nvlink4", "vllm"): SYMMETRIC}


CUSTOM = "custom_allreduce"
WRAPPERS = tuple(f"{engine}_deepep_{mode}" for engine in ("trtllm", "vllm") for mode in ("ht", "ll"))


def jobs() -> Iterator[Job]:
    table = "nccl_collectives"
    for link, systems in BOXES.items():
        if link in LONG:
            ring, switch = LONG[link]
            rings = RINGS | {"nccl_simple": RINGS["nccl_simple"]._replace(efficiency=ring)}
            nvls = {"nccl_nvls": _start(1e-5, 1e-5, switch, 0.0, None, "nccl_tests")}
            still = tuple(("nccl_nvls", field) for field in Fit._fields if field != "step")
            yield Job(link, systems, table, ("nccl",), RING_KINDS, rings, 2, (("nccl_simple", "efficiency"),))
            yield Job(link, systems, table, ("nccl",), ("all_reduce",), nvls, 8, still)
        else:
            yield Job(link, systems, table, ("nccl",), RING_KINDS, RINGS)
        yield Job(link, systems, table, ("nccl",), ("all_to_all",), P2P)
        if link.startswith("nvlink"):
            for engine in ("trtllm", "vllm", "sglang"):
                if not (link == "nvlink3" and engine == "sglang"):
                    more = MORE.get((link, engine), {})
                    kernels = _shots(engine) | more
                    libraries, engines = ("nccl", engine), (engine,)
                    if engine == "vllm":
                        engines = ("vllm", "vllm-0.18", "sglang-0.5.11")
                    yield Job(link, systems, CUSTOM, libraries, ("all_reduce",), kernels, 2, IN_THE_SWITCH, engines)
        else:  # peers reach each other's memory in pairs only
            pair = {"pair_one_shot": _start(3e-6, 1e-7, 0.5, 1e-12, None, "custom")}
            both = ("vllm", "vllm-0.18", "sglang", "sglang-0.5.11")
            yield Job(link, systems, CUSTOM, ("nccl", "pair"), ("all_reduce",), pair, engines=both, most=2)
    for link in ("nvlink4", "nvlink5"):
        low, normal = _two("deepep_ll", "deepep", step=3e-6), _two("deepep_normal", "deepep", own=5e-11)
        for kind in ("dispatch", "combine"):
            for table, library, kernels in (
                ("deepep_ll", "deepep", low),
                ("deepep_normal", "deepep", normal),
            ):
                kernel = {k: v for k, v in kernels.items() if k.endswith(kind)}
                yield Job(link, BOXES[link], table, (library,), (kind,), kernel)
            for wrapper in WRAPPERS:
                kernel = {k: v for k, v in _two(wrapper, "deepep").items() if k.endswith(kind)}
                yield Job(link, BOXES[link], "moe_a2a_deepep", (wrapper,), (kind,), kernel)
    for kind in ("dispatch", "combine"):
        for sided in ("one_sided", "two_sided", "two_sided_fp4"):
            kernel = {k: v for k, v in _two(sided, "onesided").items() if k.endswith(kind)}
            yield Job("nvlink5", ("gb200",), "alltoall_nvlink_trtllm", (sided,), (kind,), kernel)
        far = tuple(f"{s} x{n}" for s in ("h100_sxm", "h200_sxm") for n in (2, 4, 8))
        kernel = {k: v for k, v in _two("deepep_ll", "deepep_rdma").items() if k.endswith(kind)}
        yield Job("network", far, "deepep_ll", ("deepep",), (kind,), kernel)


class Trial:
    """Constants with some fits replaced, as ``sim.selection`` asks for them."""

    def __init__(self, base: FabricConstants):
        self.base = base
        self.fits: dict[tuple[str, str], Fit] = {}
        self.only: set[str] = set()
        self.chosen: dict[str, int] = {}

    def kernels_for(self, kind: str, libraries: Iterable[str]) -> list[Kernel]:
        base = self.base.with_chosen(**self.chosen) if self.chosen else self.base
        found = base.kernels_for(kind, libraries)
        return [k for k in found if not self.only or k.name in self.only]

    def fit(self, kernel: Kernel, link: str) -> Fit | None:
        fits = (self.fits.get((kernel.name, name)) for name in relatives(link))
        return next((fit for fit in fits if fit), None) or self.base.fit(kernel, link)

    def together(self, on_links: float, at_home: float) -> float:
        return self.base.together(on_links, at_home)


def loss_of(job: Job, trial: Trial, measured: Iterable[Row]) -> Callable[[], float]:
    """Mean absolute logarithm of predicted over measured, as a function of the trial's fits."""
    by: dict[tuple[str, str, int, str, tuple[tuple[str, int], ...]], list[Row]] = defaultdict(list)
    for r in measured:
        by[(r.system, r.kind, r.ranks, r.library if r.engine else "", r.chosen)].append(r)
    groups = []
    for (_, kind, n, engine, chosen), members in by.items():
        loads = collectives(members[0], trial.base).loads(kind, tuple(range(n)))
        sizes, seconds = (np.array([r[i] for r in members]) for i in (4, 5))
        libraries = trial.base.libraries(engine) if engine else job.libraries
        groups.append((kind, n, loads, sizes, seconds, libraries, dict(chosen)))

    def loss() -> float:
        total = 0.0
        for kind, n, loads, sizes, seconds, libraries, trial.chosen in groups:
            found = selection.pieces(loads, kind, trial, n, libraries)  # type: ignore[arg-type]
            times = [np.where(sizes <= p.cap, p.seconds(sizes), np.inf) for p in found]
            if not times:
                return 1e9
            total += float(np.abs(np.log(np.minimum.reduce(times) / seconds)).sum())
        return total / sum(len(g[3]) for g in groups)

    return loss


ZERO = {"step": 2e-7, "own": 5e-13, "hidden": 2e-6, "expert": 1e-8}
FITTED = tuple(field for field in Fit._fields if field != "source")


def best_of(job: Job, trial: Trial, loss: Callable[[], float]) -> None:
    """Descend from several efficiencies and keep what fits best."""
    tried = []
    for times in (1.0, 0.6, 1.5):
        for name, fit in job.start.items():
            scale = 1.0 if (name, "efficiency") in job.fixed else times
            trial.fits[(name, job.link)] = fit._replace(efficiency=min(1.0, fit.efficiency * scale))
        descend(job, trial, loss)
        tried.append((round(loss(), 5), dict(trial.fits)))
    trial.fits = min(tried, key=lambda t: t[0])[1]


def descend(job: Job, trial: Trial, loss: Callable[[], float]) -> None:
    """Change one number at a time, by smaller and smaller factors, as long as that helps."""
    best = loss()
    for factor in (1.5, 1.25, 1.1, 1.05, 1.02, 1.01):
        for _ in range(8):
            before = best
            for name in job.start:
                for field in FITTED:
                    key = (name, job.link)
                    value = getattr(trial.fits[key], field)
                    if value is None or (name, field) in job.fixed:
                        continue
                    if field == "expert" and not trial.base.kernels[name].experts:
                        continue
                    options = [value * factor, value / factor] if value else []
                    options += [0.0 if value else ZERO[field]] if field in ZERO else []
                    for option in options:
                        kept = trial.fits[key]
                        option = min(option, 1.0) if field == "efficiency" else option
                        trial.fits[key] = kept._replace(**{field: float(f"{option:.3g}")})
                        if (now := loss()) < best - 1e-9:
                            best = now
                        else:
                            trial.fits[key] = kept
            if best > before - 1e-5:
                break


def unfitted() -> FabricConstants:
    from ruamel.yaml import YAML

    return read_constants(YAML(typ="safe", pure=True).load(DATA / "collectives.yaml"), {})


def fit_all(measured: list[Row], base: FabricConstants) -> dict[str, dict[str, Fit]]:
    trial = Trial(base)
    for job in jobs():
        own = [r for r in measured if not r.why and (r.table, r.system in job.systems) == (job.table, True)]
        trial.only = set(job.start) if "deepep" in job.libraries else set()
        libraries = {*job.libraries, *trial.only, *(["ring"] if "nccl_simple" in job.start else [])}
        own = [r for r in own if r.kind in job.kinds and r.library in {*libraries, *job.engines}]
        own = [r for r in own if job.least <= r.ranks <= job.most and (not job.engines or r.library in job.engines)]
        if job.link in LONG and "nccl_simple" in job.start:  # eight reduce in the switch
            own = [r for r in own if (r.kind, r.library) != ("all_reduce", "nccl") or r.ranks < 8]
        sizes = {size: i for i, size in enumerate(sorted({r.message for r in own}))}
        train, held = ([r for r in own if (sizes[r.message] % 3 == 1) == out] for out in (False, True))
        if not train or not held:
            continue
        loss = loss_of(job, trial, train)
        best_of(job, trial, loss)
        print(
            f"{job.link:8} {' '.join(job.start):60} fitted {loss():6.1%}, held out {loss_of(job, trial, held)():6.1%}"
        )
    found: dict[str, dict[str, Fit]] = defaultdict(dict)
    for (name, link), fit in trial.fits.items():
        found[name][link] = fit
    return found


def write(fits: dict[str, dict[str, Fit]], path: Path) -> None:
    lines = [
        "# Written by bench/collectives.py --fit: [launch, step, efficiency, own, hidden, cap, source, expert] by link."
    ]
    for name in sorted(fits):
        lines.append(f"{name}:")
        for link, fit in sorted(fits[name].items()):
            values = [
                "null" if v is None else v if isinstance(v, str) else f"{v:.3g}"
                for v in (fit if fit.expert else fit[:-1])
            ]
            values = [re.sub(r"^(\d+)(e)", r"\1.0\2", v) for v in values]  # YAML 1.1 reads 1e-06 as text
            lines.append(f"  {link}: [{', '.join(values)}]")
    path.write_text("\n".join(lines) + "\n")
