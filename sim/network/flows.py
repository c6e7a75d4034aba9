"""Flows that share links: max-min fair rates, recomputed whenever a flow starts or ends.

A flow moves bytes over a set of links at once; on each it takes ``weight`` bytes of capacity per byte moved (its part
of the traffic over several routes, divided by the efficiency its kernel reaches on that link). Rates rise together
until a link is full; its flows stay there and the others rise on (progressive filling, Bertsekas and Gallager, Data
Networks, section 6.5.2). Bytes are conserved: what has been put in is what has arrived, on every flow and every link.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]
Ints = np.ndarray[Any, np.dtype[np.int64]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]
NEGLIGIBLE = 1e-9  # of a link's capacity or a flow's bytes: rounding, not traffic


class Flow(NamedTuple):
    """``size`` bytes over links (numbers) with their weights, and the bytes that each link really moves per byte."""

    size: float
    links: tuple[int, ...]
    weights: tuple[float, ...]
    real: tuple[float, ...] = ()
    """Left out: the weights."""


def fair_rates(capacity: Array, flow: Ints, link: Ints, weight: Array, flows: int) -> Array:
    """Max-min fair rates.

    The level of a link is the rate at which its flows would fill it. Where no flow of a link meets a lower level
    elsewhere, that is what they get, whatever happens on other links; so all such links are filled in one round.

    Parameters
    ----------
    capacity
        Bytes/s per link.
    flow, link, weight
        Parallel arrays, in the order of the flows: flow ``flow[i]`` takes ``weight[i]`` of link ``link[i]`` per byte.
    flows
        Number of flows; one that uses no link gets an infinite rate.
    """
    rates = np.full(flows, np.inf)
    left = capacity.astype(float).copy()
    counts = np.bincount(flow, minlength=flows)
    rising = np.flatnonzero(counts)
    counts = counts[rising]
    while len(rising):
        begins = np.cumsum(counts) - counts
        demand = np.bincount(link, weights=weight, minlength=len(left))
        level = np.divide(left, demand, out=np.full(len(left), np.inf), where=demand > 0)[link]
        lowest = np.minimum.reduceat(level, begins)
        own = np.repeat(lowest, counts)  # per entry, that of its flow
        yields = np.bincount(link[own < level * (1 - NEGLIGIBLE)], minlength=len(left)) > 0
        fixed = np.logical_or.reduceat(~yields[link], begins)
        rates[rising[fixed]] = lowest[fixed]
        stopped = np.repeat(fixed, counts)
        left -= np.bincount(link[stopped], weights=(weight * own)[stopped], minlength=len(left))
        left = np.maximum(left, 0.0)  # rounding
        link, weight, rising, counts = link[~stopped], weight[~stopped], rising[~fixed], counts[~fixed]
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
        links = len(self.capacity)
        self.offered = np.zeros(links)
        """Bytes that have been put in for every link."""
        self.carried = np.zeros(links)
        """Bytes that every link has moved."""
        self.busy = np.zeros(links)
        """Seconds in which a link moved anything."""
        self.peak = np.zeros(links)
        """Highest rate per link as a fraction of its capacity."""
        self._flow = np.zeros(0, np.int64)
        self._link = np.zeros(0, np.int64)
        self._weight = np.zeros(0)
        self._real = np.zeros(0)
        self._left = np.zeros(0)
        self._size = np.zeros(0)
        self._owner = np.zeros(0, np.int64)
        self._index = np.zeros(0, np.int64)
        self._rates = np.zeros(0)
        self._waiting: dict[int, tuple[int, Callable[[], None]]] = {}
        self._next = 0
        self._since = now()
        self._version = 0

    def start(self, flows: Sequence[Flow], done: Callable[[], None]) -> int:
        """Start flows together; ``done`` is called when the last of them has arrived. Returns their number."""
        self._advance()
        owner = self._next
        self._next += 1
        index = [i for i, f in enumerate(flows) if f.size > 0 and f.links]
        moving = [flows[i] for i in index]
        if not moving:
            self.later(0.0, done)
            return owner
        first = len(self._left)
        flow = np.repeat(np.arange(first, first + len(moving)), [len(f.links) for f in moving])
        link = np.array([x for f in moving for x in f.links], np.int64)
        real = np.array([r for f in moving for r in f.real or f.weights])
        sizes = np.array([f.size for f in moving], float)
        self._flow, self._link = np.concatenate([self._flow, flow]), np.concatenate([self._link, link])
        self._weight = np.concatenate([self._weight, np.array([w for f in moving for w in f.weights])])
        self._real = np.concatenate([self._real, real])
        self._left, self._size = np.concatenate([self._left, sizes]), np.concatenate([self._size, sizes])
        self._owner = np.concatenate([self._owner, np.full(len(moving), owner)])
        self._index = np.concatenate([self._index, np.array(index, np.int64)])
        self.offered += self._on_links(link, real * sizes[flow - first])
        self._waiting[owner] = (len(moving), done)
        self._share()
        return owner

    def _on_links(self, link: Ints, amount: Array) -> Array:
        return np.asarray(np.bincount(link, weights=amount, minlength=len(self.capacity)), float)

    def _advance(self) -> None:
        """Move every flow on to the present time."""
        passed = self.now() - self._since
        self._since = self.now()
        if passed > 0 and len(self._left):
            moved = np.minimum(self._rates * passed, self._left)
            self._left -= moved
            load = self._on_links(self._link, self._real * moved[self._flow])
            self.carried += load
            self.busy[load > 0] += passed

    def _share(self) -> None:
        """New rates, and a call when the next flow arrives."""
        self._version += 1
        if not len(self._left):
            return
        self._rates = fair_rates(self.capacity, self._flow, self._link, self._weight, len(self._left))
        load = self._on_links(self._link, self._weight * self._rates[self._flow])
        used = load > 0
        self.peak[used] = np.maximum(self.peak[used], load[used] / self.capacity[used])
        version, seconds = self._version, self._left / self._rates
        soonest = float(seconds.min())
        due = seconds <= soonest * (1 + NEGLIGIBLE)
        self.later(soonest, lambda: self._arrive(version, due))

    def _arrive(self, version: int, due: Flags) -> None:
        """Take out the flows that have arrived: those that are due now, and those of which nothing is left."""
        if version != self._version:
            return  # something started in between, so this call is out of date
        self._advance()
        arrived = due | (self._left <= NEGLIGIBLE * self._size)
        rest = np.where(arrived, self._left, 0.0)  # rounding
        self.carried += self._on_links(self._link, self._real * rest[self._flow])
        finished: list[Callable[[], None]] = []
        for owner, count in zip(*np.unique(self._owner[arrived], return_counts=True), strict=True):
            missing, done = self._waiting[int(owner)]
            self._waiting[int(owner)] = (missing - int(count), done)
            if missing == count:
                del self._waiting[int(owner)]
                finished.append(done)
        self._keep(~arrived)
        self._share()
        for done in finished:
            done()

    def _keep(self, kept: Flags) -> None:
        """Forget the other flows."""
        number = np.cumsum(kept) - 1
        entries = kept[self._flow]
        self._flow, self._link = number[self._flow[entries]], self._link[entries]
        self._weight, self._real = self._weight[entries], self._real[entries]
        self._left, self._size = self._left[kept], self._size[kept]
        self._owner, self._index = self._owner[kept], self._index[kept]

    def withdraw(self, owners: Iterable[int] | None = None) -> dict[int, dict[int, float]]:
        """Take out the flows that were started under these numbers, or all of them.

        Returns
        -------
        dict
            By the number of what was started together: the part that has not arrived of each flow, by its place in the
            list, for those that have not. Their ``done`` will not be called.
        """
        self._advance()
        out = np.ones(len(self._left), np.bool_) if owners is None else np.isin(self._owner, list(owners))
        left: dict[int, dict[int, float]] = {}
        for owner, index, part in zip(
            self._owner[out], self._index[out], self._left[out] / self._size[out], strict=True
        ):
            left.setdefault(int(owner), {})[int(index)] = float(part)
            self._waiting.pop(int(owner), None)
        gone = out[self._flow]
        self.offered -= self._on_links(self._link[gone], self._real[gone] * self._left[self._flow[gone]])
        self._keep(~out)
        self._share()
        return left

    def reshape(self, capacity: Sequence[float]) -> None:
        """Change the links' capacities from now on (a link that is slowed or repaired)."""
        self._advance()
        self.capacity = np.asarray(capacity, float)
        self._share()

    def credit(self, flows: Sequence[Flow], size: float) -> None:
        """Count ``size`` bytes of each of ``flows`` as moved without taking any time of the links."""
        for flow in flows:
            for link, real in zip(flow.links, flow.real or flow.weights, strict=True):
                self.offered[link] += real * flow.size * size
                self.carried[link] += real * flow.size * size

    def finish(self) -> None:
        """Bring the counts up to the present time."""
        self._advance()

    def under_way(self) -> Array:
        """Bytes per link that have been put in and have not arrived."""
        return self._on_links(self._link, self._real * self._left[self._flow])
