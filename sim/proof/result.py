"""What a proof says; apart from the rest so that reading it does not load what makes it."""

from __future__ import annotations

from pydantic import Field

from sim.noun import Noun


class Proof(Noun):
    """What executing one layout showed. Bytes are those of the small instance, over all ranks and steps."""

    tag: str
    strategy: str
    ok: bool
    max_relative_error: float
    held_bytes: int
    claimed_held_bytes: int
    sent_bytes: int
    claimed_sent_bytes: int
    duplication_counted: float
    duplication_claimed: float
    difference: str = ""
    """The first thing that differs: rank, layer, tensor or operation, and element."""
    ranks: int = 0
    steps: int = 0
    scaling: dict[str, str] = Field(default_factory=dict)
    """What was scaled down, and what stayed."""
