"""How fast replays and plans are: ``python bench/replay.py [requests of the long run]``. Seconds of CPU of one process.

The figures of the shipped scenarios; a replay's time is that of its loop, without building the step prices.
"""

from __future__ import annotations

import resource
import sys
import time

from sim import load, plan
from sim.replaying import place_of, scheduler_of
from sim.replays.fleet import fleet
from sim.replays.requests import build


def run(count: int) -> None:
    scenario = load("replay_disaggregated")
    assert scenario.requests
    begun = time.process_time()
    work = build(scenario.requests.model_copy(update={"count": count}))
    layout, rules = scenario.layouts[0], scheduler_of(scenario)
    made = fleet(place_of(scenario), layout, rules, work.longest, disaggregation=scenario.disaggregation)
    ready = time.process_time()
    log = made.loop.run(work.stream)
    done = time.process_time()
    steps = sum(engine.steps for engine in (*made.loop.engines, *made.loop.prefill))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{count:>9,} requests, 8 prefill and 4 decode workers: {done - ready:.2f} s, {steps:,} steps, "
        f"{log.now:,.0f} s simulated, prepared in {ready - begun:.2f} s, {memory:,.0f} MiB"
    )


def main() -> None:
    loop = time.process_time()
    total = 0
    for i in range(10_000_000):
        total += i
    print(f"this machine counts to 10 million in {time.process_time() - loop:.2f} s")
    run(10_000)
    run(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000)
    begun = time.process_time()
    found = plan(load("plan_llama_70b"))
    print(f"plan of Llama-3.1-70B up to 64 GPUs: {time.process_time() - begun:.2f} s, {found.replayed} replays")


if __name__ == "__main__":
    main()
