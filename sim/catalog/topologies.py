"""The topologies that a scenario can name: the built-in ones, and those of installed plug-ins.

A third party registers its class under the entry-point group ``sim.topologies``, named by its ``kind``.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

from sim.errors import Problem, ScenarioError, TopologyError
from sim.explain import read, show
from sim.plugins import Registry
from sim.topology import Topology

_TOPOLOGIES: Registry[Topology] = Registry(
    noun="topology",
    group="sim.topologies",
    built_ins={
        "cluster": "topologies.cluster:Cluster",
        "dgx1": "topologies.dgx1:Dgx1",
        "fully_connected": "topologies.fully_connected:FullyConnected",
        "graph": "topologies.graph:Graph",
        "hgx": "topologies.hgx:Hgx",
        "nvl72": "topologies.nvl72:Nvl72",
        "nvlink_pairs": "topologies.nvlink_pairs:NvlinkPairs",
        "pcie": "topologies.pcie:Pcie",
        "ring": "topologies.ring:Ring",
    },
    base=Topology,
    error=TopologyError,
)
_WHOLE = re.compile("[0-9]{1,18}")
_FILES = (".yaml", ".yml")


class _NestedError(TopologyError, ValueError):
    """What is wrong with a topology inside another one, in a form that pydantic collects with the rest."""


def topology_names() -> list[str]:
    """Return all names that ``parse_topology`` knows; broken plug-ins warn (``PluginWarning``)."""
    return _TOPOLOGIES.names()


def topology_class(kind: str) -> type[Topology]:
    """Return the class of a family.

    Raises
    ------
    TopologyError
        If there is no such family (lists those that exist), or its plug-in is broken.
    """
    return _TOPOLOGIES.load(kind)


def parse_topology(spec: str | dict[str, Any] | Topology, base: Path | None = None) -> Topology:
    """Read what a scenario says about the machine.

    Parameters
    ----------
    spec
        ``hgx-8`` (``kind`` or ``kind-count``), ``{kind: cluster, nodes: 4, node: hgx-8, nic: 400 Gb/s}``, or the
        file of a graph: ``my_box.yaml`` or ``{kind: graph, file: my_box.yaml}``.
    base
        Folder from which a relative path starts.

    Raises
    ------
    TopologyError
        If the kind is unknown or its fields are wrong; carries every problem, keyed by field. Problems of a graph's
        file carry ``file:line:col``.
    """
    if isinstance(spec, Topology):
        return spec
    if isinstance(spec, str):
        text = spec.strip()
        return _from_file(text, base) if text.lower().endswith(_FILES) else _parse_short(text)
    if not isinstance(spec, dict):
        raise TopologyError(Problem(f"must be for example hgx-8 or {{kind: nvl72}}, not {show(spec)}", "topology"))
    kind = spec.get("kind")
    if not isinstance(kind, str):
        text = "is missing" if kind is None else f"must be a name such as hgx, not {show(kind)}"
        raise TopologyError(Problem(f"{text}; choose one of {', '.join(topology_names())}", "topology.kind"))
    fields = {k: v for k, v in spec.items() if k != "kind"}
    if kind == "graph" and "file" in fields:
        return _only_file(fields, base)
    return _from_fields(topology_class(kind), fields, base)


def _only_file(fields: dict[str, Any], base: Path | None) -> Topology:
    if others := [str(key) for key in fields if key != "file"]:
        text = f"cannot stand beside file, which holds the whole graph; remove {' and '.join(others)}"
        raise TopologyError(Problem(text, f"topology.{others[0]}"))
    if not isinstance(fields["file"], str) or not fields["file"].strip():
        text = f"must be the path of a file such as my_box.yaml, not {show(fields['file'])}"
        raise TopologyError(Problem(text, "topology.file"))
    return _from_file(fields["file"].strip(), base)


def _from_file(name: str, base: Path | None) -> Topology:
    """Read a graph from its own file. It is called as the file is, unless it has a name."""
    from sim.documents import Kind, read_file

    path = (base or Path()) / name
    try:
        document = read_file(path, Kind("topology", "nodes and links"))
    except ScenarioError as error:
        raise TopologyError(error.problems) from None
    fields = {"name": path.stem} | document.data
    kind = fields.pop("kind", "graph")
    if kind != "graph":
        problem = Problem(f"must be graph, not {show(kind)}; name other machines in the scenario itself", "kind")
        raise TopologyError([*document.problems, document.place(problem)])
    problems = list(document.problems)
    try:
        found = read(topology_class("graph"), fields, TopologyError)
    except TopologyError as error:
        known = {p.key for p in problems if p.key}
        problems += [document.place(p) for p in error.problems if p.key not in known]
    if problems:
        raise TopologyError(problems)
    return found


def _parse_short(text: str) -> Topology:
    """Read ``kind`` or ``kind-count``. A plug-in's name may hold a dash, but ``hgx-8`` is always 8 of ``hgx``."""
    kind, dash, count = text.rpartition("-")
    whole = _WHOLE.fullmatch(count) is not None
    if not (dash and kind in _TOPOLOGIES) or (not whole and text in _TOPOLOGIES):
        named = kind if kind and whole and text not in _TOPOLOGIES else text
        return _from_fields(topology_class(named), {})
    cls = topology_class(kind)
    if cls.count_field is None:
        raise TopologyError(Problem(f"{kind} has one size; write {kind}, not {show(text)}", "topology"))
    if not whole:
        text = f"after {kind}- comes a whole number of less than 19 digits, as in {kind}-8, not {show(count)}"
        raise TopologyError(Problem(text, "topology"))
    return _from_fields(cls, {cls.count_field: int(count)})


def _from_fields(cls: type[Topology], fields: dict[str, Any], base: Path | None = None) -> Topology:
    try:
        return read(cls, fields, TopologyError, context={"parse_topology": partial(_parse_nested, base=base)})
    except TopologyError as error:
        raise TopologyError(p._replace(key=f"topology.{p.key}".rstrip(".")) for p in error.problems) from None


def _parse_nested(spec: Any, base: Path | None) -> Topology:
    try:
        return parse_topology(spec, base)
    except TopologyError as error:
        inside = (p._replace(key=p.key.removeprefix("topology").lstrip(".")) for p in error.problems)
        raise _NestedError(inside) from None
