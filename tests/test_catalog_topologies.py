"""Topologies by name: built in, by a real entry point, and what is said of a wrong one."""

import subprocess
import sys

import pytest

from sim.catalog.gpus import load_gpu
from sim.catalog.topologies import parse_topology, topology_class, topology_names
from sim.errors import TopologyError
from sim.plugins import PluginWarning

pytest_plugins = ["plug_ins"]
BUILT_IN = ["cluster", "dgx1", "fully_connected", "graph", "hgx", "nvl72", "nvlink_pairs", "pcie", "ring"]
KNOWN = ", ".join(BUILT_IN)
GROUP = "sim.topologies"
SOURCE = """
from typing import ClassVar
from topologies.ring import Ring

class {cls}(Ring):
    kind: ClassVar[str] = "{kind}"
    arms: int = 1
"""


def problems(spec: object) -> list[str]:
    with pytest.raises(TopologyError) as caught:
        parse_topology(spec)  # type: ignore[arg-type]
    return [str(problem) for problem in caught.value.problems]


def test_the_built_in_topologies_are_known():
    assert topology_names() == BUILT_IN
    assert [topology_class(kind).kind for kind in BUILT_IN] == BUILT_IN


def test_built_in_names_do_not_touch_the_entry_points():
    code = (
        "import importlib.metadata as m\n"
        "found = m.entry_points\n"
        "def guarded(**which):\n"
        "    assert which.get('group') != 'sim.topologies', 'looked up'\n"
        "    return found(**which)\n"
        "m.entry_points = guarded\n"
        "from sim.catalog.topologies import parse_topology\n"
        "parse_topology('hgx'), parse_topology({'kind': 'cluster', 'nodes': 2, 'node': 'ring-4'})\n"
        "print(parse_topology('hgx-4').gpu_count)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "4\n"


def test_a_plug_in_is_found_through_its_entry_point(install):
    kind = {"star": "shardwise_test_a:Star"}
    install("shardwise_test_a", kind, SOURCE.format(cls="Star", kind="star"), GROUP)
    assert topology_names() == [*BUILT_IN, "star"]
    assert parse_topology("star-4").gpu_count == 4
    machine = parse_topology({"kind": "star", "gpus": 4, "arms": 2})
    assert machine.model_dump() == {"kind": "star", "gpus": 4, "arms": 2}
    assert parse_topology({"kind": "cluster", "nodes": 2, "node": "star-4"}).gpu_count == 8
    assert len(machine.build(load_gpu("h100-sxm"))) == 4
    assert problems("star-0") == ["topology.gpus: must be at least 1, not 0"]
    assert problems("stars-4") == [f"topology: 'stars' is not installed; did you mean 'star'? known: {KNOWN}, star"]


def test_a_plug_in_may_have_dashes_in_its_name_but_not_shadow_a_short_form(install):
    names = {"hgx-8": "A", "hgx-x": "B", "star-8": "C"}
    source = "".join(SOURCE.format(cls=cls, kind=kind) for kind, cls in names.items())
    install("shardwise_test_b", {kind: f"shardwise_test_b:{cls}" for kind, cls in names.items()}, source, GROUP)
    assert parse_topology("hgx-8").kind == "hgx"
    assert parse_topology({"kind": "hgx-8"}).kind == "hgx-8"
    for name in ("hgx-x", "star-8"):
        assert parse_topology(name).kind == name
        assert parse_topology(f"{name}-3").gpu_count == 3


def test_a_broken_plug_in_warns_and_says_why_when_it_is_named(install):
    install("shardwise_test_c", {"broken": "shardwise_test_c:Gone"}, "x = 1\n", GROUP)
    install("shardwise_test_d", {"odd": "shardwise_test_d:Odd"}, "Odd = 3\n", GROUP)
    install("shardwise_test_e", {"ring": "shardwise_test_e:Mine"}, SOURCE.format(cls="Mine", kind="ring"), GROUP)
    with pytest.warns(PluginWarning) as warned:
        assert topology_names() == BUILT_IN
    assert [str(w.message) for w in warned] == [
        "topology plug-in 'broken' of shardwise_test_c (shardwise_test_c:Gone) is left out: "
        "AttributeError: module 'shardwise_test_c' has no attribute 'Gone'",
        "topology plug-in 'odd' of shardwise_test_d (shardwise_test_d:Odd) is left out: "
        "TypeError: 3 does not derive from sim.topology.Topology",
        "topology plug-in 'ring' of shardwise_test_e (shardwise_test_e:Mine) is left out: the name is taken",
    ]
    assert problems("broken-8") == [
        "topology: plug-in 'broken' of shardwise_test_c (shardwise_test_c:Gone) cannot be used: "
        "AttributeError: module 'shardwise_test_c' has no attribute 'Gone'"
    ]
    assert type(parse_topology("ring")).__module__ == "topologies.ring"


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("hgx-99", "topology.gpus: must be at most 16, not 99"),
        ("ring-0", "topology.gpus: must be at least 1, not 0"),
        ("cluster-0", "topology.nodes: must be at least 1, not 0"),
        *(
            (
                f"hgx-{count}",
                f"topology: after hgx- comes a whole number of less than 19 digits, as in hgx-8, not {count!r}",
            )
            for count in ("1e9", "x", "", "8.0", "٨", "1_000", " 8", "9" * 19)
        ),
        ("hgx--8", f"topology: 'hgx-' is not installed; did you mean 'hgx'? known: {KNOWN}"),
        ("dgx1-8", "topology: dgx1 has one size; write dgx1, not 'dgx1-8'"),
        ("dgx1-x", "topology: dgx1 has one size; write dgx1, not 'dgx1-x'"),
        ("hgxx-8", f"topology: 'hgxx' is not installed; did you mean 'hgx'? known: {KNOWN}"),
        ("", f"topology: '' is not installed; known: {KNOWN}"),
        ("8", f"topology: '8' is not installed; known: {KNOWN}"),
        ("-8", f"topology: '-8' is not installed; known: {KNOWN}"),
        (8, "topology: must be for example hgx-8 or {kind: nvl72}, not 8"),
        (None, "topology: must be for example hgx-8 or {kind: nvl72}, not empty"),
        ({}, f"topology.kind: is missing; choose one of {KNOWN}"),
        ({"kind": ["hgx"]}, f"topology.kind: must be a name such as hgx, not a list; choose one of {KNOWN}"),
        ({"kind": "hgx", "gpus": "many"}, "topology.gpus: must be a whole number, not 'many'"),
        ({"kind": "hgx", "gpus": 7.5}, "topology.gpus: must be a whole number, not 7.5"),
        ({"kind": "hgx", "gpus": float("inf")}, "topology.gpus: must be a finite number, not inf"),
        ({"kind": "hgx", "gpus": True}, "topology.gpus: must be a number, not true"),
        ({"kind": "hgx", "gpu": 8}, "topology.gpu: unknown key 'gpu'; did you mean 'gpus'? known keys: gpus"),
        ({"kind": "dgx1", "gpus": 8}, "topology.gpus: unknown key 'gpus'; known keys: none"),
        ({"kind": "cluster"}, "topology.nodes: is missing"),
        ({"kind": "cluster", "nodes": 2, "network": "wifi"}, "topology.network: must be ib or ethernet, not 'wifi'"),
        ({"kind": "cluster", "nodes": 2, "nic": 0}, "topology.nic: must be more than 0, not 0"),
        ({"kind": "cluster", "nodes": 2, "node": "hgx-99"}, "topology.node.gpus: must be at most 16, not 99"),
        (
            {"kind": "cluster", "nodes": 2, "node": "hgxx"},
            f"topology.node: 'hgxx' is not installed; did you mean 'hgx'? known: {KNOWN}",
        ),
        (
            {"kind": "cluster", "nodes": 2, "node": {"kind": "cluster", "nodes": 2, "node": {"kind": "pcie", "x": 1}}},
            "topology.node.node.x: unknown key 'x'; known keys: gpus, sockets, gpus_per_switch, cpu_link, uplink",
        ),
        (
            {"kind": "cluster", "nodes": 2, "node": 8},
            "topology.node: must be for example hgx-8 or {kind: nvl72}, not 8",
        ),
    ],
)
def test_each_wrong_topology_has_its_own_message(spec, expected):
    assert problems(spec) == [expected]


def test_problems_of_the_inner_machine_come_with_those_of_the_outer_one():
    spec = {"kind": "cluster", "nodes": 0, "node": {"kind": "hgx", "gpus": 0, "x": 1}, "oversubscription": 0}
    assert sorted(problems(spec)) == [
        "topology.node.gpus: must be at least 1, not 0",
        "topology.node.x: unknown key 'x'; known keys: gpus",
        "topology.nodes: must be at least 1, not 0",
        "topology.oversubscription: must be at least 1, not 0",
    ]
