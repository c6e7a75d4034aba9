"""Faults, traffic of others and forced algorithms in scenarios: read, refused in words, and felt in the step."""

from __future__ import annotations

import pytest

from sim import compare, parse_scenario, simulate
from sim.catalog.gpus import load_gpu
from sim.catalog.topologies import parse_topology
from sim.conditions import Conditions
from sim.errors import InputError, ScenarioError
from sim.network import transport
from sim.render.layout import render_layout
from sim.run import evaluate, machine

BASE = {
    "model": "llama-3.1-8b",
    "gpu": "h200-sxm",
    "topology": "hgx-8",
    "workload": {"phase": "decode", "batch": 32, "context": "16k"},
    "layouts": [{"strategy": "tp", "tp": 4}],
}


def scenario(**changes):
    return parse_scenario(BASE | changes)


def seconds(found=None, **changes):
    found = found or scenario(**changes)
    return simulate(found, found.layouts[0]).step.seconds


@pytest.mark.parametrize(
    ("changes", "problems"),
    [
        ({"faults": [{}]}, ["faults.0: must name one of node, link or gpu, not none"]),
        ({"faults": [{"node": "nvswitch0", "gpu": 1}]}, ["faults.0: must name one of node, link or gpu, not node and"]),
        ({"faults": [{"gpu": 1}]}, ["faults.0: a GPU that is gone runs no rank"]),
        ({"faults": [{"gpu": 8, "speed": 0.5}]}, ["faults.0.gpu: there is no GPU 8: the topology has 0 to 7"]),
        ({"faults": [{"gpu": -1, "speed": 0.5}]}, ["faults.0.gpu: must be at least 0"]),
        ({"faults": [{"gpu": True, "speed": 0.5}]}, ["faults.0.gpu: must be"]),
        ({"faults": [{"gpu": 1, "speed": 1.0}]}, ["faults.0.speed: must be less than 1"]),
        ({"faults": [{"gpu": 1, "speed": -0.1}]}, ["faults.0.speed: must be at least 0"]),
        ({"faults": [{"gpu": 1, "speed": float("nan")}]}, ["faults.0.speed: must be a finite number"]),
        ({"faults": [{"node": "nvswitch0", "at": "-1 ms"}]}, ["faults.0.at: must be at least 0"]),
        ({"faults": [{"node": "nvswitch0", "at": "2 ms", "until": "1 ms"}]}, ["faults.0: ends at 1 ms, but beg"]),
        ({"faults": [{"node": "nvswitch9"}]}, ["faults.0.node: hgx-8: no node is called 'nvswitch9'; did you mean"]),
        (
            {"faults": [{"link": ["gpu0", "gpu1"]}, {"node": "nic0"}]},
            ["faults.0.link: hgx-8: no link joins gpu0 and gpu1", "faults.1.node: hgx-8: no node is called 'nic0'"],
        ),
        ({"faults": [{"link": ["gpu0"]}]}, ["faults.0.link"]),
        ({"faults": {"node": "nvswitch0"}}, ["faults: must be a list"]),
        ({"faults": [{"node": "nvswitch0", "at": "1 ms"}]}, ["faults.0.at: a fault that comes or goes"]),
        ({"faults": [{"node": "nvswitch0", "until": "1 ms"}]}, ["faults.0.until: a fault that comes or goes"]),
        ({"background": [{"gpus": [0, 1], "size": "1 GiB"}]}, ["background: traffic of others needs"]),
        (
            {"granularity": "flows", "background": [{"gpus": [0, 0], "size": 1}, {"gpus": [0, 9], "size": "1 GiB"}]},
            ["background.0: lists a GPU twice"],
        ),
        ({"granularity": "flows", "background": [{"gpus": [0, 9], "size": 9}]}, ["background.0.gpus: there is no"]),
        ({"granularity": "flows", "background": [{"gpus": [0, 1], "size": 0}]}, ["background.0.size: must be"]),
        ({"granularity": "flows", "background": [{"gpus": [0, 1, 2], "size": 1}]}, ["background.0: send goes from"]),
        ({"granularity": "flows", "background": [{"kind": "x", "gpus": [0, 1], "size": 1}]}, ["background.0.kind"]),
        ({"engine": "vlm"}, ["engine: must be trtllm, vllm, sglang, vllm-0.18 or sglang-0.5.11, not 'vlm'"]),
        ({"collectives": {"all_reduse": "ring"}}, ["collectives.all_reduse: is not a collective; did you"]),
        ({"collectives": "ring"}, ["collectives: must be"]),
        ({"collectives": {"all_reduce": "rign"}}, ["collectives.all_reduce: 'rign' is no algorithm, kernel"]),
        ({"collectives": {"all_reduce": ["ring", ""]}}, ["collectives.all_reduce: '' is no algorithm"]),
        ({"collectives": {"all_reduce": []}}, ["collectives.all_reduce: names nothing"]),
        ({"faults": [{"gpu": 0, "speed": 1e-300}]}, ["faults.0: has a speed of 1e-300; give at least 1e-06, or 0"]),
        ({"layouts": [{"strategy": "tp", "tp": 2, "rank_order": [8, 0]}]}, ["layouts.0.rank_order: there is no GPU 8"]),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_its_place(changes, problems):
    with pytest.raises(ScenarioError) as error:
        scenario(**changes)
    lines = [str(p) for p in error.value.problems]
    assert len(lines) == len(problems)
    for line, problem in zip(lines, problems, strict=True):
        assert line.startswith(problem), lines


def test_times_of_a_fault_need_flows_however_the_granularity_is_chosen():
    timed = scenario(granularity="flows", faults=[{"node": "nvswitch0", "at": "1 ms"}])
    with pytest.raises(ScenarioError, match=r"faults\.0\.at: .* needs granularity: flows"):
        seconds(timed.model_copy(update={"granularity": "ranks"}))


def test_a_resolved_scenario_reads_back_the_same():
    found = scenario(
        granularity="flows",
        engine="vllm",
        collectives={"all_reduce": ["in_switch", "ring"]},
        faults=[{"node": "nvswitch0", "speed": 0.5}, {"link": ["gpu1", "nvswitch1"], "at": "1 ms", "until": "2 ms"}],
        background=[{"kind": "send", "gpus": [4, 0], "size": "1 GiB", "repeat": True}],
    )
    assert parse_scenario(found.resolved()) == found
    words = compare(found).conditions
    assert words == (
        "all_reduce forced to in_switch or ring",
        "nvswitch0 at 50 % speed",
        "link gpu1–nvswitch1 gone after 1 ms until 2 ms",
        "send of 1 GiB on GPUs 4, 0, again and again",
    )


def test_an_engine_of_an_older_version_runs_the_kernels_that_it_had():
    """On eight H100s the newer vLLM reduces 8 MiB in the switch; compute kernels are the engine's all the same."""
    new, old = (
        machine(load_gpu("h100-sxm"), parse_topology("hgx-8"), Conditions(engine=name))
        for name in ("vllm", "vllm-0.18")
    )
    used = [m.collectives.cost("all_reduce", tuple(range(8))).used(8 * 2**20) for m in (new, old)]
    assert [piece.kernel for piece in used if piece] == ["vllm_symmetric", "vllm_two_shot"]
    assert old.kernels.library == new.kernels.library == "vllm"


@pytest.mark.parametrize("wanted", ["ring", "two_shot", "in_switch", "nccl", ["nccl_simple", "one_shot"]])
def test_a_forced_algorithm_is_the_one_that_runs(wanted):
    report = simulate(found := scenario(collectives={"all_reduce": wanted}), found.layouts[0])
    names = {wanted} if isinstance(wanted, str) else set(wanted)
    used = report.collectives["ffn.all_reduce"]
    assert any(name in used for name in names), used
    assert (
        report.collectives["logits.all_gather"]
        == simulate(scenario(), found.layouts[0]).collectives["logits.all_gather"]
    )


def test_what_cannot_be_forced_is_refused_with_the_layout_and_the_choices():
    with pytest.raises(InputError, match=r"^tp4: all_reduce cannot be forced to chain here; choose from .*in_switch"):
        seconds(collectives={"all_reduce": "chain"})


def test_rings_over_direct_links_are_rings_when_they_are_forced():
    """On a cube mesh NCCL runs several rings at once; to force a ring is no worse."""
    chosen = {"topology": "dgx1", "gpu": "v100-sxm2-32gb", "layouts": [{"strategy": "tp", "tp": 8}]}
    free, forced = (
        simulate(s, s.layouts[0]) for s in (scenario(**chosen), scenario(**chosen, collectives={"all_gather": "ring"}))
    )
    assert forced.collectives["logits.all_gather"] == free.collectives["logits.all_gather"]
    assert "rings" in forced.collectives["logits.all_gather"]


def test_traffic_that_would_be_sent_without_end_is_refused(monkeypatch):
    monkeypatch.setattr(transport, "MOST_REPEATS", 200)
    tiny = {"kind": "send", "gpus": [6, 7], "size": 1, "repeat": True}
    slow = [{"strategy": "tp", "tp": 1}]
    with pytest.raises(InputError, match=r"send of 1 B on GPUs 6, 7, again and again: is sent more than 200 times"):
        seconds(granularity="flows", background=[tiny], layouts=slow)


@pytest.mark.parametrize("granularity", ["folded", "ranks", "flows"])
def test_one_slow_gpu_slows_every_layout_that_it_is_in(granularity):
    whole = seconds(granularity=granularity)
    host = evaluate(scenario(), "tp4").step().breakdown["host"]
    for gpu, speed in ((0, 0.5), (3, 0.8)):
        one = scenario(granularity=granularity, faults=[{"gpu": gpu, "speed": speed}])
        waits = simulate(one, one.layouts[0])
        communication = waits.step.exposed_communication_seconds
        busy = whole - host - communication
        assert waits.step.seconds == pytest.approx(whole + busy * (1 / speed - 1), rel=1e-9)
    assert seconds(granularity=granularity, faults=[{"gpu": 4, "speed": 0.5}]) == pytest.approx(whole, rel=1e-12)


def test_a_single_gpu_that_is_slowed_on_the_way_takes_its_closed_form():
    alone = {"layouts": [{"strategy": "tp", "tp": 1}], "granularity": "flows"}
    whole = seconds(**alone)
    for at, until in ((0.25, None), (0.5, 0.7), (0.999, None), (1.1, None)):
        fault = {"gpu": 0, "speed": 0.5, "at": at * whole} | ({"until": until * whole} if until else {})
        slow = (
            min(until or 9, 1 + max(0, 1 - at)) - at if at < 1 else 0
        )  # the time at half speed, of which half is lost
        assert seconds(**alone, faults=[fault]) == pytest.approx(whole * (1 + slow / 2), rel=1e-9)


@pytest.mark.parametrize("fault", [{"node": "nvswitch1"}, {"node": "nvswitch1", "speed": 0.25}])
def test_what_a_chip_costs_is_the_same_at_every_granularity(fault):
    whole, *broken = (
        seconds(granularity=g, faults=[fault] if f else [], collectives={"all_reduce": "ring"})
        for g, f in (("folded", 0), ("folded", 1), ("ranks", 1), ("flows", 1))
    )
    assert broken[0] > whole
    assert broken[1:] == pytest.approx([broken[0]] * 2, rel=1e-9)


@pytest.mark.parametrize("granularity", ["folded", "ranks", "flows"])
def test_the_slowest_replica_counts_wherever_it_sits(granularity):
    two = {"layouts": [{"strategy": "tp", "tp": 4, "replicas": 2}], "granularity": granularity}
    fault = {"speed": 0.5}
    first, second = (seconds(**two, faults=[fault | {"gpu": gpu}]) for gpu in (1, 6))
    assert second == pytest.approx(first, rel=1e-9)
    assert first > 1.5 * seconds(**two)


def test_replicas_that_share_a_link_slow_each_other():
    """Two replicas across the two sockets of a PCIe box, and apart."""
    changes = {"model": "llama-3.1-8b", "gpu": "l40s", "topology": "pcie-8"}
    changes["workload"] = {"phase": "prefill", "batch": 2, "context": "8k"}
    layout = {"strategy": "tp", "tp": 4, "replicas": 2}
    across = {"layouts": [layout | {"rank_order": [0, 1, 4, 5, 2, 3, 6, 7]}]}
    assert seconds(**changes, **across, granularity="flows") > 1.1 * seconds(**changes, **across, granularity="ranks")
    apart = {"layouts": [layout]}
    alone, together = (seconds(**changes, **apart, granularity=g) for g in ("ranks", "flows"))
    assert together == pytest.approx(alone, rel=1e-9)


def test_what_faults_cost_is_a_finding():
    found = scenario(faults=[{"gpu": 0, "speed": 0.5}])
    calm = 1000 * seconds()
    (line,) = (f for f in compare(found).findings if "faults" in f)
    extra = 100 * (1000 * seconds(found) / calm - 1)
    costs = f"tp4: faults and other traffic cost {extra:.1f} % on top of the {calm:.3g} ms of a machine without them"
    assert line == costs
    assert not any("faults" in f for f in compare(scenario()).findings)


def test_a_transfer_during_decode_costs_only_what_shares_its_links():
    flows = {"granularity": "flows", "collectives": {"all_reduce": "ring"}}
    calm = seconds(**flows)
    inside, outside = (
        seconds(**flows, background=[{"gpus": gpus, "size": "1 GiB", "repeat": True}]) for gpus in ([0, 1], [4, 5])
    )
    assert outside == pytest.approx(calm, rel=1e-9)
    assert inside > 1.01 * calm


def test_ranks_that_are_equal_are_shown_together_and_the_slow_one_apart():
    for granularity in ("folded", "ranks", "flows"):
        one = scenario(granularity=granularity, faults=[{"gpu": 2, "speed": 0.5}])
        groups = simulate(one, one.layouts[0]).ranks
        assert [(group.ranks, group.count) for group in groups] == [("0-1,3", 3), ("2", 1)]
        assert groups[1].busy_seconds > 1.5 * groups[0].busy_seconds


def test_the_busiest_links_are_drawn_with_what_they_carried():
    others = {"gpus": [4, 5], "size": "1 GiB"}
    one = scenario(granularity="flows", background=[others], collectives={"all_reduce": "ring"})
    drawn = render_layout(compare(one), "tp4")
    line = next(line for line in drawn.splitlines() if line.startswith("gpu4 → nvswitch"))
    assert "1 GiB" not in line  # five of eighteen links lead to the chip
    assert "284 MiB" in line
    assert "Busiest links" not in render_layout(compare(scenario()), "tp4")
