"""Two streams a lane, collectives as rendezvous: small stories with the times and the number of events they take."""

from __future__ import annotations

import pytest

from sim import engine, recurrence
from sim.engine import Exposed, LaneState
from sim.program import Message
from sim.schedule import Issue, Rendezvous, Run, Track, Wait

NOTHING_YET = LaneState(0.0, 0.0, ())


def _track(*instructions, exits=(), **meetings: tuple[float, tuple[int, ...]]) -> Track:
    """A lane's instructions; ``a=(seconds, lanes)`` are its collectives, slot 0 first."""
    views = {
        slot: Rendezvous((slot, lanes), len(lanes), seconds, 0.0, Message(0, 0))
        for slot, (seconds, lanes) in enumerate(meetings.values())
    }
    return Track(list(instructions), views, exits)


def _run(*lanes: list[Track], starts=None, spans=None) -> engine.Outcome:
    return engine.run(lanes, starts or [NOTHING_YET] * len(lanes), spans)


def test_one_run_of_compute_is_one_event():
    outcome = _run([_track(Run(3.0, (0, 1)))])
    assert outcome.states == (LaneState(3.0, 0.0, ()),)
    assert outcome.events == 1


def test_a_collective_starts_when_the_last_lane_has_come():
    fast = _track(Run(1.0, (0,)), Issue(0), Wait(0), a=(0.5, (0, 1)))
    slow = _track(Run(4.0, (0,)), Issue(0), Wait(0), a=(0.5, (0, 1)))
    outcome = _run([fast], [slow])
    assert [s.compute for s in outcome.states] == [4.5, 4.5]
    assert outcome.exposed == ({(0, 0): Exposed(3.5, 3.0)}, {(0, 0): Exposed(0.5, 0.0)})
    assert outcome.events == 2 + 2  # two runs, and two for the one collective of both


def test_a_collective_costs_two_events_whatever_its_members():
    for lanes in (2, 5, 50):
        one = _track(Issue(0), Wait(0), a=(1.0, tuple(range(lanes))))
        assert _run(*[[one]] * lanes).events == 2


def test_its_time_is_that_of_the_slowest_member():
    quick = _track(Issue(0), Wait(0), a=(1.0, (0, 1)))
    late = _track(Issue(0), Wait(0), a=(7.0, (0, 1)))
    assert [s.compute for s in _run([quick], [late]).states] == [7.0, 7.0]


def test_compute_hides_communication_until_the_result_is_read():
    hidden = _track(Issue(0), Run(5.0, (1,)), Wait(0), Run(1.0, (2,)), a=(3.0, (0,)))
    outcome = _run([hidden])
    assert outcome.states[0].compute == 6.0
    assert outcome.exposed == ({},)
    exposed = _track(Issue(0), Run(2.0, (1,)), Wait(0), Run(1.0, (2,)), a=(3.0, (0,)))
    outcome = _run([exposed])
    assert outcome.states[0].compute == 4.0
    assert outcome.exposed == ({(0, 0): Exposed(1.0, 0.0)},)


def test_the_communication_stream_is_in_order():
    both = _track(Issue(0), Issue(1), Wait(1), a=(2.0, (0,)), b=(3.0, (0,)))
    outcome = _run([both])
    assert outcome.states[0] == LaneState(5.0, 5.0, ())
    assert outcome.exposed == ({(0, 1): Exposed(5.0, 2.0)},)


def test_a_collective_that_nobody_waits_for_ends_after_the_lane():
    outcome = _run([_track(Run(1.0, (0,)), Issue(0), exits=(0,), a=(4.0, (0,)))])
    assert outcome.states == (LaneState(1.0, 5.0, (5.0,)),)


def test_values_handed_on_are_waited_for_in_the_next_block():
    first = _track(Run(1.0, (0,)), Issue(0), exits=(0,), a=(4.0, (0,)))
    second = _track(Run(1.0, (0,)), Wait(-1), Run(1.0, (1,)), exits=(None,))
    outcome = _run([first, second])
    assert outcome.states[0] == LaneState(6.0, 5.0, (6.0,))
    assert outcome.exposed == ({(1, -1): Exposed(3.0, 0.0)},)


def test_a_run_goes_on_from_the_state_of_the_run_before():
    first = _track(Run(1.0, (0,)), Issue(0), exits=(0,), a=(4.0, (0,)))
    second = _track(Run(1.0, (0,)), Wait(-1), Run(1.0, (1,)), exits=(None,))
    at_once = _run([first, second]).states
    between = _run([first]).states
    assert _run([second], starts=list(between)).states == at_once


def test_lanes_of_different_groups_do_not_wait_for_each_other():
    left = _track(Run(1.0, (0,)), Issue(0), Wait(0), a=(1.0, (0,)))
    right = _track(Run(9.0, (0,)), Issue(0), Wait(0), a=(1.0, (1,)))
    assert [s.compute for s in _run([left], [right]).states] == [2.0, 10.0]


def test_spans_are_the_runs_of_compute():
    spans: engine.Spans = []
    _run([_track(Run(1.0, (0, 1)), Issue(0), Wait(0), Run(2.0, (3,)), a=(1.0, (0,)))], spans=spans)
    assert spans == [(0, 0, "compute", 0, 0.0, 1.0), (0, 0, "compute", 1, 0.0, 1.0), (0, 0, "compute", 3, 2.0, 4.0)]


def test_the_recurrence_tells_the_same_stories():
    pairs = (0, 1)
    left = _track(
        Run(1.0, (0,)), Issue(0), Issue(1), Run(2.0, (1,)), Wait(0), exits=(1,), a=(2.0, pairs), b=(1.0, pairs)
    )
    right = _track(
        Issue(0), Run(4.0, (0,)), Issue(1), Wait(1), Run(1.0, (2,)), exits=(1,), a=(3.0, pairs), b=(5.0, pairs)
    )
    starts = [LaneState(0.5, 1.0, ()), LaneState(0.0, 2.5, ())]
    events = [tuple(state) for state in _run([left], [right], starts=starts).states]
    assert events == [(5.5, 10.5, (10.5,)), (11.5, 10.5, (10.5,))]
    assert recurrence.run([left, right], [tuple(s) for s in starts]) == events


@pytest.mark.parametrize(
    ("stages", "micro_batches", "period"),
    [([3.0], 1, 3.0), ([1.0, 2.0], 1, 3.0), ([1.0, 2.0], 2, 4.0), ([2.0, 2.0], 2, 4.0), ([1.0, 5.0, 1.0], 3, 15.0)],
)
def test_equal_micro_batches_circulate_in_the_closed_form(stages, micro_batches, period):
    """A token takes the sum of the stages, or waits for the slowest one to serve everybody."""
    assert engine.pipeline_period([stages] * micro_batches) == period


@pytest.mark.parametrize(
    ("seconds", "period"),
    [
        ([[1.0, 1.0], [3.0, 3.0]], 6.0),  # the long one never waits
        ([[2.0, 1.0], [1.0, 5.0]], 6.0),  # both stages of the second, or both visits to the second stage
        ([[4.0, 1.0], [4.0, 2.0]], 8.0),  # the first stage is always busy
    ],
)
def test_unequal_micro_batches_take_the_longer_of_a_batch_and_a_stage(seconds, period):
    assert engine.pipeline_period(seconds) == period
