"""Which kernels collectives run, what is forced, and what their constants must say."""

from __future__ import annotations

from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.catalog.gpus import load_gpu
from sim.catalog.topologies import parse_topology
from sim.errors import InputError
from sim.fabric import Fabric
from sim.hardware import Gpu
from sim.network.collectives import KINDS, Collectives
from sim.network.constants import FabricConstants, load_fabric_constants

C = load_fabric_constants()
H100, GB200 = load_gpu("h100-sxm"), load_gpu("gb200")


def on(spec: str, gpu: Gpu, **forced: str) -> Collectives:
    return Collectives(parse_topology(spec).build(gpu), gpu, C, forced=forced)


BUILT = {"hgx": on("hgx-8", H100), "ring": on("ring-8", H100)}


def test_every_collective_can_be_priced_on_unknown_links() -> None:
    for engine in C.engines:
        graph = BUILT["ring"].fabric.graph.copy()
        for _, _, link in graph.edges(data=True):
            link["kind"] = "nvlink9"
        machine = Collectives(Fabric("next", "", graph, BUILT["ring"].fabric.gpus), H100, C, engine)
        for kind in KINDS:
            assert machine.cost(kind, (0, 1)).alpha > 0


def test_what_is_forced_is_used_and_named() -> None:
    ranks = tuple(range(8))
    assert on("hgx-8", H100, all_reduce="nccl_ll").cost("all_reduce", ranks).algorithm_for(2**30) == "ring (nccl_ll)"
    assert on("hgx-8", H100, dispatch="nccl_ll").cost("all_reduce", ranks).algorithm == "in_switch"  # another kind
    both = Collectives(BUILT["hgx"].fabric, H100, C, forced={"all_reduce": ("ring", "in_switch")})
    assert both.cost("all_reduce", ranks).algorithm_for(256) == "ring (nccl_ll)"
    with pytest.raises(InputError, match=r"cannot be forced to star here; choose from .*ring"):
        on("hgx-8", H100, all_reduce="star").cost("all_reduce", ranks)
    with pytest.raises(InputError, match="choose one of"):
        on("hgx-8", H100, all_scatter="ring")
    with pytest.raises(InputError, match="engine 'mine' is not known"):
        Collectives(BUILT["hgx"].fabric, H100, C, "mine")


def test_engines_take_their_own_kernels() -> None:
    ranks = tuple(range(8))
    for engine in ("trtllm", "vllm", "sglang"):
        machine = Collectives(BUILT["hgx"].fabric, H100, C, engine)
        assert machine.cost("all_reduce", ranks).algorithm_for(256) == f"one_shot ({engine}_one_shot)"
        assert machine.cost("all_reduce", ranks).algorithm_for(2**28).endswith("(nccl_nvls)")


def test_a_plan_has_the_flows_of_its_size() -> None:
    machine, ranks = BUILT["hgx"], tuple(range(8))
    assert machine.plan("all_reduce", ranks, 256).algorithm == "one_shot"
    assert machine.plan("all_reduce", ranks).algorithm == "in_switch"
    assert machine.plan("all_reduce", (3,)).stages == ()
    assert max(machine.plan("all_reduce", ranks, 256).sent().values()) == pytest.approx(7, rel=1e-9)


def test_vllm_reduces_in_the_switch_through_symmetric_memory() -> None:
    """GB300 NVL72, vLLM 0.27 over 8 GPUs of two trays: 14.0 us at 64 KiB, 63.3 us at 16 MiB; four keep their own
    kernel while messages are short, and two never take it."""
    gb300 = load_gpu("gb300")
    rack = Collectives(parse_topology("nvl72").build(gb300), gb300, C, "vllm")
    trays = rack.cost("all_reduce", tuple(range(8)))
    for message in (2**16, 2**24):
        assert trays.algorithm_for(message) == "in_switch (vllm_symmetric)"
    assert trays.seconds(2**16) == pytest.approx(14.0e-6, rel=0.1)
    assert trays.seconds(2**24) == pytest.approx(63.3e-6, rel=0.1)
    assert "(nccl_" in trays.algorithm_for(2**27)
    assert rack.cost("all_reduce", tuple(range(4))).algorithm_for(2**16) == "one_shot (vllm_one_shot)"
    assert "vllm_symmetric" not in rack.cost("all_reduce", (0, 1)).algorithm_for(2**24)
    assert "vllm_symmetric" not in rack.cost("all_reduce", tuple(range(16))).algorithm_for(2**16)


def test_over_pcie_only_pairs_reach_into_each_others_memory() -> None:
    l40s = load_gpu("l40s")
    for engine, kernel in (("vllm", "pair_one_shot"), ("sglang", "pair_one_shot"), ("trtllm", "nccl_ll")):
        box = Collectives(parse_topology("pcie-8").build(l40s), l40s, C, engine)
        assert box.cost("all_reduce", (0, 1)).algorithm_for(2**10).endswith(f"({kernel})")
        assert box.cost("all_reduce", (0, 1, 2, 3)).algorithm_for(2**10) == "ring (nccl_ll)"


def test_what_an_engine_does_not_have_is_borrowed_only_where_it_has_nothing() -> None:
    ranks = tuple(range(8))
    vllm = Collectives(BUILT["hgx"].fabric, H100, C, "vllm", {"all_reduce": "one_shot"})
    assert vllm.cost("all_reduce", ranks).algorithm_for(2**20) == "one_shot (vllm_one_shot)"
    lent = Collectives(BUILT["hgx"].fabric, H100, C, "vllm", {"all_reduce": "trtllm"})
    assert lent.cost("all_reduce", ranks).algorithm_for(2**10) == "one_shot (trtllm_one_shot)"


@given(st.integers(1, 64), st.floats(1e3, 1e9))
def test_more_multiprocessors_are_never_slower_until_the_links_are_full(sms: int, message: float) -> None:
    ranks, forced = tuple(range(8)), {"dispatch": "deepep_normal_dispatch"}
    few, one_more, plenty = (
        Collectives(BUILT["hgx"].fabric, H100, C.with_chosen(sms=n), forced=forced).cost("dispatch", ranks)
        for n in (sms, sms + 1, 10**6)
    )
    assert plenty.seconds(message) <= one_more.seconds(message) <= few.seconds(message)
    efficiency = C.kernels["deepep_normal_dispatch"].links["nvlink4"].efficiency
    assert plenty.seconds_per_byte == pytest.approx(1 / 450e9 / efficiency, rel=1e-3)


def test_a_low_latency_exchange_takes_longer_the_more_experts_there_are() -> None:
    """DeepEP on 8 H100, dispatch of few tokens: 10.2 us to 128 experts, 12.0 to 256, 16.6 to 512."""
    ranks, forced = tuple(range(8)), {"dispatch": "deepep_ll_dispatch"}
    for experts, measured in ((128, 10.2e-6), (256, 12.0e-6), (512, 16.6e-6)):
        machine = Collectives(BUILT["hgx"].fabric, H100, C, forced=forced, experts=experts)
        assert machine.cost("dispatch", ranks).alpha == pytest.approx(measured, rel=0.15)
    usual = Collectives(BUILT["hgx"].fabric, H100, C, forced=forced).cost("dispatch", ranks).alpha
    assert usual == Collectives(BUILT["hgx"].fabric, H100, C, forced=forced, experts=256).cost("dispatch", ranks).alpha


@given(st.floats(1e-15, 1e-6), st.floats(0, 1e-6), st.floats(0, 1e-6))
def test_copies_at_home_overlap_the_links_in_part(links: float, home: float, more: float) -> None:
    both = C.together(links, home)
    assert max(links, home) <= both * (1 + 1e-12)
    assert both <= (links + home) * (1 + 1e-12)
    assert C.together(links + more, home) >= both * (1 - 1e-12)
    assert C.together(links, home + more) >= both * (1 - 1e-12)


def test_constants_without_source_or_sense_are_refused() -> None:
    raw = C.model_dump()
    with pytest.raises(ValueError, match="sources are not spelled out: nccl"):
        FabricConstants.model_validate({**raw, "sources": {k: v for k, v in raw["sources"].items() if k != "nccl"}})
    with pytest.raises(ValueError, match=r"lies in \(0, 1\]"):
        FabricConstants.model_validate({**raw, "carriers": {"upi": 1.2}})
    kernel = raw["kernels"]["nccl_nvls"]
    for bad in ((-1e-6, 0, 0.5, 0, 0, None, "nccl"), (1e-6, 0, 0.5, 0, 0, 0.0, "nccl")):
        kernels = {**raw["kernels"], "nccl_nvls": {**kernel, "links": {"nvlink4": bad}}}
        with pytest.raises(ValueError, match="times of a kernel are not negative"):
            FabricConstants.model_validate({**raw, "kernels": kernels})


def test_searches_stay_small() -> None:
    """A guard on cost that needs no clock: 64 ranks of a rack are routed without a single search."""
    rack = on("nvl72", GB200)
    rack.cost("all_to_all", tuple(range(64)))
    part = rack.fabric._part(rack.fabric.gpus)
    assert len(part.kinds) == 72 + 1
    assert len(part.edges) == 2 * 72
    assert not part._trees
    assert ceil(len(part.shares[0])) == 18
