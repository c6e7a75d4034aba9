"""Where ranks sit on the machine decides what their collectives cost."""

from __future__ import annotations

import pytest

from sim import parse_scenario, simulate
from sim.mesh import Mesh
from sim.rank_order import axes, orders, placed, problems
from sim.run import evaluate
from strategies.attention_dp import AttentionDataParallel
from strategies.helix import Helix
from strategies.tp import TensorParallel

MESH = Mesh({"dp": 2, "tpa": 1, "kvp": 4}, {"tpf": 1, "ep": 8})


@pytest.fixture(scope="module")
def boxes():
    """Two HGX boxes joined by NICs."""
    return parse_scenario(
        {
            "model": "llama-3.1-405b",
            "gpu": "h100-sxm",
            "topology": {"kind": "cluster", "nodes": 2, "node": "hgx-8", "nic": "400 Gb/s"},
            "precision": {"weights": "fp8", "kv_cache": "fp8"},
            "workload": {"batch": 16, "context": "32k"},
            "layouts": [{"strategy": "tp", "tp": 8}],
        }
    )


def test_axes_are_those_longer_than_one():
    assert axes(MESH) == ("dp", "kvp")
    assert orders(MESH) == [("dp", "kvp"), ("kvp", "dp")]
    assert orders(Mesh({"tp": 1})) == [()]


def test_gpus_of_ranks():
    assert placed(MESH, None, 0) == tuple(range(8))
    assert placed(MESH, ("dp", "kvp"), 8) == tuple(range(8, 16))
    assert placed(MESH, ("kvp", "dp"), 0) == (0, 2, 4, 6, 1, 3, 5, 7)
    assert placed(Mesh({"tp": 2}), (5, 3, 1, 7), 2) == (1, 7)


@pytest.mark.parametrize(
    ("order", "message"),
    [
        (("kvp",), "must name each axis of the layout once, outermost first (dp, kvp), or list GPUs"),
        (("dp", "kvp", "kvp"), "must name each axis of the layout once, outermost first (dp, kvp), or list GPUs"),
        ((0, 1), "lists 2 GPUs; the layout has 8 ranks"),
        ((0, 1, 2, 3, 4, 5, 6, 6), "lists a GPU twice, or a negative number"),
    ],
)
def test_orders_that_do_not_fit(order, message):
    assert [p.message for p in problems(MESH, order, 8)] == [message]


def test_tp_across_the_network_is_slower_than_inside_a_box(boxes):
    inside = simulate(boxes, TensorParallel(tp=8))
    across = simulate(boxes, TensorParallel(tp=8, rank_order=(0, 1, 2, 3, 8, 9, 10, 11)))
    assert across.step.seconds > 1.05 * inside.step.seconds
    assert across.memory == inside.memory
    assert across.tag == "tp8@gpus"


def test_attention_tp_belongs_inside_the_box(boxes):
    default = simulate(boxes, AttentionDataParallel(dp=2, tp=8))
    swapped = simulate(boxes, AttentionDataParallel(dp=2, tp=8, rank_order=("tp", "dp")))
    assert swapped.step.seconds > default.step.seconds
    assert swapped.tag == "dp2-tp8@tp.dp"


def test_best_takes_the_fastest_order_and_says_what_it_is_worth(boxes):
    layouts = [Helix(tpa=8, kvp=2, rank_order=order) for order in (("tpa", "kvp"), ("kvp", "tpa"), "best")]
    one, other, best = (simulate(boxes, layout) for layout in layouts)
    assert best.step.seconds == min(one.step.seconds, other.step.seconds)
    evaluation = evaluate(boxes, layouts[-1])
    assert len({choice.order for choice in evaluation.choices}) == 2
    assert best.rank_order in (("tpa", "kvp"), ("kvp", "tpa"))
