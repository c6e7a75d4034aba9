"""Messages on the links of a fabric: collectives that run at the same time share the links they have in common.

The parts of an algorithm wait for each other step by step, so they are one flow over all links that it loads, and the
slowest link sets the pace. Only what an exchange sends from one rank to another waits for nobody: as soon as somebody
else loads one of its links, each of these messages is a flow of its own. Alone a collective takes exactly the time
that ``Collectives.cost`` gives it; where another one loads the same link, both get their fair share of that link and
nothing changes elsewhere. The fixed
time of its kernel passes before its bytes move. When a fault comes or goes, what is under way goes on over the routes
that there are then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from sim.conditions import Traffic
from sim.engine import Clock
from sim.errors import InputError, Problem, ProgramError, TopologyError
from sim.machine import Machine
from sim.network.algorithms import EXCHANGES, Plan
from sim.network.collectives import Collectives
from sim.network.flows import Flow, Network
from sim.network.links import Link, Links
from sim.schedule import Rendezvous
from sim.selection import Piece
from sim.units import format_seconds

MOST_SEPARATE = 128
"""Ranks of the largest exchange whose messages are flows of their own: there are as many as pairs of ranks."""


MOST_REPEATS = 20_000
"""Messages that others may send again and again during one step."""


class LinkUse(NamedTuple):
    """One direction of a link in one run."""

    bytes: float
    busy_seconds: float
    peak: float
    """Highest part of what the algorithms can use of it."""


class _Message(NamedTuple):
    """One collective on its way."""

    kind: str
    gpus: tuple[int, ...]
    size: float
    done: Callable[[], None]

    @property
    def separable(self) -> bool:
        """Whether what one rank sends to another does not wait for what others send."""
        return self.kind in EXCHANGES and len(self.gpus) <= MOST_SEPARATE


class _UnderWay(NamedTuple):
    """A message whose bytes are moving, and the parts of its flows that had not arrived when they were started."""

    message: _Message
    links: frozenset[int]
    parts: tuple[float, ...]

    @property
    def undivided(self) -> bool:
        """Whether it is one flow that must be divided as soon as another message loads one of its links."""
        return self.message.separable and len(self.parts) == 1

    def left(self, parts: Mapping[int, float]) -> tuple[float, ...]:
        """What has not arrived of each flow, given what has not of what was started."""
        return tuple(before * parts.get(i, 0.0) for i, before in enumerate(self.parts))


def _nothing() -> None:
    """Nobody waits for a message of others."""


def _flow(size: float, loads: Mapping[int, float], scale: float, capacity: Sequence[float]) -> Flow:
    """A flow that counts what it takes of its narrowest link, so that there every flow gets the same share.

    Parameters
    ----------
    size, loads
        Bytes, and what each link carries of one of them.
    scale
        Capacity that one byte on a link takes.
    """
    narrowest = max(loads, key=lambda link: loads[link] / capacity[link])
    unit = loads[narrowest] * scale
    weights = tuple(load * scale / unit for load in loads.values())
    return Flow(size * unit, tuple(loads), weights, tuple(load / unit for load in loads.values()))


class FabricTransport:
    """Carries the messages of one run.

    Parameters
    ----------
    machine
        Costs and routes, what happens to them, and the traffic of others.
    clock
        The engine's time.
    since
        When the run begins, in seconds after the step has begun.
    """

    def __init__(self, machine: Machine, clock: Clock, since: float = 0.0):
        self.clock = clock
        self.states: list[Collectives] = [machine.collectives, *(change.collectives for change in machine.changes)]
        self.links = Links([collectives.fabric for collectives in self.states])
        self.collectives = machine.collectives
        self.state = 0
        self.network = Network(self.links.capacity[0], clock.now, clock.later)
        self._known: dict[tuple[int, str, tuple[int, ...], str, str, bool], tuple[Flow, ...]] = {}
        self._under_way: dict[int, _UnderWay] = {}
        self._sent = 0
        for number, change in enumerate(machine.changes, start=1):
            clock.later(max(0.0, change.at - since), partial(self._change, number, change.at))
        for traffic in machine.background:
            if traffic.at >= since or traffic.repeat:
                clock.later(max(0.0, traffic.at - since), partial(self._of_others, traffic))

    def begin(self, view: Rendezvous, done: Callable[[], None]) -> None:
        """Carry one collective; call ``done`` when it has arrived."""
        message = _Message(view.kind, view.gpus, float(view.message.size), done)
        if not self._carry(message):
            self.clock.later(view.seconds, done)

    def _of_others(self, traffic: Traffic) -> None:
        self._sent += 1
        if self._sent > MOST_REPEATS:
            text = f"is sent more than {MOST_REPEATS:,} times during the step; give it a larger size"
            raise InputError(Problem(f"{traffic}: {text}", "background"))
        again = partial(self._of_others, traffic) if traffic.repeat else _nothing
        self._carry(_Message(traffic.kind, traffic.gpus, float(traffic.size), again))

    def _carry(self, message: _Message) -> bool:
        """Start a message, if there is anything to move."""
        used = self.collectives.cost(message.kind, message.gpus).used(message.size)
        if used is None or message.size <= 0:
            return False
        self.clock.later(used.fixed, partial(self._move, message))
        return True

    def _move(self, message: _Message, left: Sequence[float] = ()) -> None:
        """Put the bytes of a message on the links: all of them, or the parts of its flows that are left."""
        used = self.collectives.cost(message.kind, message.gpus).used(message.size)
        assert used
        (whole,) = flows = self._flows(message, used, separate=False)
        met = [n for n, other in self._under_way.items() if not other.links.isdisjoint(whole.links)]
        if message.separable and (met or left):
            flows = self._flows(message, used, separate=True)
        if len(left) != len(flows):  # one flow is divided, or there is another algorithm now
            left = [sum(left) / len(left) if left else 1.0] * len(flows)
        # what the fixed time of the kernel hides has moved by its end
        moving = max(0.0, message.size - used.hidden / used.per_byte)
        started = []
        for flow, part in zip(flows, left, strict=True):
            real = tuple(r * message.size / moving for r in flow.real) if moving else ()
            started.append(flow._replace(size=flow.size * moving * part, real=real))
        if not moving:
            self.network.credit(flows, message.size)
        undivided = [n for n in met if self._under_way[n].undivided]
        for n, parts in self.network.withdraw(undivided).items() if undivided else ():
            one = self._under_way.pop(n)
            self._move(one.message, one.left(parts))
        number = self.network.start(started, lambda: self._arrived(number, message))
        self._under_way[number] = _UnderWay(message, frozenset(whole.links), tuple(left))

    def _arrived(self, number: int, message: _Message) -> None:
        self._under_way.pop(number, None)
        message.done()

    def _flows(self, message: _Message, used: Piece, *, separate: bool) -> tuple[Flow, ...]:
        """The flows of one byte of a message; on the busiest link they take the time that the kernel needs for it."""
        key = (self.state, message.kind, message.gpus, used.algorithm, used.kernel, separate)
        if key not in self._known:
            plan = self.collectives.plan(message.kind, message.gpus, message.size)
            total: dict[int, float] = {}
            for stage in plan.stages:
                part, on, _ = self.collectives.fabric.load(stage.flows, message.gpus)
                self.links.add(total, part, on)
            capacity = self.links.capacity[self.state]
            scale = used.per_byte / max(load / capacity[link] for link, load in total.items())
            found = self._pairs(plan, message.gpus) if separate else [(1.0, total)]
            self._known[key] = tuple(_flow(size, loads, scale, capacity) for size, loads in found)
        return self._known[key]

    def _pairs(self, plan: Plan, gpus: tuple[int, ...]) -> Iterator[tuple[float, dict[int, float]]]:
        """Each message from rank to rank: its part of the whole, and what each link carries of one of its bytes."""
        for stage in plan.stages:
            for source, target, size in stage.flows:
                yield size, self.links.of_pair(self.state, source, target, gpus)

    def _change(self, state: int, at: float) -> None:
        """The machine is another one from now on: what is under way is put on the routes that there are."""
        self.state, self.collectives = state, self.states[state]
        left = self.network.withdraw()
        self.network.reshape(self.links.capacity[state])
        before, self._under_way = self._under_way, {}
        try:
            for number, parts in left.items():
                self._move(before[number].message, before[number].left(parts))
        except TopologyError as error:
            problems = [p._replace(message=f"after {format_seconds(at)}: {p.message}") for p in error.problems]
            raise TopologyError(problems) from None

    def use(self) -> dict[Link, LinkUse]:
        """What every link carried, for those that carried anything.

        Raises
        ------
        ProgramError
            If bytes were lost on a link.
        """
        network = self.network
        network.finish()
        missing = network.offered - network.carried - network.under_way()
        if (abs(missing) > 1e-6 * network.offered).any():
            raise ProgramError("bytes were lost on a link; this is a bug in the simulator, please report it")
        found = {}
        for number, members in enumerate(self.links.members):
            if network.carried[number]:
                for link, part in members:
                    use = LinkUse(
                        float(network.carried[number]) * part, float(network.busy[number]), float(network.peak[number])
                    )
                    found[link] = use
        return found
