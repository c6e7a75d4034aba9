"""From a topology matrix to the file of a graph that scenarios can use.

The matrix shows ``NV18`` between all GPUs of a box with NVSwitches although no two of them are joined directly; that
they are not follows from the count, because no GPU has so many links.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

from sim.errors import TopologyError
from sim.hardware import Gpu
from sim.topo.matrix import TopoMatrix
from sim.topo.pairs import listed
from sim.topo.pcie import pcie_tree

MOST_NVLINKS = 18
"""Links of the GPU that has most of them (H100 to B300)."""
RACK_CHIPS = 18
GPUS_PER_TRAY = 4
"""As in ``topologies.nvl72``."""
_NODE = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,40}[0-9]")


class Imported(NamedTuple):
    """What a graph's file says, and what one should know about the machine."""

    data: dict[str, Any]
    notes: list[str]


def to_graph(matrix: TopoMatrix, name: str, gpu: Gpu | None = None) -> Imported:
    """Turn a matrix into the fields of ``{kind: graph}``.

    Parameters
    ----------
    gpu
        Which GPU it is, if that is known: says how its NVLinks meet the switch chips. Rates always follow the
        scenario's GPU.

    Raises
    ------
    TopologyError
        If the matrix shows NVLinks and ``gpu`` has none.
    """
    names = _node_names(matrix)
    linked = any(matrix.nvlinks(*pair) for pair in combinations(matrix.gpus, 2))
    if linked and gpu and gpu.nvlink is None:
        raise TopologyError(f"the matrix has NVLinks, which {gpu.name} lacks; give the GPU of this machine")
    notes: list[str] = []
    nodes: dict[str, Any] = {names[label]: "gpu" for label in matrix.gpus}
    if _is_rack(gpu) and len(matrix.gpus) > GPUS_PER_TRAY:
        nodes = {names[label]: {"kind": "gpu", "tray": i // GPUS_PER_TRAY} for i, label in enumerate(matrix.gpus)}
        notes.append(f"GPUs of a rack: {GPUS_PER_TRAY} to a tray, in their order")
    nodes |= {names[label]: "nic" for label in matrix.nics}
    links: list[dict[str, Any]] = []
    for group in _islands(matrix):
        count = matrix.nvlinks(group[0], group[1])
        if _is_switched(matrix, group, gpu):
            for width in _widths(count, gpu):
                chip = f"nvswitch{sum(kind == 'nvswitch' for kind in nodes.values())}"
                nodes[chip] = "nvswitch"
                links.append(_counted({"from": [names[g] for g in group], "to": chip, "kind": "nvlink"}, width))
        else:
            pairs = [pair for pair in combinations(group, 2) if matrix.nvlinks(*pair)]
            links += [
                _counted({"from": names[a], "to": names[b], "kind": "nvlink"}, matrix.nvlinks(a, b)) for a, b in pairs
            ]
        notes += _doubts(matrix, group, gpu)
    links += _xgmi(matrix, names)
    notes += _lonely(matrix)
    tree = pcie_tree(matrix, names)
    what = f"{len(matrix.gpus)} GPUs, imported from what {matrix.tool}'s tool prints"
    data = {"kind": "graph", "name": name, "description": what, "nodes": nodes | tree.nodes}
    return Imported(data | {"links": links + tree.links}, notes)


def graph_text(imported: Imported, comments: Iterable[str] = ()) -> str:
    """Write a graph's file, ``comments`` and notes first, one node or link to a line."""
    data = imported.data
    lines = [f"# {_plain(comment)}" for comment in (*comments, *(f"note: {note}" for note in imported.notes))]
    lines += [f"kind: {data['kind']}"]
    lines += [f"{key}: {json.dumps(data[key], ensure_ascii=False)}" for key in ("name", "description")]
    lines += ["nodes:", *(f"  {node}: {_node(kind)}" for node, kind in data["nodes"].items())]
    lines += ["links:", *(f"  - {{{_fields(link)}}}" for link in data["links"])]
    return "\n".join(lines) + "\n"


def _plain(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)


def _node(kind: str | Mapping[str, Any]) -> str:
    return kind if isinstance(kind, str) else f"{{{_fields(kind)}}}"


def _fields(link: Mapping[str, Any]) -> str:
    values = {key: f"[{', '.join(value)}]" if isinstance(value, list) else value for key, value in link.items()}
    return ", ".join(f"{key}: {value}" for key, value in values.items())


def _counted(link: dict[str, Any], count: int) -> dict[str, Any]:
    return link | ({"count": count} if count > 1 else {})


def _node_names(matrix: TopoMatrix) -> dict[str, str]:
    """GPUs are numbered in their order; a NIC is called as its adapter where that is known."""
    names = {label: f"gpu{i}" for i, label in enumerate(matrix.gpus)}
    for nic in matrix.nics:
        wanted = matrix.names.get(nic, nic)
        free = (
            _NODE.fullmatch(wanted) and wanted not in names.values() and not re.match("(gpu|nvs|pci|cpu|root)", wanted)
        )
        names[nic] = wanted if free else f"nic-{len(names)}"
    return names


def _islands(matrix: TopoMatrix) -> list[list[str]]:
    """GPUs that NVLinks connect, two or more."""
    left = list(matrix.gpus)
    found: list[list[str]] = []
    while left:
        reached = [left.pop(0)]
        for gpu in reached:  # grows while it is walked
            near = [other for other in left if matrix.nvlinks(gpu, other)]
            reached += near
            left = [other for other in left if other not in near]
        if len(reached) > 1:
            found.append(sorted(reached, key=matrix.gpus.index))
    return found


def _is_switched(matrix: TopoMatrix, group: Sequence[str], gpu: Gpu | None) -> bool:
    """Whether all pairs have equally many links, and more together than a GPU has."""
    counts = {matrix.nvlinks(*pair) for pair in combinations(group, 2)}
    most = gpu.nvlink.links if gpu and gpu.nvlink else MOST_NVLINKS
    return len(counts) == 1 and 0 not in counts and (len(group) - 1) * min(counts) > most


def _widths(count: int, gpu: Gpu | None) -> list[int]:
    """Links of one GPU to each switch chip; a single chip stands for all where the GPU is not known."""
    from topologies.hgx import CHIPS, links_per_chip

    if gpu is None or gpu.nvlink is None:
        return [count]
    chips = RACK_CHIPS if _is_rack(gpu) else CHIPS.get(gpu.nvlink.generation, 1)
    return [width for width in links_per_chip(count, chips) if width]


def _is_rack(gpu: Gpu | None) -> bool:
    """Whether a GPU comes with a Grace CPU, in the trays of a rack."""
    return gpu is not None and gpu.name.startswith("gb")


def _doubts(matrix: TopoMatrix, group: Sequence[str], gpu: Gpu | None) -> list[str]:
    counts = {matrix.nvlinks(*pair) for pair in combinations(group, 2)}
    has = gpu.nvlink.links if gpu and gpu.nvlink else None
    if has and max(counts) > has:
        return [f"{group[0]} has NV{max(counts)}, {gpu.name if gpu else ''} has {has} NVLinks; is it this GPU?"]
    if has and len(group) > 2 and len(counts) == 1 and max(counts) < has and _is_switched(matrix, group, gpu):
        return [f"all pairs have NV{max(counts)}, the GPU has {has} NVLinks; the others are taken as not connected"]
    return []


def _lonely(matrix: TopoMatrix) -> list[str]:
    """GPUs without NVLink beside others that have it, and bridges with fewer links than others."""
    islands = _islands(matrix)
    alone = [g for g in matrix.gpus if all(g not in island for island in islands)]
    notes = []
    if islands and alone:
        others = len(matrix.gpus) - len(alone)
        text = f"{listed(alone)} {'have' if len(alone) > 1 else 'has'} no NVLink while {others} others have"
        notes.append(f"{text}; a group with it runs over PCIe")
    if islands and all(len(island) == 2 for island in islands):
        widths = {(a, b): matrix.nvlinks(a, b) for a, b in islands}
        most = max(widths.values())
        notes += [
            f"{a}-{b} has {n} NVLinks, another pair {most}; some may be down"
            for (a, b), n in widths.items()
            if n < most
        ]
    return notes


def _xgmi(matrix: TopoMatrix, names: Mapping[str, str]) -> list[dict[str, Any]]:
    """One direct link per pair that is one hop apart; AMD's tools do not count links."""
    links: list[dict[str, Any]] = []
    for i, a in enumerate(matrix.gpus):
        near = [b for b in matrix.gpus[i + 1 :] if matrix.kinds[a, b] == "XGMI" and matrix.hops.get((a, b), 1) == 1]
        if near:
            links.append({"from": names[a], "to": [names[b] for b in near], "kind": "xgmi"})
    return links
