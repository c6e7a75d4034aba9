"""Engines with prices of closed forms, and streams, for the tests of replays."""

from __future__ import annotations

from sim.replays.fleet import engine
from sim.replays.loop import Loop, Stream
from sim.replays.scheduler import Scheduler, parse_scheduler
from sim.replays.series import Row
from sim.speculation import Speculation

CONTEXTS = [1.0, 100.0, 1000.0, 100000.0]


class LinearPrices:
    """A step costs a fixed part, a part per sequence, and one per token of context that changes its slope twice."""

    def __init__(self, fixed=8e-3, sequence=2e-5, token=1e-8, prompt=2e-5):
        self.fixed, self.sequence, self.token, self.new = fixed, sequence, token, prompt
        self.rows = {}

    def decode(self, batch):
        if batch not in self.rows:
            slopes = (1.0, 1.0, 1.1, 1.0)
            base = self.fixed + self.sequence * batch
            self.rows[batch] = Row(
                CONTEXTS, [base + self.token * batch * c * s for c, s in zip(CONTEXTS, slopes, strict=True)]
            )
        return self.rows[batch]

    def mixed(self, batch, context, chunks, rows):
        decode = self.decode(batch).at(context) - self.fixed if batch else 0.0
        return self.fixed + decode + self.new * sum(new for _, new in chunks)

    def swap(self, tokens):
        return 1e-6 * tokens


class Wire:
    """A transfer at a fixed rate."""

    def __init__(self, per_token=1e-6, layers=1):
        self.per_token, self.layers = per_token, layers

    def seconds(self, tokens):
        return self.per_token * tokens


def rules(preset="vllm", **changes) -> Scheduler:
    drafts = changes.pop("speculation", None)
    found = parse_scheduler({"preset": preset, **changes})
    return found.model_copy(update={"speculation": drafts and Speculation(**drafts)})


def loop(
    given,
    blocks=2000,
    groups=1,
    engines=1,
    prefill=0,
    prices=None,
    grain=0,
    stepwise=False,
    router="least_loaded",
    layers=1,
) -> Loop:
    """A loop that checks all blocks after every step and keeps a journal."""
    prices = prices or LinearPrices()
    made = [engine(prices, given, blocks, groups, 1, grain, stepwise=stepwise) for _ in range(engines)]
    workers = [engine(prices, given, blocks, 1, 1, grain, True, stepwise) for _ in range(prefill)]
    found = Loop(made, workers, router, Wire(layers=layers) if prefill else None, check=True)
    found.journal = []
    return found


def stream(random, count=120, rate=20.0, prompt=4000, output=500, **more) -> Stream:
    """Poisson arrivals of requests with lengths up to these."""
    arrivals = random.exponential(1 / rate, count).cumsum().tolist()
    prompts = random.integers(1, prompt, count).tolist()
    outputs = random.integers(1, output, count).tolist()
    return Stream(arrivals, prompts, outputs, **more)
