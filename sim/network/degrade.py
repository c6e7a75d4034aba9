"""A fabric with faults: nodes and links that are gone, and others that are slow.

The GPUs stay, in their order, and so do the names of everything that is left. Routes of the degraded fabric go around
what is missing where there is a way; where there is none, asking for the route raises the error that names the cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from sim.errors import TopologyError
from sim.explain import show, suggest
from sim.fabric import Fabric
from sim.topology import new_graph

Part = str | tuple[str, str]
"""A node, or a link by its two ends: both of its directions, or the one that exists."""


def degraded(fabric: Fabric, removed: Iterable[Part] = (), slowed: Mapping[Part, float] | None = None) -> Fabric:
    """Return a copy of ``fabric`` with faults.

    Parameters
    ----------
    removed
        Nodes that are gone with all their links (a switch chip, a NIC), and links that are gone. A GPU's node cannot
        be removed, because ranks run on it; its links can.
    slowed
        The part of their bandwidth that is left to links, in (0, 1]. A node stands for all of its links; a link that
        is named several times, by itself or by a node at its end, is slowed as often.

    Raises
    ------
    TopologyError
        If a node or link does not exist, a GPU is to be removed or a factor is out of range. Names it.

    Notes
    -----
    Switches share traffic by links, not by speed: a switch chip that is gone leaves its part to the others (17 of 18
    chips: 17/18 of the bandwidth), one at half speed keeps its part, and so halves the pace of all.
    """
    gone = tuple(removed)
    left = dict(slowed or {})
    for part in (*gone, *left):
        _check(fabric, part)
    if gpu := next((part for part in gone if part in fabric.gpus), None):
        raise TopologyError(f"{fabric.name}: {gpu!r} is a GPU and cannot be removed; remove its links, or leave it out")
    for part, factor in left.items():
        if not 0 < factor <= 1:
            raise TopologyError(f"{fabric.name}: {_name(part)} can keep more than 0 and at most 1, not {show(factor)}")
    graph = new_graph()
    graph.add_nodes_from(fabric.graph.nodes(data=True))
    graph.add_edges_from((u, v, dict(link)) for u, v, link in fabric.graph.edges(data=True))
    for part, factor in left.items():
        for pair in _edges(fabric, part):
            graph.edges[pair]["bandwidth"] *= factor
    for part in gone:
        if isinstance(part, str):
            graph.remove_nodes_from([part])
        else:
            graph.remove_edges_from(list(_edges(fabric, part)))
    faults = [f"without {_name(part)}" for part in gone]
    faults += [f"{_name(part)} at {100 * factor:g} %" for part, factor in left.items()]
    return Fabric(fabric.name, "; ".join([fabric.description, *faults]), graph, fabric.gpus)


def _name(part: Part) -> str:
    return part if isinstance(part, str) else f"{part[0]}–{part[1]}"


def _edges(fabric: Fabric, part: Part) -> Iterator[tuple[str, str]]:
    """The directed links that a part stands for."""
    if isinstance(part, str):
        yield from ((part, v) for v in fabric.graph.succ[part])
        yield from ((u, part) for u in fabric.graph.pred[part])
    else:
        yield from (pair for pair in (part, part[::-1]) if fabric.graph.has_edge(*pair))


def _check(fabric: Fabric, part: Part) -> None:
    nodes = fabric.graph.nodes
    for end in (part,) if isinstance(part, str) else part:
        if end not in nodes:
            some = ", ".join(list(nodes)[:8]) + ", ..." * (len(nodes) > 8)
            raise TopologyError(f"{fabric.name}: no node is called {show(end)}; {suggest(end, nodes)}nodes: {some}")
    if not isinstance(part, str) and not any(_edges(fabric, part)):
        near = list(dict.fromkeys([*fabric.graph.succ[part[0]], *fabric.graph.pred[part[0]]]))
        some = ", ".join(near[:8]) + ", ..." * (len(near) > 8)
        raise TopologyError(f"{fabric.name}: no link joins {part[0]} and {part[1]}; {part[0]} is linked with {some}")
