"""Axes and ranges."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim import variation
from sim.errors import InputError


@given(st.dictionaries(st.text("abc", min_size=1), st.lists(st.integers(), min_size=1, max_size=4), max_size=4))
def test_a_grid_has_every_combination_once_per_position(vary):
    axes = variation.axes(vary)
    found = list(variation.product(axes))
    assert len(found) == variation.size(axes) == math.prod(map(len, vary.values()))
    assert all([path for path, _ in change] == list(vary) for change in found)


def test_the_fields_of_a_zip_change_together():
    axes = variation.axes({"a": [1, 2]}, [{"b": [3, 4], "c": [5, 6]}])
    changes = [dict(change) for change in variation.product(axes)]
    assert changes == [{"a": a, "b": b, "c": b + 2} for a in (1, 2) for b in (3, 4)]


@pytest.mark.parametrize(
    ("said", "values"),
    [
        ({"from": 1, "to": 8, "times": 2}, [1, 2, 4, 8]),
        ({"from": "1k", "to": "5k", "times": 2}, [1024, 2048, 4096]),
        ({"from": 8, "to": 32, "step": 8}, [8, 16, 24, 32]),
        ({"from": 1, "to": 4, "times": 1.5}, [1, 2, 3]),
        ({"from": 0.5, "to": 0.9, "step": 0.1}, [0.5, 0.6, 0.7, 0.8, 0.9]),
    ],
)
def test_ranges(said, values):
    assert [row[0] for row in variation.axes({"x": said})[0].values] == values


@pytest.mark.parametrize(
    ("vary", "zips", "message"),
    [
        ({"x": 3}, [], "vary.x: must be a list of values, or a range"),
        ({"x": []}, [], "vary.x: is empty"),
        ({"x": {"from": 4, "to": 1, "step": 1}}, [], "vary.x.to: 1 is below from: 4"),
        ({"x": {"from": 1, "to": 4, "times": 1}}, [], "vary.x.times: a range must rise"),
        ({"x": {"from": 1, "to": 4}}, [], "either step"),
        ({"x": [1]}, [{"x": [1], "y": [2]}], "zip.0.x: is varied twice; first in vary"),
        (
            {},
            [{"x": [1], "y": [2, 3]}],
            "zip.0: fields that change together need equally many values: x has 1, y has 2",
        ),
    ],
)
def test_what_cannot_vary_is_said(vary, zips, message):
    with pytest.raises(InputError, match=message.replace("(", r"\(")):
        variation.axes(vary, zips)
