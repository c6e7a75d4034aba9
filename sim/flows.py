"""Flows that share links: max-min fair rates, recomputed whenever a flow starts or ends.

A flow moves bytes over a set of links at once; on each it takes ``weight`` bytes of capacity per byte moved (its part
of the traffic over several routes, divided by the efficiency its kernel reaches on that link). Rates rise together
until a link is full; its flows stay there and the others rise on (progressive filling, Bertsekas and Gallager, Data
Networks, section 6.5.2). Bytes are conserved: what has been put in is what has arrived, on every flow and every link.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]
Ints = np.ndarray[Any, np.dtype[np.int64]]
NEGLIGIBLE = 1e-9  # of a link's capacity or a flow's bytes: rounding, not traffic


class Flow(NamedTuple):
    """``size`` bytes over links (numbers) with their weights."""

    size: float
    links: tuple[int, ...]
    weights: tuple[float, ...]


def fair_rates(capacity: Array, flow: Ints, link: Ints, weight: Array, flows: int) -> Array:
    """Max-min fair rates.

    Parameters
    ----------
    capacity
        Bytes/s per link.
    flow, link, weight
        Parallel arrays: flow ``flow[i]`` takes ``weight[i]`` of link ``link[i]`` per byte.
    flows
        Number of flows; one that uses no link gets an infinite rate.
    """
    rates = np.zeros(flows)
    used = np.bincount(flow, minlength=flows) > 0
    rates[~used] = np.inf
    rising = used.copy()
    left = capacity.astype(float).copy()
    while rising.any():
        moving = rising[flow]
        demand = np.bincount(link[moving], weights=weight[moving], minlength=len(capacity))
        busy = demand > 0
        rise = float(np.min(left[busy] / demand[busy]))
        rates[rising] += rise
        left[busy] -= rise * demand[busy]
        full = busy & (left <= NEGLIGIBLE * capacity)
        left[full] = 0.0
        stopped = np.zeros(flows, np.bool_)
        stopped[flow[moving & full[link]]] = True
        rising &= ~stopped
    return rates


class Network:
    """Links with flows under way, driven by a clock that somebody else owns.

    Parameters
    ----------
    capacity
        Bytes/s per link.
    now
        Tells the time in seconds.
    later
        Calls a function after a delay in seconds.
    """

    def __init__(
        self, capacity: Sequence[float], now: Callable[[], float], later: Callable[[float, Callable[[], None]], None]
    ):
        self.capacity = np.asarray(capacity, float)
        self.now, self.later = now, later
        self.carried = np.zeros(len(self.capacity))
        """Bytes that every link has moved, weights included."""
        self.busy = np.zeros(len(self.capacity))
        """Seconds in which a link moved anything."""
        self.peak = np.zeros(len(self.capacity))
        """Highest rate per link as a fraction of its capacity."""
        self._flow = np.zeros(0, np.int64)
        self._link = np.zeros(0, np.int64)
        self._weight = np.zeros(0)
        self._left = np.zeros(0)
        self._size = np.zeros(0)
        self._owner = np.zeros(0, np.int64)
        self._rates = np.zeros(0)
        self._waiting: dict[int, tuple[int, Callable[[], None]]] = {}
        self._next = 0
        self._since = now()
        self._version = 0

    def start(self, flows: Sequence[Flow], done: Callable[[], None]) -> None:
        """Start flows together; ``done`` is called when the last of them has arrived."""
        self._advance()
        moving = [f for f in flows if f.size > 0 and f.links]
        owner = self._next
        self._next += 1
        if not moving:
            self.later(0.0, done)
            return
        first = len(self._left)
        self._flow = np.concatenate(
            [self._flow, np.repeat(np.arange(first, first + len(moving)), [len(f.links) for f in moving])]
        )
        self._link = np.concatenate([self._link, np.array([x for f in moving for x in f.links], np.int64)])
        self._weight = np.concatenate([self._weight, np.array([w for f in moving for w in f.weights])])
        sizes = np.array([f.size for f in moving], float)
        self._left = np.concatenate([self._left, sizes])
        self._size = np.concatenate([self._size, sizes])
        self._owner = np.concatenate([self._owner, np.full(len(moving), owner)])
        self._waiting[owner] = (len(moving), done)
        self._share()

    def _advance(self) -> None:
        """Move every flow on to the present time."""
        passed = self.now() - self._since
        self._since = self.now()
        if passed > 0 and len(self._left):
            moved = self._rates * passed
            self._left -= moved
            load = np.bincount(self._link, weights=self._weight * moved[self._flow], minlength=len(self.capacity))
            self.carried += load
            self.busy[load > 0] += passed

    def _share(self) -> None:
        """New rates, and a call when the next flow arrives."""
        self._version += 1
        if not len(self._left):
            return
        self._rates = fair_rates(self.capacity, self._flow, self._link, self._weight, len(self._left))
        load = np.bincount(self._link, weights=self._weight * self._rates[self._flow], minlength=len(self.capacity))
        self.peak = np.maximum(self.peak, load / self.capacity)
        version = self._version
        self.later(float(np.min(np.maximum(self._left, 0.0) / self._rates)), lambda: self._arrive(version))

    def _arrive(self, version: int) -> None:
        """Take out the flows that have arrived."""
        if version != self._version:
            return  # something started in between, so this call is out of date
        self._advance()
        arrived = self._left <= NEGLIGIBLE * self._size
        finished: list[Callable[[], None]] = []
        for owner, count in zip(*np.unique(self._owner[arrived], return_counts=True), strict=True):
            missing, done = self._waiting[int(owner)]
            self._waiting[int(owner)] = (missing - int(count), done)
            if missing == count:
                del self._waiting[int(owner)]
                finished.append(done)
        kept = ~arrived
        number = np.cumsum(kept) - 1
        entries = kept[self._flow]
        self._flow, self._link = number[self._flow[entries]], self._link[entries]
        self._weight = self._weight[entries]
        self._left, self._size, self._owner = self._left[kept], self._size[kept], self._owner[kept]
        self._share()
        for done in finished:
            done()

    def reshape(self, capacity: Sequence[float]) -> None:
        """Change the links' capacities from now on (a link that is slowed or repaired)."""
        self._advance()
        self.capacity = np.asarray(capacity, float)
        self._share()
