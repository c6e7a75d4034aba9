"""One request on its way through the engines; a slotted object, because there may be a million of them."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any


class Request:
    """What arrives, and how far it has come.

    Parameters
    ----------
    index
        Number in the order of arrival in the workload.
    arrival
        Seconds.
    prompt, output
        Tokens.
    hashes
        Identities of the prefix entries that the prompt fills; equal ids have equal content up to their end.
    """

    __slots__ = (
        "arrival",
        "blocks",
        "cached",
        "entries",
        "final",
        "generated",
        "hashes",
        "hit",
        "index",
        "joined",
        "output",
        "preemptions",
        "prompt",
        "rounds",
        "serial",
        "source",
        "swapped",
        "target",
    )

    def __init__(self, index: int, arrival: float, prompt: int, output: int, hashes: tuple[Hashable, ...] = ()):
        self.index, self.arrival, self.prompt, self.output = index, arrival, prompt, output
        self.hashes = hashes
        self.generated = 0
        """Tokens answered so far."""
        self.cached = 0
        """Tokens in the cache: while decoding, those when it joined."""
        self.target = prompt
        """Tokens that its prefill covers: the prompt, after a preemption also what was generated."""
        self.rounds = 0
        """Decode steps that it needs."""
        self.joined = -1
        """Decode steps of its group when it joined; -1 while it does not decode."""
        self.blocks = 0
        """Blocks that it owned when it was admitted."""
        self.entries = 0
        """Prefix entries that it uses."""
        self.hit = 0
        """Tokens of its prompt that were found in the cache when it was first admitted."""
        self.final = 0
        """Blocks that it will hold at its end."""
        self.serial = -1
        """Number of its admission in its group; a new one after each preemption."""
        self.preemptions = 0
        self.swapped = False
        self.source: Any = None
        """The group that holds its cache until it has been sent."""
