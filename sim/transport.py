"""Messages on the links of a fabric: collectives that run at the same time share the links they have in common.

Each collective is one flow over all links that its algorithm loads, in the proportions of ``Collectives.link_bytes``:
alone it takes exactly the time that ``Collectives.cost`` gives it; where another one loads the same link, both get
their fair share of that link and nothing changes elsewhere. The fixed time of its kernel passes before its bytes move.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from sim.collectives import Collectives
from sim.engine import Clock
from sim.flows import Flow, Network
from sim.schedule import Rendezvous

Link = tuple[str, str]


class LinkUse(NamedTuple):
    """One direction of a link in one run."""

    bytes: float
    busy_seconds: float
    peak: float
    """Highest part of what the algorithms can use of it."""


class FabricTransport:
    """Carries the messages of one run.

    Parameters
    ----------
    collectives
        Costs and routes on a fabric.
    clock
        The engine's time.
    """

    def __init__(self, collectives: Collectives, clock: Clock):
        self.collectives, self.clock = collectives, clock
        edges = list(collectives.fabric.graph.edges(data="bandwidth"))
        self.number: dict[Link, int] = {(u, v): i for i, (u, v, _) in enumerate(edges)}
        self.bandwidth = [float(b) for _, _, b in edges]
        self.network = Network(self.bandwidth, clock.now, clock.later)
        self._loads: dict[tuple[str, tuple[int, ...], str, str], tuple[Mapping[Link, float], Flow]] = {}
        self.moved = [0.0] * len(edges)

    def begin(self, view: Rendezvous, done: Callable[[], None]) -> None:
        """Carry one collective; call ``done`` when it has arrived."""
        size = float(view.message.size)
        used = self.collectives.cost(view.kind, view.gpus).used(size)
        if used is None or size <= 0:
            self.clock.later(view.seconds, done)
            return
        key = (view.kind, view.gpus, used.algorithm, used.kernel)
        if key not in self._loads:
            loads: Mapping[Link, float] = self.collectives.link_bytes(view.kind, view.gpus, size)
            links = tuple(self.number[link] for link in loads)
            pace = max(load / self.bandwidth[i] for i, load in zip(links, loads.values(), strict=True))
            scale = used.per_byte / pace  # alone, the busiest link sets exactly the pace of the cost
            self._loads[key] = (loads, Flow(1.0, links, tuple(load * scale for load in loads.values())))
        bytes_on, unit = self._loads[key]
        for i, load in zip(unit.links, bytes_on.values(), strict=True):
            self.moved[i] += load * size
        # what the fixed time of the kernel hides has moved by its end
        flow = unit._replace(size=max(0.0, size - used.hidden / used.per_byte))
        self.clock.later(used.fixed, lambda: self.network.start([flow], done))

    def use(self) -> dict[Link, LinkUse]:
        """What every link carried, for those that carried anything."""
        busy, peak = self.network.busy, self.network.peak
        return {
            link: LinkUse(self.moved[i], float(busy[i]), float(peak[i]))
            for link, i in self.number.items()
            if self.moved[i]
        }
