"""Granularity ``flows``: alone a collective takes what it costs; together they slow each other on shared links."""

from __future__ import annotations

import pytest

from sim import parse_scenario, simulate
from sim.catalog.models import load_model
from sim.evaluate import Evaluation
from sim.placement import Placement
from sim.testing import SAMPLE_MODELS, sample_machine
from sim.workload import Precision, Workload
from strategies.attention_dp import AttentionDataParallel
from strategies.dcp import DecodeContextParallel
from strategies.helix import Helix
from strategies.kvp import KvParallel
from strategies.tp import TensorParallel
from strategies.wide_ep import WideExpertParallel

LAYOUTS = [
    TensorParallel(tp=8),
    TensorParallel(tp=4, pp=2),
    AttentionDataParallel(dp=4, tp=2),
    AttentionDataParallel(dp=8, ep=8),
    WideExpertParallel(dp=8),
    WideExpertParallel(dp=4, tp=2, two_batch_overlap=True),
    KvParallel(kvp=2, tp=4),
    DecodeContextParallel(tp=8, dcp=4),
    Helix(tpa=2, kvp=4, hop_b=4),
]


def evaluation(model, strategy, granularity, machine):
    placed = Placement(model, strategy, Precision())
    return Evaluation(placed, machine, Workload(batch=64, context=8192), granularity=granularity)


@pytest.mark.parametrize("strategy", LAYOUTS, ids=lambda s: s.label)
def test_flows_are_ranks_are_folded_where_nothing_is_shared(strategy):
    machine = sample_machine(16)
    for model in (SAMPLE_MODELS["gqa-moe"], SAMPLE_MODELS["mla-moe"]):
        seconds = [evaluation(model, strategy, g, machine).step().seconds for g in ("folded", "ranks", "flows")]
        assert seconds[1:] == pytest.approx([seconds[0]] * 2, rel=1e-9)


def box(order, granularity):
    """Two TP groups on a PCIe box with two sockets, and a prefill whose messages are long."""
    scenario = parse_scenario(
        {
            "model": "llama-3.1-8b",
            "gpu": "l40s",
            "topology": "pcie-8",
            "workload": {"phase": "prefill", "batch": 4, "context": "8k"},
            "layouts": [
                {
                    "strategy": "attention_dp",
                    "dp": 2,
                    "tp": 4,
                    "dense": "attention_tp",
                    "vocab": "attention_tp",
                    "rank_order": order,
                }
            ],
            "granularity": granularity,
        }
    )
    return simulate(scenario, scenario.layouts[0])


def test_groups_of_one_socket_each_do_not_meet():
    apart = ["dp", "tp"]
    assert box(apart, "flows").step.seconds == pytest.approx(box(apart, "ranks").step.seconds, rel=1e-9)


def test_groups_that_share_the_link_between_sockets_slow_each_other():
    mixed = ["tp", "dp"]
    alone, shared = box(mixed, "ranks"), box(mixed, "flows")
    assert shared.step.seconds > 1.1 * alone.step.seconds
    between = [link for link in shared.links if link.source.startswith("cpu") and link.target.startswith("cpu")]
    assert len(between) == 2
    assert max(link.peak_utilisation for link in between) == pytest.approx(1.0)
    assert shared.memory == alone.memory


def test_link_bytes_are_what_the_collectives_put_on_them():
    """tp 2 over one switch fabric: every byte that a GPU sends leaves it over its own links."""
    machine, model = sample_machine(2), load_model("llama-3.1-8b")
    one = evaluation(model, TensorParallel(tp=2), "flows", machine)
    (passed,) = one.best.passes
    out: dict[str, float] = {}
    into: dict[str, float] = {}
    for (source, target), use in passed.links.items():
        out[source] = out.get(source, 0.0) + use.bytes
        into[target] = into.get(target, 0.0) + use.bytes
        assert 0 < use.peak <= 1 + 1e-9
        assert use.busy_seconds <= one.best.seconds
    switches = [node for node in out if not node.startswith("gpu")]
    assert all(out[node] == pytest.approx(into[node], rel=1e-9) for node in switches)
    assert out["gpu0"] == pytest.approx(into["gpu0"], rel=1e-9)


def test_links_are_reported_only_where_messages_share_them():
    assert box(["dp", "tp"], "ranks").links == ()
    links = box(["dp", "tp"], "flows").links
    assert 0 < len(links) <= 32
    assert [link.busy_seconds for link in links] == sorted((link.busy_seconds for link in links), reverse=True)
