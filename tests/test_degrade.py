"""Faults: what is left of the bandwidth, which way traffic takes, and what is said where no way is left."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.catalog.gpus import load_gpu
from sim.catalog.topologies import parse_topology
from sim.errors import TopologyError
from sim.fabric import Fabric
from sim.network.degrade import degraded

GPUS = {"hgx-8": "h100-sxm", "nvl72": "gb200", "nvl72-8": "gb200", "dgx1": "v100-sxm2-32gb", "cluster-2": "h100-sxm"}
FABRICS = {name: parse_topology(name).build(load_gpu(gpu)) for name, gpu in GPUS.items()}


def pace(fabric: Fabric, ranks: range | None = None) -> float:
    """Seconds of an all-to-all in which everybody sends one byte to everybody."""
    ranks = ranks or range(len(fabric))
    part, loads, _ = fabric.load([(a, b, 1.0) for a, b in permutations(ranks, 2)], ranks)
    return max(load / edge.bandwidth for load, edge in zip(loads, part.edges, strict=True))


@pytest.mark.parametrize("chips", [1, 2, 5, 17])
def test_a_rack_without_some_of_its_18_chips_has_the_bandwidth_of_the_others(chips):
    whole = FABRICS["nvl72"]
    left = degraded(whole, removed=[f"nvswitch{2 * i % 18 + i // 9}" for i in range(chips)])
    assert pace(left) == pytest.approx(pace(whole) * 18 / (18 - chips), rel=1e-12)
    assert left.egress("gpu5") == pytest.approx(whole.egress("gpu5") * (18 - chips) / 18, rel=1e-12)
    assert left.gpus == whole.gpus


def test_a_box_splits_by_links_over_the_chips_that_are_left():
    whole = FABRICS["hgx-8"]  # 5, 4, 4 and 5 links to the chips
    for chip, links in enumerate((5, 4, 4, 5)):
        assert pace(degraded(whole, removed=[f"nvswitch{chip}"])) == pytest.approx(pace(whole) * 18 / (18 - links))


@given(st.floats(0.01, 1), st.integers(0, 17))
def test_a_slow_chip_keeps_its_part_of_the_traffic_and_limits_all(factor, chip):
    whole = FABRICS["nvl72-8"]
    slow = degraded(whole, slowed={f"nvswitch{chip}": factor})
    assert pace(slow) == pytest.approx(pace(whole) / factor, rel=1e-12)
    assert slow.bisection_bandwidth == pytest.approx(whole.bisection_bandwidth * (17 + factor) / 18, rel=1e-9)


def test_a_lost_link_costs_its_gpu_one_part_in_18_and_the_others_nothing():
    whole = FABRICS["nvl72-8"]
    lost = degraded(whole, removed=[("gpu0", "nvswitch3")])
    assert pace(lost, range(1, 8)) == pytest.approx(pace(whole, range(1, 8)), rel=1e-12)
    _, loads, _ = lost.load([(0, 1, 17.0)], range(8))
    assert max(loads) == pytest.approx(17)  # over 17 of the links, folded into one
    assert pace(lost) == pytest.approx(pace(whole) * 18 / 17, rel=1e-12)
    routes = lost.routes("gpu1", "gpu2")
    assert [r.share for r in routes] == pytest.approx([1 / 18] * 18)
    assert [r.share for r in lost.routes("gpu1", "gpu0")] == pytest.approx([1 / 17] * 17)


def test_a_slow_link_slows_only_what_takes_it():
    whole = FABRICS["hgx-8"]
    slow = degraded(whole, slowed={("gpu0", "nvswitch1"): 0.25})
    assert pace(slow) == pytest.approx(4 * pace(whole))
    assert pace(slow, range(1, 8)) == pytest.approx(pace(whole, range(1, 8)))
    assert slow.group_shape((0, 1)) != slow.group_shape((2, 3)) == slow.group_shape((4, 5))


def test_without_a_nic_traffic_reaches_the_other_rails_over_nvlink():
    whole = FABRICS["cluster-2"]
    lost = degraded(whole, removed=["node0.nic3"])
    assert all("node0.nic3" not in r.nodes for r in lost.routes("node0.gpu3", "node1.gpu3"))
    assert len(whole.routes("node0.gpu3", "node1.gpu3")) == 1
    nics = {node for r in lost.routes("node0.gpu3", "node1.gpu3") for node in r.nodes if node.startswith("node0.nic")}
    assert nics == {f"node0.nic{i}" for i in range(8) if i != 3}
    assert lost.diameter > whole.diameter  # the worst pair is in the server that lost something


def test_a_diameter_looks_at_every_server_that_differs():
    lost = degraded(FABRICS["cluster-2"], removed=["node1.nic3"])
    mirrored = degraded(FABRICS["cluster-2"], removed=["node0.nic3"])
    assert lost.diameter == mirrored.diameter
    assert FABRICS["cluster-2"].unit_sorts == {0: 0, 1: 0}
    assert lost.unit_sorts == {0: 0, 1: 1}


def test_a_cube_mesh_goes_around_a_lost_link():
    lost = degraded(FABRICS["dgx1"], removed=[("gpu0", "gpu4")])
    assert {r.nodes for r in lost.routes("gpu0", "gpu5")} == {("gpu0", "gpu1", "gpu5")}


def test_a_cut_is_named():
    lost = degraded(FABRICS["cluster-2"], removed=[f"node1.nic{i}" for i in range(8)])
    with pytest.raises(TopologyError, match=r"nothing connects 'node0.gpu0' and 'node1.gpu0'; 'node0.gpu0' reaches no"):
        degraded(lost, removed=[f"node0.nvswitch{i}" for i in range(4)]).routes("node0.gpu0", "node1.gpu0")
    with pytest.raises(TopologyError, match=r"'node0.gpu0' reaches node0.gpu1, .*node0.gpu7$"):
        lost.load([(0, 8, 1.0)], (0, 8))


@settings(deadline=None, max_examples=50)
@given(st.data())
def test_faults_leave_the_whole_fabric_as_it_was_and_never_add_bandwidth(data):
    whole = FABRICS[data.draw(st.sampled_from(["hgx-8", "nvl72-8", "dgx1"]))]
    links = sorted(whole.graph.edges)
    before = {pair: dict(link) for pair, link in whole.graph.edges.items()}
    removed = data.draw(st.lists(st.sampled_from(links), max_size=3))
    slowed = data.draw(st.dictionaries(st.sampled_from(links), st.floats(0.1, 1), max_size=3))
    lost = degraded(whole, removed, slowed)
    assert {pair: dict(link) for pair, link in whole.graph.edges.items()} == before
    assert lost.bisection_bandwidth <= whole.bisection_bandwidth * (1 + 1e-9)
    assert all(lost.egress(g) <= whole.egress(g) for g in whole.gpus)


def test_faults_add_up():
    whole = FABRICS["hgx-8"]
    twice = degraded(whole, slowed={"nvswitch0": 0.5, ("gpu0", "nvswitch0"): 0.5})
    assert twice.graph.edges["gpu0", "nvswitch0"]["bandwidth"] == 125e9 / 4
    assert twice.graph.edges["nvswitch0", "gpu1"]["bandwidth"] == 125e9 / 2
    assert twice.description.endswith("; nvswitch0 at 50 %; gpu0–nvswitch0 at 50 %")


@pytest.mark.parametrize(
    ("removed", "slowed", "message"),
    [
        (["nvswich2"], {}, "no node is called 'nvswich2'; did you mean 'nvswitch2' or 'nvswitch3'? "),
        ([("gpu0", "gpu9")], {}, "no node is called 'gpu9'; "),
        (
            [("gpu0", "gpu1")],
            {},
            "no link joins gpu0 and gpu1; gpu0 is linked with nvswitch0, nvswitch1, nvswitch2, nv",
        ),
        (["gpu3"], {}, "'gpu3' is a GPU and cannot be removed; remove its links, or leave it out"),
        ([], {"xy": 0.5}, "no node is called 'xy'; nodes: gpu0, gpu1"),
        ([], {"gpu0": 0.0}, "gpu0 can keep more than 0 and at most 1, not 0.0"),
        ([], {("gpu0", "nvswitch0"): 2}, "gpu0–nvswitch0 can keep more than 0 and at most 1, not 2"),
        ([], {"gpu0": float("nan")}, "gpu0 can keep more than 0 and at most 1, not nan"),
    ],
)
def test_an_unknown_part_or_factor_is_named(removed, slowed, message):
    with pytest.raises(TopologyError) as error:
        degraded(FABRICS["hgx-8"], removed, slowed)
    assert message in str(error.value)
