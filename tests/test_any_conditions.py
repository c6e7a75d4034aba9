"""Whatever a scenario says of its machine, there is an answer with finite times, or an error in words."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from sim import parse_scenario, simulate
from sim.errors import InputError

MOMENTS = st.sampled_from([0, 1e-9, "1 us", "1 ms", "20 ms", "1 s"])
ODD = st.sampled_from([None, True, 0, -1, 1.5, "", "x", [], {}, math.nan, math.inf, 10**30])
NODES = st.sampled_from(
    ["gpu0", "gpu1", "nvswitch0", "nvswitch1", "cpu0", "node0.gpu0", "node0.nic0", "node1.nic0", "leaf0", "spine", "x"]
)
FAULTS = st.fixed_dictionaries(
    {},
    optional={
        "node": NODES,
        "link": st.lists(NODES, min_size=2, max_size=2),
        "gpu": st.integers(0, 20),
        "speed": st.one_of(st.floats(0, 1), ODD),
        "at": MOMENTS,
        "until": MOMENTS,
    },
)
TRAFFIC = st.fixed_dictionaries(
    {
        "gpus": st.lists(st.integers(0, 16), min_size=1, max_size=4),
        "size": st.sampled_from(["1 MiB", "1 GiB", "1 TB", 10**18]),
    },
    optional={
        "kind": st.sampled_from(["send", "all_reduce", "all_to_all", "broadcast", "gather", "dispatch"]),
        "at": MOMENTS,
        "repeat": st.booleans(),
    },
)
FORCED = st.dictionaries(
    st.sampled_from(["all_reduce", "all_to_all", "send", "dispatch", "x"]),
    st.one_of(
        st.sampled_from(["ring", "tree", "in_switch", "hierarchical", "pairwise", "nccl", "deepep", "x", ""]), ODD
    ),
    max_size=2,
)
MACHINES = st.sampled_from(
    [
        ("h200-sxm", "hgx-8"),
        ("h200-sxm", "hgx-1"),
        ("v100-sxm2-32gb", "dgx1"),
        ("l40s", "pcie-5"),
        ("h100-pcie", "nvlink_pairs-4"),
        ("h100-sxm", {"kind": "cluster", "nodes": 2, "node": "hgx-4", "nodes_per_leaf": 1}),
        ("h100-sxm", {"kind": "cluster", "nodes": 2, "node": "hgx-4", "nics_per_node": 1, "rails": False}),
    ]
)
LAYOUTS = st.sampled_from(
    [
        {"strategy": "tp", "tp": 1},
        {"strategy": "tp", "tp": 4},
        {"strategy": "tp", "tp": 2, "pp": 2},
        {"strategy": "tp", "tp": 4, "rank_order": [3, 1, 0, 6]},
        {"strategy": "attention_dp", "dp": 4, "ep": 1},
    ]
)


@settings(deadline=None, max_examples=150)
@given(MACHINES, LAYOUTS, st.data())
def test_there_is_an_answer_or_an_error_in_words(machine: Any, layout: Any, data: st.DataObject) -> None:
    gpu, topology = machine
    said: dict[str, Any] = {
        "model": "llama-3.1-8b",
        "gpu": gpu,
        "topology": topology,
        "workload": {"phase": "decode", "batch": 4, "context": "4k"},
        "layouts": [layout],
        "granularity": data.draw(st.sampled_from(["flows", "flows", "ranks", "folded"])),
    }
    said |= data.draw(
        st.fixed_dictionaries(
            {},
            optional={
                "faults": st.lists(FAULTS, max_size=2),
                "background": st.lists(TRAFFIC, max_size=2),
                "collectives": FORCED,
                "engine": st.one_of(st.sampled_from(["vllm", "vllm-0.18", "sglang"]), ODD),
            },
        )
    )
    problems, found = [], None
    try:
        scenario = parse_scenario(said)
        found = simulate(scenario, scenario.layouts[0]).step
    except InputError as error:
        problems = error.problems
    if found:
        assert 0 < found.floor_seconds <= found.seconds < math.inf
    else:
        assert problems
        assert all(p.message and "pydantic" not in p.message for p in problems)
