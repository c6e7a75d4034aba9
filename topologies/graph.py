"""A machine written by hand or imported: nodes, and the links between them, as a graph of a user's own.

Rates that are not written are those of the scenario's GPU, or of the link's kind: see ``LINK_KINDS``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import BeforeValidator, Field, model_serializer, model_validator

from sim.errors import Problem, TopologyError
from sim.explain import show, suggest, unknown_key
from sim.fabric import Fabric
from sim.hardware import Gpu
from sim.noun import Noun
from sim.pcie_tree import CPU_LINK
from sim.topology import LINK_LATENCY, Topology, new_graph, pcie_kind
from sim.units import Rate, Seconds

LINK_KINDS = ("nvlink", "xgmi", "pcie", "upi", "ib", "ethernet")
"""Families of links. ``nvlink`` and ``pcie`` are those of the GPU; with a generation, as in ``nvlink4`` or ``pcie5``,
they have its rate. ``upi`` joins CPU sockets."""
NVLINK_RATES = {"2": 25e9, "3": 25e9, "4": 25e9, "5": 50e9}
"""Bytes/s of one link in one direction, by generation (data sheets of V100, A100, H100, B200)."""
PCIE_RATES = {"3": 16e9, "4": 32e9, "5": 64e9, "6": 128e9}
"""Bytes/s of 16 lanes in one direction."""
OTHER_RATES = {"xgmi": 64e9, "upi": CPU_LINK, "ib": 50e9, "ethernet": 50e9}
"""Bytes/s in one direction: AMD MI300X data sheet (128 GB/s a link, both directions); ``sim.pcie_tree``; 400 Gb/s."""
HOP = {"xgmi": LINK_LATENCY["nvlink"], "pcie": LINK_LATENCY["pcie"] / 2, "upi": LINK_LATENCY["upi"], "ib": 1.35e-6}
"""Seconds of one link, as in the built-in families; Ethernet is as InfiniBand."""
MOST_LINKS = 200_000
_KIND = re.compile(r"(nvlink|pcie|xgmi|upi|ib|ethernet)([2-6](?:-bridge)?)?")


class _GraphError(TopologyError, ValueError):
    """What is wrong with a graph, in a form that pydantic collects with the rest."""


def _node(value: Any) -> Any:
    """Spell ``gpu`` as ``{kind: gpu}``, and name the keys there are."""
    if isinstance(value, dict):
        known = tuple(Node.model_fields)
        if problems := [Problem(unknown_key(key, known), str(key)) for key in value if key not in known]:
            raise _GraphError(problems)
    return {"kind": value} if isinstance(value, str) else value


def _link(value: Any) -> Any:
    """Spell a link's ends as the fields are called, after checking its keys: ``from`` is no name in Python."""
    if isinstance(value, Link) or not isinstance(value, dict):
        return value
    known = ("from", "to", *(name for name in Link.model_fields if name not in ("source", "target")))
    problems = [Problem(unknown_key(key, known), str(key)) for key in value if key not in known]
    spelled = {key: item for key, item in value.items() if key in known}
    for key, name in (("from", "source"), ("to", "target")):
        ends = spelled.pop(key, None)
        ends = [ends] if isinstance(ends, str) else ends
        if isinstance(ends, (list, tuple)) and ends and all(isinstance(end, str) for end in ends):
            spelled[name] = tuple(ends)
        else:
            text = "is missing" if ends is None else f"must be a node or a list of nodes, not {show(ends)}"
            problems.append(Problem(text, key))
    if not _is_kind(spelled.get("kind")):
        text = f"must be one of {', '.join(LINK_KINDS)}, as in nvlink or pcie5, not {show(spelled.get('kind'))}"
        problems.append(Problem(text if "kind" in spelled else "is missing; choose " + ", ".join(LINK_KINDS), "kind"))
    if problems:
        raise _GraphError(problems)
    return spelled


def _is_kind(kind: Any) -> bool:
    match = _KIND.fullmatch(kind) if isinstance(kind, str) else None
    return match is not None and (match[2] is None or match[1] in ("nvlink", "pcie"))


class Node(Noun):
    """One device: its kind, and the number of the server or of the tray of a rack that it sits in, where there are
    several."""

    kind: Literal["gpu", "nvswitch", "nic", "pcie_switch", "cpu", "ib_switch"]
    server: int | None = Field(default=None, ge=0, le=1_000_000)
    tray: int | None = Field(default=None, ge=0, le=1_000_000)

    @model_serializer
    def _short(self) -> str | dict[str, Any]:
        where = {"server": self.server, "tray": self.tray}
        known = {key: number for key, number in where.items() if number is not None}
        return {"kind": self.kind, **known} if known else self.kind


class Link(Noun):
    """``count`` parallel links between each node of ``from`` and each of ``to``, in both directions unless
    ``one_way``; ``bandwidth`` in bytes/s of one of them in one direction, ``latency`` in seconds."""

    source: tuple[str, ...]
    target: tuple[str, ...]
    kind: str
    bandwidth: Annotated[Rate, Field(le=1e18)] | None = None
    latency: Annotated[Seconds, Field(le=1)] | None = None
    count: int = Field(default=1, ge=1, le=1000)
    one_way: bool = False

    @model_serializer
    def _spelled(self) -> dict[str, Any]:
        always = {"from": _one_or_list(self.source), "to": _one_or_list(self.target), "kind": self.kind}
        rest = {"bandwidth": self.bandwidth, "latency": self.latency}
        flags = {"count": self.count if self.count > 1 else None, "one_way": self.one_way or None}
        return always | {key: value for key, value in (rest | flags).items() if value is not None}

    def ends(self) -> Iterator[tuple[str, str]]:
        """Yield every connection once, as from and to."""
        seen: set[tuple[str, str]] = set()
        for a, b in product(self.source, self.target):
            if a != b and (a, b) not in seen and (self.one_way or (b, a) not in seen):
                seen.add((a, b))
                yield a, b


def _one_or_list(ends: tuple[str, ...]) -> str | list[str]:
    return ends[0] if len(ends) == 1 else list(ends)


class _Rated(NamedTuple):
    kind: str
    bandwidth: float
    latency: float


def _rated(link: Link, gpu: Gpu, ends: set[str], where: str) -> _Rated:
    """Kind, bytes/s and seconds of one link between nodes of the kinds ``ends``, with defaults filled in."""
    match = _KIND.fullmatch(link.kind)
    assert match  # checked when the link was read
    family, generation = match[1], match[2]
    hop = HOP.get(family, HOP["ib"])
    if family == "nvlink":
        hop = LINK_LATENCY["nvlink"] / (2 if "nvswitch" in ends else 1)
        own = gpu.nvlink
        if generation:
            kind, rate = link.kind, NVLINK_RATES.get(generation[0])
        else:
            kind, rate = (own.generation, own.link_bandwidth) if own else ("nvlink", None)
        if link.bandwidth is None and rate is None:
            lacks = f"{link.kind} has no known rate" if generation else f"{gpu.name} has no NVLink"
            raise TopologyError(Problem(f"is missing, and {lacks}; write it, or choose another GPU", where))
    elif family == "pcie":
        kind = link.kind if generation else pcie_kind(gpu)
        rate = PCIE_RATES.get(generation[0], gpu.pcie_bandwidth) if generation else gpu.pcie_bandwidth
        kind += "-nic" if "nic" in ends else ""
    else:
        kind, rate = family, OTHER_RATES[family]
    bandwidth = link.bandwidth if link.bandwidth is not None else rate
    assert bandwidth is not None
    return _Rated(kind, bandwidth * link.count, hop if link.latency is None else link.latency)


class Graph(Topology):
    """``{kind: graph, file: my_box.yaml}``, or ``nodes`` and ``links`` in place. A node is ``gpu0: gpu``, or ``{kind:
    gpu, server: 0}``, or ``{kind: gpu, tray: 0}`` in a rack; a link ``{from: gpu0, to: [nvswitch0, nvswitch1], kind:
    nvlink, count: 9}``.

    ``gpus`` gives the order of the ranks, and may leave GPUs out; else they are numbered as they are written.
    """

    kind: ClassVar[str] = "graph"
    count_field: ClassVar[str | None] = None
    name: str = Field(default="graph", min_length=1, max_length=100)
    description: str = Field(default="", max_length=1000)
    nodes: dict[str, Annotated[Node, BeforeValidator(_node)]] = Field(min_length=1)
    links: tuple[Annotated[Link, BeforeValidator(_link)], ...] = ()
    gpus: tuple[str, ...] | None = Field(default=None, min_length=1)

    @model_validator(mode="after")
    def _fits(self) -> Graph:
        problems = [*self._wrong_names(), *self._wrong_links(), *self._wrong_gpus()]
        if problems:
            raise _GraphError(problems)
        return self

    def _wrong_names(self) -> Iterator[Problem]:
        for key, text in (("name", self.name), ("description", self.description), *(("nodes", n) for n in self.nodes)):
            if not text.isprintable():
                yield Problem(f"must be printable text on one line, not {show(text)}", key)

    def _wrong_links(self) -> Iterator[Problem]:
        if sum(len(link.source) * len(link.target) for link in self.links) > MOST_LINKS:
            yield Problem(f"are more than {MOST_LINKS:,} once lists are written out", "links")
            return
        taken: dict[tuple[str, str], int] = {}
        for i, link in enumerate(self.links):
            unknown = [
                Problem(f"{show(end)} is not one of the nodes; {suggest(end, self.nodes)}add it", f"links.{i}.{key}")
                for key, ends in (("from", link.source), ("to", link.target))
                for end in dict.fromkeys(ends)
                if end not in self.nodes
            ]
            yield from unknown
            pairs = list(link.ends())
            if not pairs and not unknown:
                yield Problem(f"joins {show(link.source[0])} with itself", f"links.{i}")
            both = pairs if link.one_way else [*pairs, *((b, a) for a, b in pairs)]
            again = next((pair for pair in both if pair in taken), None)
            if again:
                text = f"{again[0]} to {again[1]} is linked by links.{taken[again]} already; give that one a count"
                yield Problem(text, f"links.{i}")
            taken.update(dict.fromkeys(both, i))

    def _wrong_gpus(self) -> Iterator[Problem]:
        known = [name for name, node in self.nodes.items() if node.kind == "gpu"]
        if not known:
            yield Problem("hold no GPU; write for example gpu0: gpu", "nodes")
        for i, name in enumerate(self.gpus or ()):
            if name not in known:
                yield Problem(
                    f"{show(name)} is not a node of kind gpu; choose from {', '.join(known[:8])}", f"gpus.{i}"
                )
            elif name in (self.gpus or ())[:i]:
                yield Problem(f"{name} is there twice", f"gpus.{i}")
        servers = [self.nodes[name].server for name in known]
        trays = [self.nodes[name].tray for name in known]
        for key, numbers in (("server", servers), ("tray", trays)):
            if None in numbers and any(number is not None for number in numbers):
                name = known[numbers.index(None)]
                yield Problem(f"{name} has no {key}, other GPUs have; give all of them one or none", "nodes")
        if None not in servers and len({servers.count(s) for s in servers}) > 1:
            yield Problem("servers must have equally many GPUs; leave server out if they have not", "nodes")

    @property
    def gpu_count(self) -> int:
        """GPUs in use."""
        return len(self._order)

    @property
    def _order(self) -> tuple[str, ...]:
        return self.gpus or tuple(name for name, node in self.nodes.items() if node.kind == "gpu")

    def build(self, gpu: Gpu) -> Fabric:
        """Build the graph of ``gpu``.

        Raises
        ------
        TopologyError
            If a link has no bandwidth and none follows from its kind and the GPU; says which.
        """
        graph = new_graph()
        for name, node in self.nodes.items():
            places = {"unit": node.server, "tray": node.tray}
            graph.add_node(name, kind=node.kind, **{key: n for key, n in places.items() if n is not None})
        for i, link in enumerate(self.links):
            for a, b in link.ends():
                kinds: set[str] = {self.nodes[a].kind, self.nodes[b].kind}
                data = {**_rated(link, gpu, kinds, f"links.{i}.bandwidth")._asdict(), "links": link.count}
                graph.add_edges_from([(a, b, data)] if link.one_way else [(a, b, data), (b, a, data)])
        counts = [f"{list(self._kinds()).count(kind)} {kind}" for kind in dict.fromkeys(self._kinds()) if kind != "gpu"]
        description = self.description or ", ".join([f"{self.gpu_count} × {gpu.name}", *counts])
        return Fabric(self.name, description, graph, self._order)

    def _kinds(self) -> Iterator[str]:
        return (node.kind for node in self.nodes.values())
