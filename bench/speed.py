"""How fast the simulator is: ``python bench/speed.py``. Prints figures, asserts nothing.

CPU seconds of one process (``process_time``), best of a few rounds, so that other work on the machine counts little;
the main job is a whole process by the clock, import and all.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import permutations
from pathlib import Path

import numpy as np
import simpy

from sim.catalog.gpus import load_gpu
from sim.catalog.models import load_model
from sim.catalog.topologies import parse_topology
from sim.evaluate import Evaluation
from sim.lower import cut_of, lower
from sim.network.collectives import Collectives
from sim.network.constants import load_fabric_constants
from sim.network.flows import Flow, Network
from sim.placement import Placement
from sim.run import machine
from sim.step import prepared
from sim.strategy import Strategy
from sim.sweep import sweep
from sim.workload import Precision, Workload
from strategies.attention_dp import AttentionDataParallel
from strategies.dcp import DecodeContextParallel
from strategies.helix import Helix
from strategies.kvp import KvParallel
from strategies.tp import TensorParallel
from strategies.wide_ep import WideExpertParallel

ROOT = Path(__file__).parent.parent
SCENARIO = ROOT / "scenarios" / "qwen3_235b_8xh200.yaml"


def best(work: Callable[[], object], rounds: int = 5) -> float:
    times = []
    for _ in range(rounds):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def main_job() -> None:
    command = [sys.executable, "-m", "sim", "compare", str(SCENARIO)]
    times = []
    for _ in range(5):
        start = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=ROOT)
        times.append(time.perf_counter() - start)
    memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(f"main job, whole process: {min(times):.2f} s at best, {max(times):.2f} s at worst, {memory:.0f} MiB")


def layouts(model_name: str) -> list[Strategy]:
    model = load_model(model_name)
    found: list[Strategy] = []
    powers = (1, 2, 4, 8, 16, 32, 64)
    for a in powers:
        found += [TensorParallel(tp=a, ep=e) for e in powers if a % e == 0]
        found += [AttentionDataParallel(dp=a, tp=t, ep=e) for t in (1, 2, 4, 8) for e in (1, a * t) if a * t <= 64]
        found += [WideExpertParallel(dp=a, tp=t) for t in (1, 2, 4, 8) if 1 < a * t <= 64]
        found += [DecodeContextParallel(tp=a, dcp=d) for d in powers if 1 < d <= a]
        found += [KvParallel(kvp=k, tp=a) for k in (2, 4, 8) if k * a <= 64]
        found += [Helix(tpa=a, kvp=k, hop_b=False) for k in (2, 4, 8) if k * a <= 64]
    return [s for s in found if not s.check(model)]


def distinct_layouts(model_name: str) -> None:
    model, precision = load_model(model_name), Precision(weights="fp8")
    here = machine(load_gpu("gb200"), parse_topology("nvl72"))
    every = layouts(model_name)

    def run(whole: bool) -> None:
        for cache in (lower, prepared, cut_of):
            cache.cache_clear()
        for strategy in every:
            evaluation = Evaluation(Placement(model, strategy, precision), here, Workload(batch=64, context=32768))
            evaluation.report() if whole else evaluation.step()

    run(whole=True)  # collectives of the machine are priced once
    for whole, words in ((False, "step time"), (True, "with memory, limits and ranks")):
        seconds = best(lambda whole=whole: run(whole))  # type: ignore[misc]
        print(f"{len(every)} distinct layouts of {model_name}, {words}: {len(every) / seconds:,.0f} a second")


def points() -> None:
    rng = np.random.default_rng(1)
    n = 20_000
    batch, context, query = rng.integers(1, 512, n), rng.integers(8, 200_000, n), rng.integers(1, 4, n)
    model, precision = load_model("qwen3-235b-a22b"), Precision(weights="fp8")
    here = machine(load_gpu("h200-sxm"), parse_topology("hgx-8"))
    for strategy in (
        TensorParallel(tp=8),
        AttentionDataParallel(dp=8, ep=8),
        DecodeContextParallel(tp=8, dcp=2),
        WideExpertParallel(dp=8, two_batch_overlap=True),
        Helix(tpa=4, kvp=2, hop_b=False),
        Helix(tpa=4, kvp=2),
    ):
        placement = Placement(model, strategy, precision)
        seconds = best(lambda p=placement: sweep(p, here, batch, context, query), 3)  # type: ignore[misc]
        print(f"{n:,} points of {strategy.label}: {n / seconds:,.0f} a second")


def ranks() -> None:
    model, precision = load_model("deepseek-r1"), Precision(weights="fp8")
    here = machine(load_gpu("gb200"), parse_topology("nvl72"))
    for strategy in (
        WideExpertParallel(dp=72, redundant_experts=32),
        AttentionDataParallel(dp=72, ep=72),
        TensorParallel(tp=64),
    ):
        placement, work = Placement(model, strategy, precision), Workload(batch=512, context=32768)

        def step(p: Placement = placement, w: Workload = work) -> int:
            return Evaluation(p, here, w, granularity="ranks").best.passes[0].events

        seconds, events = best(step), step()
        print(f"one step of {strategy.label}, 61 layers, every rank: {1000 * seconds:.0f} ms, {events:,} events")


def fabrics() -> None:
    h100, gb200, constants = load_gpu("h100-sxm"), load_gpu("gb200"), load_fabric_constants()
    boxes = parse_topology({"kind": "cluster", "nodes": 128, "node": "hgx-8"})
    ranks = tuple(range(1024))

    def price() -> None:  # a fabric of its own each time: nothing is known before
        machine = Collectives(boxes.build(h100), h100, constants)
        machine.fabric.group_shape(ranks)
        machine.cost("all_reduce", ranks)

    print(f"all-reduce over 1,024 GPUs in 128 boxes, built and priced: {best(price, 3):.2f} s")
    for spec, gpu in (
        ({"kind": "cluster", "nodes": 1250, "node": "hgx-8"}, h100),
        ({"kind": "cluster", "nodes": 139, "node": "nvl72"}, gb200),
    ):
        topology = parse_topology(spec)
        seconds = best(lambda t=topology, g=gpu: t.build(g), 3)  # type: ignore[misc]
        print(f"{topology.gpu_count:,} GPUs in {spec['nodes']} × {spec['node']} built: {seconds:.2f} s")
    rack = parse_topology("nvl72").build(gb200)
    part, _, _ = rack.load([], range(72))
    number = part.edge_between
    up = {g: number[part.index[g], part.index["nvswitch0"]] for g in rack.gpus}
    down = {g: number[part.index["nvswitch0"], part.index[g]] for g in rack.gpus}
    flows = [Flow(1e6, (up[a], down[b]), (1.0, 1.0)) for a, b in permutations(rack.gpus, 2)]

    def exchange() -> None:
        env = simpy.Environment()

        def later(delay: float, call: Callable[[], None]) -> None:
            env.timeout(delay).callbacks.append(lambda _: call())

        Network([e.bandwidth for e in part.edges], lambda: env.now, later).start(flows, lambda: None)
        env.run()

    print(f"all-to-all over 72 GPUs as {len(flows):,} flows: {1000 * best(exchange):.0f} ms")


if __name__ == "__main__":
    main_job()
    distinct_layouts("llama-3.1-405b")
    distinct_layouts("qwen3-235b-a22b")
    distinct_layouts("deepseek-r1")
    points()
    ranks()
    fabrics()
