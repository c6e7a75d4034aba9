"""The topologies that a scenario can name: the built-in ones, and those of installed plug-ins.

A third party registers its class under the entry-point group ``sim.topologies``, named by its ``kind``.
"""

from __future__ import annotations

import re
from typing import Any

from sim.errors import Problem, TopologyError
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
    if not isinstance(spec, dict):
        raise TopologyError(Problem(f"must be for example hgx-8 or {{kind: nvl72}}, not {show(spec)}", "topology"))
    kind = spec.get("kind")
    if not isinstance(kind, str):
        text = "is missing" if kind is None else f"must be a name such as hgx, not {show(kind)}"
        raise TopologyError(Problem(f"{text}; choose one of {', '.join(topology_names())}", "topology.kind"))
    return _from_fields(topology_class(kind), {k: v for k, v in spec.items() if k != "kind"})


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


def _from_fields(cls: type[Topology], fields: dict[str, Any]) -> Topology:
    try:
        return read(cls, fields, TopologyError, context={"parse_topology": _parse_nested})
    except TopologyError as error:
        raise TopologyError(p._replace(key=f"topology.{p.key}".rstrip(".")) for p in error.problems) from None


def _parse_nested(spec: Any) -> Topology:
    try:
        return parse_topology(spec)
    except TopologyError as error:
        inside = (p._replace(key=p.key.removeprefix("topology").lstrip(".")) for p in error.problems)
        raise _NestedError(inside) from None
