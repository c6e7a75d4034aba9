"""The paged KV cache of one attention group: blocks that requests own, and blocks of prefixes that they share.

Blocks that a request owns alone are a count; blocks of a prefix have an identity (the hash of everything up to their
end) and a number of users. Unused prefix blocks stay until their room is needed, the least recently used first, as
vLLM and SGLang keep them. A prefix is cut into entries of ``unit`` blocks, the grain of the trace's hashes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence

from sim.errors import ProgramError

Hashes = Sequence[Hashable]


class BlockPool:
    """Blocks of one attention group.

    Parameters
    ----------
    total
        Blocks there are.
    unit
        Blocks of one prefix entry; 0: prefixes are not kept.

    Notes
    -----
    ``total = free + owned + unit x (entries in use + entries idle)`` always; ``check`` says so.
    """

    __slots__ = ("evictions", "idle", "owned", "total", "unit", "users")

    def __init__(self, total: int, unit: int = 0):
        self.total, self.unit = total, unit
        self.owned = 0
        self.users: dict[Hashable, int] = {}
        self.idle: OrderedDict[Hashable, None] = OrderedDict()
        self.evictions = 0

    @property
    def available(self) -> int:
        """Blocks that a request can get: free ones and those of idle prefixes."""
        return self.total - self.owned - self.unit * len(self.users)

    @property
    def free(self) -> int:
        """Blocks that hold nothing."""
        return self.available - self.unit * len(self.idle)

    @property
    def used(self) -> int:
        """Blocks that some request needs."""
        return self.owned + self.unit * len(self.users)

    def take(self, blocks: int) -> None:
        """Give blocks to a request. Raises ``ProgramError`` if there are not as many."""
        if blocks > self.available:
            raise ProgramError(f"{blocks} KV blocks are taken where {self.available} are available")
        self.owned += blocks
        if self.idle:
            self._make_room()

    def _make_room(self) -> None:
        while self.free < 0:
            self.idle.popitem(last=False)
            self.evictions += 1

    def give(self, blocks: int) -> None:
        """Take blocks back. Raises ``ProgramError`` if more come back than are out."""
        self.owned -= blocks
        if self.owned < 0:
            raise ProgramError(f"{-self.owned} KV blocks come back that nobody owned")

    def match(self, hashes: Hashes) -> int:
        """Leading entries of a prefix that are here."""
        found = 0
        for key in hashes:
            if key not in self.users and key not in self.idle:
                break
            found += 1
        return found

    def idle_among(self, hashes: Hashes) -> int:
        """How many of these entries are idle: using them makes them unavailable to others."""
        return sum(key in self.idle for key in hashes)

    def hold(self, hashes: Hashes) -> None:
        """Use entries that are here."""
        for key in hashes:
            if key in self.idle:
                del self.idle[key]
                self.users[key] = 1
            else:
                self.users[key] += 1

    def share(self, hashes: Hashes) -> None:
        """Owned blocks that a prefill has filled become entries, used by their owner; doubles are given back."""
        for key in hashes:
            self.owned -= self.unit
            self.hold([key]) if key in self.users or key in self.idle else self.users.__setitem__(key, 1)
        if self.owned < 0:
            raise ProgramError("a prefix is shared that nobody owned")

    def release(self, hashes: Hashes) -> None:
        """Stop using entries; the end of a prefix becomes the first to go."""
        for key in reversed(hashes):
            self.users[key] -= 1
            if not self.users[key]:
                del self.users[key]
                self.idle[key] = None

    def check(self, owned: int, prefixes: Iterable[Hashes]) -> None:
        """Compare with what the requests say they hold. Raises ``ProgramError`` on a leak or a double use."""
        users: dict[Hashable, int] = {}
        for hashes in prefixes:
            for key in hashes:
                users[key] = users.get(key, 0) + 1
        if owned != self.owned or users != self.users:
            raise ProgramError(f"requests own {owned} KV blocks, the pool says {self.owned}, or prefixes differ")
        if self.free < 0 or self.users.keys() & self.idle.keys():
            raise ProgramError(f"{self.total} KV blocks, {self.free} of them free: a block is used twice")
