"""From kinds of PCIe links to a tree that has them: switches, root complexes and sockets.

``PIX`` is one switch between two devices, ``PXB`` several, ``PHB`` a root complex, ``NODE`` two of them in one NUMA
node, ``SYS`` the link between NUMA nodes. What NVLink hides, NUMA nodes and the links to third devices tell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from typing import Any, NamedTuple

from sim.topo.matrix import TopoMatrix

Group = list[str]


class PcieTree(NamedTuple):
    """Nodes (kind by name) that stand between the devices, and links as a graph's file writes them."""

    nodes: dict[str, str]
    links: list[dict[str, Any]]


def distance(matrix: TopoMatrix, a: str, b: str) -> str | None:
    """Return the PCIe kind of a pair; ``None`` where the matrix shows a faster link instead, or nothing.

    AMD's tools say ``PCIE`` and count hops: two through one root complex, more between sockets.
    """
    kind = matrix.kinds.get((a, b))
    if kind == "PCIE":
        return "SYS" if matrix.hops.get((a, b), 2) > 2 else "PHB"
    return kind if kind in ("PIX", "PXB", "PHB", "NODE", "SYS") else None


def pcie_tree(matrix: TopoMatrix, names: dict[str, str]) -> PcieTree:
    """Build the tree. ``names`` are the nodes of the devices by their labels in the matrix."""
    found = {pair: distance(matrix, *pair) for pair in combinations(names, 2)}
    near = {pair: kind for pair, kind in found.items() if kind}
    tree = PcieTree({}, [])
    sockets = _sockets(matrix, list(names), near)
    cpus = _cpu_names(matrix, sockets)
    tree.nodes.update((cpu, "cpu") for cpu in cpus)
    for cpu, members in zip(cpus, sockets, strict=True):
        _fill_socket(tree, matrix, cpu, members, near, names)
    if len(cpus) > 1:
        tree.links.append({"from": cpus, "to": cpus, "kind": "upi"})
    return tree


def _sockets(matrix: TopoMatrix, labels: Group, near: dict[tuple[str, str], str]) -> list[Group]:
    """Devices by NUMA node, as far as one can tell: never two in one that the matrix keeps apart."""
    groups = _joined([[label] for label in labels], (pair for pair, kind in near.items() if kind != "SYS"))
    apart = {frozenset(pair) for pair, kind in near.items() if kind == "SYS"}
    numa = matrix.numa

    def may_join(one: Group, other: Group) -> bool:
        return not any(frozenset((a, b)) in apart for a in one for b in other)

    same = (p for p in combinations(labels, 2) if p[0] in numa and numa[p[0]] == numa.get(p[1]))
    groups = _joined(groups, same, may_join)
    hidden = (
        (a, b)
        for a, b in combinations(labels, 2)
        if (a, b) not in near and (a not in numa or b not in numa or numa[a] == numa[b])
    )
    return _joined(groups, hidden, may_join)


def _joined(
    groups: Sequence[Group],
    pairs: Iterable[tuple[str, str]],
    allowed: Callable[[Group, Group], bool] = lambda one, other: True,
) -> list[Group]:
    """Merge the groups of each pair, where ``allowed``; groups stay in the order of their first member."""
    order = {label: i for i, label in enumerate(label for group in groups for label in group)}
    home = {label: list(group) for group in groups for label in group}
    home.update((label, home[group[0]]) for group in groups for label in group)  # one list per group
    for a, b in pairs:
        if home[a] is not home[b] and allowed(home[a], home[b]):
            merged = home[a]
            merged += home[b]
            for label in home[b]:
                home[label] = merged
    unique = {id(group): sorted(group, key=order.__getitem__) for group in home.values()}
    return sorted(unique.values(), key=lambda group: order[group[0]])


def _cpu_names(matrix: TopoMatrix, sockets: list[Group]) -> list[str]:
    """``cpu`` with the NUMA node where every socket has its own, else numbers."""
    nodes = [{matrix.numa[label] for label in members if label in matrix.numa} for members in sockets]
    known = [min(found) for found in nodes if len(found) == 1]
    numbers = known if len(set(known)) == len(sockets) else range(len(sockets))
    return [f"cpu{n}" for n in numbers]


def _fill_socket(
    tree: PcieTree,
    matrix: TopoMatrix,
    cpu: str,
    members: Group,
    near: dict[tuple[str, str], str],
    names: dict[str, str],
) -> None:
    inside = {pair: kind for pair, kind in near.items() if pair[0] in members and pair[1] in members}
    roots = _classes(members, inside, ("PIX", "PXB", "PHB"))
    own_roots = len(roots) > 1 and "NODE" in inside.values()
    direct: Group = []
    for root in roots:
        parent = cpu
        if own_roots:
            parent = _add(tree, "root", "cpu")
            _connect(tree, [parent], cpu, count=len(root))
        slots: Group = []
        for branch in _classes(root, inside, ("PIX", "PXB")):
            switches = _classes(branch, inside, ("PIX",))
            if len(branch) == 1:
                slots += branch
                continue
            holding = [switch for switch in switches if any(d in matrix.gpus for d in switch)]
            above = parent
            if len(holding) != 1 and len(switches) > 1:
                above = _add(tree, "pcie_switch", "pcie_switch")
                _connect(tree, [above], parent)
            # adapters hang below the only switch that has GPUs, so that these are no farther from the CPU than they are
            for switch in sorted(switches, key=lambda s: s not in holding):
                node = _add(tree, "pcie_switch", "pcie_switch")
                _connect(tree, [node], above)
                _connect(tree, [names[d] for d in switch], node)
                above = node if len(holding) == 1 and switch in holding else above
        if own_roots and slots:
            _connect(tree, [names[d] for d in slots], parent)
        elif slots:
            direct += slots
    if direct:
        _connect(tree, [names[d] for d in direct], cpu)


def _classes(members: Group, kinds: dict[tuple[str, str], str], joining: tuple[str, ...]) -> list[Group]:
    """Devices that links of the kinds ``joining`` connect."""
    chosen = (p for p, kind in kinds.items() if kind in joining and p[0] in members and p[1] in members)
    return _joined([[label] for label in members], chosen)


def _connect(tree: PcieTree, below: Sequence[str], above: str, count: int = 1) -> None:
    ends = below[0] if len(below) == 1 else list(below)
    width = {"count": count} if count > 1 else {}
    tree.links.append({"from": ends, "to": above, "kind": "pcie", **width})


def _add(tree: PcieTree, prefix: str, kind: str) -> str:
    name = f"{prefix}{sum(node.startswith(prefix) for node in tree.nodes)}"
    tree.nodes[name] = kind
    return name
