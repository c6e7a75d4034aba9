"""The largest number that fits, found in few questions from any guess."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.limits import HIGHEST, largest


class Counted:
    """Whether a number is at most a limit, and how often that was asked."""

    def __init__(self, limit: int):
        self.limit, self.asked = limit, 0

    def __call__(self, number: int) -> bool:
        self.asked += 1
        return number <= self.limit


@given(st.integers(0, HIGHEST + 5), st.integers(-3, HIGHEST + 5))
def test_it_is_exact_from_any_guess(limit, guess):
    assert largest(Counted(limit), guess) == min(limit, HIGHEST)


@pytest.mark.parametrize("limit", [0, 1, 2, 1000, 10**6, HIGHEST])
def test_edges(limit):
    assert largest(Counted(limit), 1) == limit


@given(st.integers(0, HIGHEST), st.integers(1, HIGHEST))
def test_it_asks_at_most_once_per_bit_and_a_little(limit, guess):
    fits = Counted(limit)
    largest(fits, guess)
    assert fits.asked <= 70


@pytest.mark.parametrize("limit", [5, 1000, 123_456])
def test_a_good_guess_saves_questions(limit):
    good, bad = Counted(limit), Counted(limit)
    largest(good, limit)
    largest(bad, HIGHEST)
    assert good.asked == 2
    assert bad.asked > 20
