"""Ranges of step times: errors of one fit go together, those of different fits do not, and what is common cancels."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim import compare, parse_scenario
from sim.run import evaluate
from sim.uncertainty import Share, distinct, interval

SCENARIO = {
    "model": "qwen3-235b-a22b",
    "gpu": "h200-sxm",
    "workload": {"batch": 64, "context": "8k"},
    "layouts": [{"strategy": "tp", "tp": 8}, {"strategy": "dcp", "tp": 8, "dcp": 2}, {"strategy": "tp", "tp": 4}],
}
SHARES = st.dictionaries(
    st.sampled_from("abcd"),
    st.builds(Share, st.floats(0.01, 10), st.floats(0.5, 1), st.floats(1, 2)),
    min_size=1,
)


def test_one_fit_widens_as_a_whole_and_several_by_the_root_of_squares():
    assert interval({"a": Share(10, 0.9, 1.2)}) == pytest.approx((9, 12))
    assert interval({"a": Share(3, 0, 2), "b": Share(4, 0, 2)}) == pytest.approx((2, 12))


@given(SHARES)
def test_a_step_lies_in_its_range_and_never_differs_from_itself(shares):
    low, high = interval(shares)
    total = sum(s.seconds for s in shares.values())
    assert 0 <= low <= total * (1 + 1e-12)
    assert high >= total * (1 - 1e-12)
    assert not distinct(shares, shares)


def test_what_two_steps_have_in_common_cancels():
    common = {"attention": Share(100, 0.8, 1.2)}
    assert distinct(common | {"ring": Share(1, 0.9, 1.1)}, common | {"ring": Share(2, 0.9, 1.1)})
    assert not distinct(common | {"ring": Share(10, 0.9, 1.1)}, common | {"tree": Share(10.5, 0.9, 1.1)})
    assert distinct(common | {"ring": Share(10, 0.9, 1.1)}, common | {"tree": Share(12, 0.9, 1.1)})


def test_every_step_carries_its_range_and_all_of_its_seconds_have_a_fit():
    scenario = parse_scenario(SCENARIO)
    for layout in scenario.layouts:
        found = evaluate(scenario, layout)
        step = found.step()
        assert 0 < step.low_seconds < step.seconds < step.high_seconds < 1.5 * step.seconds
        assert sum(s.seconds for s in found.shares.values()) == pytest.approx(step.seconds, rel=1e-9)
        assert any("decode_attention" in fit for fit in found.shares)
        assert any(fit.startswith(("nccl", "trtllm_")) for fit in found.shares)


def test_a_layout_that_comes_too_close_is_named():
    twice = SCENARIO | {"layouts": [{"strategy": "tp", "tp": 8}, {"strategy": "tp", "tp": 8, "tag": "again"}]}
    first, *_ = compare(parse_scenario(twice)).findings
    assert first.startswith("Lowest latency: tp8")
    assert first.endswith("too close to call: again")
    far = SCENARIO | {"layouts": [{"strategy": "tp", "tp": 8}, {"strategy": "tp", "tp": 1, "tag": "alone"}]}
    assert "too close" not in " ".join(compare(parse_scenario(far)).findings)
