"""The topologies that a scenario can name: the built-in ones, and those of installed plug-ins.

Built-in names never touch the entry points, so no plug-in can break or replace them.
"""

from __future__ import annotations

import re
import warnings
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from pydantic import ValidationError

from sim.errors import Problem, TopologyError
from sim.topology import Topology

GROUP = "sim.topologies"
_BUILT_IN = {
    "cluster": "topologies.cluster:Cluster",
    "dgx1": "topologies.dgx1:Dgx1",
    "fully_connected": "topologies.fully_connected:FullyConnected",
    "hgx": "topologies.hgx:Hgx",
    "nvl72": "topologies.nvl72:Nvl72",
    "nvlink_pairs": "topologies.nvlink_pairs:NvlinkPairs",
    "pcie": "topologies.pcie:Pcie",
    "ring": "topologies.ring:Ring",
}
_SHORT = re.compile(r"(?P<kind>.+?)(?:-(?P<count>\d+))?")


def _plug_ins() -> dict[str, EntryPoint]:
    return {e.name: e for e in entry_points(group=GROUP) if e.name not in _BUILT_IN}


def _load_plug_in(entry: EntryPoint) -> type[Topology] | None:
    """Load one plug-in; a broken one is reported as a warning and left out."""
    try:
        found = entry.load()
        if not (isinstance(found, type) and issubclass(found, Topology)):
            raise TypeError(f"{entry.value} is not a subclass of sim.topology.Topology")
    except Exception as error:  # whatever a stranger's module raises on import
        warnings.warn(f"topology plug-in {entry.name!r} is left out: {error}", RuntimeWarning, stacklevel=3)
        return None
    return found


def topology_names() -> list[str]:
    """Return all names that ``parse_topology`` knows, sorted; broken plug-ins warn and are left out."""
    return sorted([*_BUILT_IN, *(name for name, e in _plug_ins().items() if _load_plug_in(e))])


def topology_class(kind: str) -> type[Topology]:
    """Return the class of a family.

    Raises
    ------
    TopologyError
        If there is no such family; says which ones exist and which come close.
    """
    if kind in _BUILT_IN:
        module, _, name = _BUILT_IN[kind].partition(":")
        built_in: type[Topology] = getattr(import_module(module), name)
        return built_in
    entry = _plug_ins().get(kind)
    if entry and (plug_in := _load_plug_in(entry)):
        return plug_in
    known = topology_names()
    close = get_close_matches(kind, known, n=3)
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    raise TopologyError(Problem(f"{kind!r} is not installed; {hint}known: {', '.join(known)}", key="topology"))


def parse_topology(spec: str | dict[str, Any] | Topology) -> Topology:
    """Read what a scenario says about the machine.

    Parameters
    ----------
    spec
        ``hgx-8`` (``kind`` or ``kind-count``), or ``{kind: cluster, nodes: 4, node: hgx-8, nic: 400 Gb/s}``.

    Raises
    ------
    TopologyError
        If the kind is unknown or its fields are wrong; carries every problem, keyed by field.
    """
    if isinstance(spec, Topology):
        return spec
    if isinstance(spec, str):
        return _parse_short(spec.strip())
    if not isinstance(spec, dict) or not isinstance(spec.get("kind"), str):
        raise TopologyError(Problem(f"{spec!r} names no kind; write for example hgx-8 or {{kind: nvl72}}", "topology"))
    fields = {k: v for k, v in spec.items() if k != "kind"}
    found = topology_class(spec["kind"])
    try:
        return found.model_validate(fields, context={"parse_topology": parse_topology})
    except ValidationError as error:
        raise TopologyError([_problem(found, e) for e in error.errors()]) from None


def _parse_short(text: str) -> Topology:
    match = _SHORT.fullmatch(text)
    if text in _BUILT_IN or not match or not match["count"]:
        return parse_topology({"kind": text})
    found = topology_class(match["kind"])
    if found.count_field is None:
        raise TopologyError(Problem(f"{match['kind']} has one size; write {match['kind']}, not {text!r}", "topology"))
    return parse_topology({"kind": match["kind"], found.count_field: int(match["count"])})


def _problem(found: type[Topology], error: Any) -> Problem:
    key = ".".join(("topology", *map(str, error["loc"])))
    message = str(error["msg"]).removeprefix("Value error, ")
    if error["type"] == "extra_forbidden":
        message = f"not a field of {found.kind}; its fields are {', '.join(found.model_fields) or 'none'}"
    elif error["type"] not in ("missing", "value_error"):
        message = f"{message}, not {error['input']!r}"
    return Problem(message, key=key)
