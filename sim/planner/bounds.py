"""What no instance of a layout can beat, from its step prices alone. Every bound is safe: it may promise too much,
never too little, so that what it rules out cannot work.

* A request that is alone waits for its own prefill and then for its own decode steps. Other requests only add to that.
  If those that have at least the lengths that a share of (100 - percentile) % reaches miss the SLO alone, too many do.
* Steps hand out tokens: a decode step of b sequences gives b tokens and takes at least the time it takes at the
  shortest context; a prefill step of n tokens takes at least the time of its linear part. Mixed steps overlap the
  linear parts of both, at best wholly. So the rate of requests is at most one over the longer of the two times per
  request.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sim.replays.fleet import Instance, front_end
from sim.replays.requests import Slo, Work
from sim.replays.scheduler import Scheduler


class Bound(NamedTuple):
    """Of one instance."""

    prefill_rate: float
    """Requests a second whose prompts it can compute, at most."""
    decode_rate: float
    """Requests a second whose answers it can generate, at most."""
    why: str = ""
    """Why it cannot keep the SLO even alone; empty if it may."""

    @property
    def rate(self) -> float:
        """Requests a second, at most."""
        return min(self.prefill_rate, self.decode_rate)


def bound(made: Instance, rules: Scheduler, work: Work, slo: Slo, prefill: bool = True, decode: bool = True) -> Bound:
    """The bound of an instance that does one of both parts, or both.

    Parameters
    ----------
    prefill, decode
        Whether the instance computes prompts, and generates answers.
    """
    prices, stream = made.prices, work.stream
    prompts, outputs = np.array(stream.prompts), np.array(stream.outputs)
    share = 100 - slo.percentile
    prompt, output = (int(np.percentile(x, share, method="lower")) for x in (prompts, outputs))
    fast = np.inf
    steps = np.inf
    why = ""
    if prefill:
        sizes = sorted({max(1, rules.max_tokens >> n) for n in range(8)} | {min(int(prompts.max()), rules.max_tokens)})
        linear = [max(prices.prompt(n) - prices.pair * n * n / 2, 0.0) / n for n in sizes]
        each = min(linear) * (0.9 if stream.hashes is None else 0.0)  # lengths between these may be a little cheaper
        fast = made.groups / max(each * float(prompts.mean()), 1e-12)
        alone = front_end(prices.machine.serving)(prompt) + prices.prompt(min(prompt, rules.max_tokens))
        if slo.ttft is not None and stream.hashes is None and alone > slo.ttft:
            why = f"a prompt of {prompt:,} tokens alone takes {alone:.3g} s"
    if decode:
        # a request of this length never sees a shorter context than its prompt
        least = prices.decode(1).at(float(prompts.min()))
        if slo.tpot is not None and least > slo.tpot:
            why = f"a decode step alone takes {1e3 * least:.3g} ms"
        room = made.blocks * rules.block // max(1, int(prompts.min()))
        most = max(1, min(rules.max_sequences, room))
        batches = sorted({*(b for b in rules.sizes() if b <= most), *(min(most, 2**n) for n in range(14)), most})
        tokens = max(b / prices.decode(b).at(float(prompts.min())) for b in batches) * made.groups
        steps = 1.1 * tokens / max(float(outputs.mean()) - 1, 1e-9)  # batches between these may be a little better
    if slo.e2e is not None and not why and prefill and decode:
        alone = prices.prompt(min(prompt, rules.max_tokens)) + (output - 1) * prices.decode(1).at(float(prompts.min()))
        why = f"a request alone takes {alone:.3g} s" if alone > slo.e2e else ""
    return Bound(float(fast), float(steps), why)
