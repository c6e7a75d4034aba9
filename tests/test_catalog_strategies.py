"""Strategies by name: built in, by a real entry point, and everything that can be wrong with one."""

import subprocess
import sys

import pytest

from sim.catalog.strategies import PluginWarning, load_strategy, parse_layout, spellings, strategy_names
from sim.errors import LayoutError
from strategies.dcp import DecodeContextParallel
from strategies.tp import TensorParallel

pytest_plugins = ["plug_ins"]
BUILT_IN = ["attention_dp", "dcp", "helix", "kvp", "tp", "wide_ep"]
KNOWN = "attention_dp, dcp, helix, kvp, tp, wide_ep"
SOURCE = """
from typing import ClassVar
from strategies.tp import TensorParallel

class {cls}(TensorParallel):
    kind: ClassVar[str] = "{kind}"
    swizzle: int = 1
"""


def problems(fields: object) -> list[str]:
    with pytest.raises(LayoutError) as caught:
        parse_layout(fields)  # type: ignore[arg-type]
    return [str(problem) for problem in caught.value.problems]


def test_the_built_in_strategies_are_known():
    assert strategy_names() == BUILT_IN
    assert [load_strategy(kind).kind for kind in BUILT_IN] == BUILT_IN


def test_built_in_names_do_not_touch_the_entry_points():
    code = (
        "import importlib.metadata as m\n"
        "found = m.entry_points\n"
        "def guarded(**which):\n"
        "    assert which.get('group') != 'sim.strategies', 'looked up'\n"
        "    return found(**which)\n"
        "m.entry_points = guarded\n"
        "from sim.catalog.strategies import parse_layout\n"
        "print(parse_layout({'strategy': 'tp', 'tp': 8}).label)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "tp8\n"


def test_a_plug_in_is_found_through_its_entry_point(install):
    kind = {"swizzled": "shardwise_test_a:Swizzled"}
    install("shardwise_test_a", kind, SOURCE.format(cls="Swizzled", kind="swizzled"))
    assert strategy_names() == [*BUILT_IN, "swizzled"]
    layout = parse_layout({"strategy": "swizzled", "tp": 4, "swizzle": 2})
    assert isinstance(layout, TensorParallel)
    assert (layout.kind, layout.label, layout.swizzle) == ("swizzled", "tp4", 2)  # type: ignore[attr-defined]


def test_a_broken_plug_in_warns_and_the_others_go_on(install):
    install("shardwise_test_b", {"broken": "shardwise_test_b:Gone"}, "raise RuntimeError('no licence')\n")
    install("shardwise_test_c", {"fine": "shardwise_test_c:Fine"}, SOURCE.format(cls="Fine", kind="fine"))
    text = (
        r"strategy plug-in 'broken' of shardwise_test_b \(shardwise_test_b:Gone\) is left out: "
        r"RuntimeError: no licence"
    )
    with pytest.warns(PluginWarning, match=text):
        assert strategy_names() == [*BUILT_IN, "fine"]
    assert load_strategy("fine").kind == "fine"


def test_a_layout_that_names_a_broken_plug_in_says_why(install):
    install("shardwise_test_d", {"broken": "shardwise_test_d:Gone"}, "x = 1\n")
    assert problems({"strategy": "broken"}) == [
        "strategy: plug-in 'broken' of shardwise_test_d (shardwise_test_d:Gone) cannot be used: "
        "AttributeError: module 'shardwise_test_d' has no attribute 'Gone'"
    ]


def test_a_plug_in_cannot_take_a_built_in_name(install):
    install("shardwise_test_e", {"tp": "shardwise_test_e:Mine"}, SOURCE.format(cls="Mine", kind="tp"))
    with pytest.warns(PluginWarning, match="'tp' of shardwise_test_e .* is left out: the name is taken"):
        assert strategy_names() == BUILT_IN
    assert load_strategy("tp") is TensorParallel


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("Odd = 3\n", "TypeError: 3 does not derive from sim.strategy.Strategy"),
        ("class Odd: kind = 'odd'\n", "does not derive from sim.strategy.Strategy"),
        (
            SOURCE.format(cls="Odd", kind="even"),
            "TypeError: its kind is 'even', which is not the name of its entry point, 'odd'",
        ),
    ],
)
def test_a_plug_in_must_be_a_strategy_of_its_own_name(install, source, fault):
    install("shardwise_test_f", {"odd": "shardwise_test_f:Odd"}, source)
    with pytest.warns(PluginWarning, match=fault):
        assert strategy_names() == BUILT_IN
    assert fault in problems({"strategy": "odd"})[0]


def test_engines_names_of_degrees_are_accepted():
    layout = parse_layout({"strategy": "dcp", "tensor_parallel_size": 8, "dcp_size": 2})
    assert layout == DecodeContextParallel(tp=8, dcp=2)
    assert spellings(TensorParallel)["tensor_parallel_size"] == "tp"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"strategy": "hellix"}, f"strategy: 'hellix' is not installed; did you mean 'helix'? known: {KNOWN}"),
        ({"strategy": ""}, f"strategy: '' is not installed; known: {KNOWN}"),
        ({}, f"strategy: is missing; choose one of {KNOWN}"),
        ({"strategy": ["tp"]}, "strategy: must be the name of a strategy such as tp, not a list"),
        ("tp8", "must be keys such as {strategy: tp, tp: 8}, not 'tp8'"),
        ({"strategy": "tp"}, "tp: is missing"),
        ({"strategy": "tp", "tp": 0}, "tp: must be at least 1, not 0"),
        ({"strategy": "tp", "tp": -8}, "tp: must be at least 1, not -8"),
        ({"strategy": "tp", "tp": 2**40}, f"tp: must be at most 65536, not {2**40}"),
        ({"strategy": "tp", "tp": float("nan")}, "tp: must be a finite number, not nan"),
        ({"strategy": "tp", "tp": 1e99}, "tp: must be a whole number of less than 19 digits, not 1e+99"),
        ({"strategy": "tp", "tp": 7.5}, "tp: must be a whole number, not 7.5"),
        ({"strategy": "tp", "tp": "eight"}, "tp: must be a whole number, not 'eight'"),
        ({"strategy": "tp", "tp": [8]}, "tp: must be a whole number, not a list"),
        ({"strategy": "tp", "tp": True}, "tp: must be a number, not true"),
        ({"strategy": "tp", "tp": None}, "tp: must be a whole number, not empty"),
        ({"strategy": "tp", "tp": 8, "tp_size": 8}, "tp_size: is the same as tp; keep one of the two"),
        ({"strategy": "tp", "tensor_parallel_size": 0}, "tensor_parallel_size: must be at least 1, not 0"),
        (
            {"strategy": "tp", "tp": 8, "kvp": 2},
            "kvp: unknown key 'kvp'; known keys: strategy, tag, pp, replicas, stage_split, rank_order, "
            "two_batch_overlap, tp, ep",
        ),
        ({"strategy": "tp", "tp": 8, "tag": ""}, "tag: must be text of at least 1 character, not ''"),
        (
            {"strategy": "tp", "tp": 8, "tag": 5},
            "tag: must be text (in quotes if it looks like a number), not 5",
        ),
        (
            {"strategy": "helix", "kvp": 2, "hop_b": "x"},
            "hop_b: must be true or false, or a whole number, not 'x'",
        ),
        (
            {"strategy": "dcp", "tp": 8, "dcp": 2, "exchange": "ring"},
            "exchange: must be ag_rs or a2a, not 'ring'",
        ),
        ({"strategy": "wide_ep", "dp": 8, "imbalance": 0.5}, "imbalance: must be at least 1, not 0.5"),
    ],
)
def test_each_wrong_layout_has_its_own_message(fields, expected):
    assert problems(fields) == [expected]


def test_all_problems_of_a_layout_are_reported_together():
    assert problems({"strategy": "dcp", "tp": 0, "dcp": "x", "foo": 1})[1:] == [
        "tp: must be at least 1, not 0",
        "dcp: must be a whole number, not 'x'",
    ]
