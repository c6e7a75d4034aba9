"""Every built-in strategy and topology keeps the promises that ``sim.testing`` checks on plug-ins."""

from __future__ import annotations

import pytest

from sim.catalog.gpus import gpu_names, load_gpu
from sim.catalog.strategies import load_strategy, strategy_names
from sim.catalog.topologies import parse_topology
from sim.cut import Cut
from sim.errors import TopologyError
from sim.testing import SAMPLE_MODELS, ConformanceError, check_strategy, check_topology, sample_machine
from strategies.tp import TensorParallel

LAYOUTS = {
    "tp": [{"tp": t, "ep": e} for t in (1, 2, 4, 8, 16) for e in (1, 2, 8) if t % e == 0]
    + [{"tp": 2, "pp": 3}, {"tp": 4, "replicas": 3}, {"tp": 2, "two_batch_overlap": True}],
    "attention_dp": [
        {"dp": d, "tp": t, "ep": e} for d in (1, 2, 4) for t in (1, 2) for e in (1, 2, d * t) if d * t % e == 0
    ]
    + [{"dp": 4, "dense": "attention_tp"}, {"dp": 2, "vocab": "attention_tp", "pp": 2, "replicas": 2}],
    "wide_ep": [{"dp": d, "tp": t} for d in (2, 4, 16) for t in (1, 2)]
    + [
        {"dp": 8, "redundant_experts": 8, "copies": "per_expert", "imbalance": 1.3},
        {"dp": 4, "two_batch_overlap": True, "pp": 2},
    ],
    "kvp": [{"kvp": k, "tp": t} for k in (1, 2, 3, 8) for t in (1, 4, 8)] + [{"kvp": 2, "tp": 4, "ep": 2, "pp": 2}],
    "dcp": [
        {"tp": t, "dcp": d, "exchange": x, "replicate_q": q}
        for t, d in ((2, 2), (8, 2), (8, 8), (16, 4))
        for x in ("ag_rs", "a2a")
        for q in (False, True)
    ]
    + [
        {"tp": 8, "dcp": 4, "ownership": "contiguous", "block": 16},
        {"tp": 8, "dcp": 4, "index": "whole", "linear_state": "sharded"},
    ],
    "helix": [{"tpa": t, "kvp": k, "ep": e} for t in (1, 2, 4, 8) for k in (1, 2, 4) for e in (1, t * k)]
    + [
        {"dp": 2, "tpa": 2, "kvp": 2, "ep": 8},
        {"dp": 2, "kvp": 4, "linear_state": "sharded"},
        {"kvp": 4, "hop_b": 4, "exchange_space": "v_head"},
    ],
}
CASES = [(kind, degrees) for kind, many in LAYOUTS.items() for degrees in many]


@pytest.fixture(scope="module")
def machine():
    return sample_machine(64)


def test_every_built_in_strategy_is_covered():
    assert set(LAYOUTS) == set(strategy_names())


EVERY = 5
"""Each model meets every fifth case, shifted by one from model to model, so that all strategies meet all models."""
MET = [
    (kind, degrees, name)
    for i, (kind, degrees) in enumerate(CASES)
    for j, name in enumerate(SAMPLE_MODELS)
    if (i + j) % EVERY == 0
]


def test_every_strategy_meets_every_model():
    assert {(kind, name) for kind, _, name in MET} == {(kind, name) for kind in LAYOUTS for name in SAMPLE_MODELS}


@pytest.mark.parametrize(("kind", "degrees", "name"), MET, ids=str)
def test_strategy_conforms(kind, degrees, name, machine):
    check_strategy(load_strategy(kind)(**degrees), SAMPLE_MODELS[name], machine)


def test_most_cases_are_layouts_that_exist():
    accepted = sum(
        not load_strategy(kind)(**degrees).check(model) for kind, degrees in CASES for model in SAMPLE_MODELS.values()
    )
    assert accepted >= 300


TOPOLOGIES = [
    *("hgx-8", "hgx-4", "nvl72", "nvl72-16", "dgx1", "ring-8", "ring-5", "fully_connected-4", "nvlink_pairs-8"),
    *("pcie-8", "pcie-4", {"kind": "cluster", "nodes": 2, "node": "hgx-8"}),
    {"kind": "cluster", "nodes": 3, "node": "pcie-4"},
]


def refusal(spec, gpu):
    """Why a machine cannot be built for a GPU, or None after it has been checked."""
    try:
        check_topology(parse_topology(spec), gpu)
    except TopologyError as error:
        return str(error)
    return None


@pytest.mark.parametrize("gpu", gpu_names())
@pytest.mark.parametrize("spec", TOPOLOGIES, ids=str)
def test_topology_conforms_or_says_what_would(spec, gpu):
    reason = refusal(spec, load_gpu(gpu))
    assert reason is None or "; use " in reason


def test_the_machines_people_run_are_built():
    for spec, gpu in [("hgx-8", "h200-sxm"), ("nvl72", "gb200"), ("dgx1", "v100-sxm2-32gb"), ("pcie-8", "l40s")]:
        assert refusal(spec, load_gpu(gpu)) is None


class Forgetful(TensorParallel):
    """Holds the output projection on half of its ranks only."""

    kind = "forgetful"

    def cut(self, model):
        whole = super().cut(model)
        return Cut(whole.mesh, whole.roles, holds=lambda t: (("tp", 0),) if t.name == "o" else ())


def test_a_strategy_that_forgets_part_of_a_weight_is_caught():
    with pytest.raises(ConformanceError, match="o has parts that no rank holds"):
        check_strategy(Forgetful(tp=2), SAMPLE_MODELS["gqa"])
