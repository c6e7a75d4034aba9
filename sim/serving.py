"""Times of a whole serving run from the times of its steps: closed forms of what a closed loop of requests does.

A loop of ``concurrency`` requests is held against an engine: as soon as one is answered the next one arrives. Between
two tokens of a request lie one decode step and, now and then, the prefill of somebody else's prompt, which comes about
(B - 1) / OSL times per token. A request waits for its own prefill; those of the first wave, which come all at once,
also for those in front of them. Constants are of an engine, not of a model.
"""

from __future__ import annotations

from pydantic import Field

from sim.noun import Noun
from sim.workload import Number, larger, smaller


class ServingConstants(Noun):
    """What an engine's scheduler and front end do to the times of steps."""

    interference: float = Field(1.0, ge=0, le=2)
    """Share of other requests' prefill that a token waits for; the rest hides behind decoding in the same step."""
    interference_lockstep: float = Field(0.5, ge=0, le=2)
    """The same when all requests have one length and come and go together: the rest is part of TTFT."""
    front_end: float = Field(0.03, ge=0)
    """Seconds from the request to the scheduler and back: HTTP, tokenizer, first detokenised token."""
    client: float = Field(0.0, ge=0)
    """Seconds more with harnesses whose requests all have one length: other clients, older versions."""
    front_end_per_token: float = Field(3.5e-6, ge=0)
    """Seconds per token of the prompt."""
    first_steps: float = Field(1.5, ge=0)
    """Decode steps that pass before a request is taken up and after its prefill, until its first token is out."""
    burst: float = Field(0.1, ge=0, le=1)
    """Share of requests that come all at once, when the run begins; each of them waits for half of the others."""
    wait_lockstep: float = Field(0.3, ge=0)
    """Prefills of other requests that one waits for when all come and go together."""
    reserved: float = Field(0.5, ge=0, le=1)
    """Share of its output for which a request must find room in the cache when it starts: all of it where the
    scheduler never evicts, the half that is there on average where it does."""


def running(concurrency: Number, capacity: Number) -> Number:
    """Sequences that decode at once: as many as there are requests, or as the cache has room for."""
    return larger(1, smaller(concurrency, capacity))


def time_per_token(
    step: Number, prefill: Number, batch: Number, osl: Number, lockstep: bool, constants: ServingConstants
) -> Number:
    """Seconds between two tokens of a request.

    Parameters
    ----------
    step
        Seconds of a decode step of ``batch`` sequences at the mean context.
    prefill
        Seconds of one prompt's prefill.
    batch
        Sequences that share the engine's steps.
    osl
        Tokens that each request generates.
    lockstep
        Whether all requests have one length.
    """
    share = constants.interference_lockstep if lockstep else constants.interference
    return step + share * larger(batch - 1, 0) / osl * prefill


def time_to_first_token(
    step: Number,
    prefill: Number,
    batch: Number,
    isl: Number,
    osl: Number,
    lockstep: bool,
    waiting: Number,
    constants: ServingConstants,
    spread: bool = True,
) -> Number:
    """Seconds from a request to its first token; see ``time_per_token``.

    ``waiting`` requests find no room in the cache: each of them waits until as many others have been answered.
    ``spread`` says whether requests differ in length.
    """
    c = constants
    ahead = (c.wait_lockstep if lockstep else c.burst / 2) * larger(batch - 1, 0)
    queue = waiting / batch * osl * time_per_token(step, prefill, batch, osl, lockstep, c)
    front = c.front_end + (0.0 if spread else c.client) + c.front_end_per_token * isl
    return front + prefill * (1 + ahead) + c.first_steps * step + queue
