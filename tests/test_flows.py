"""Flows share links max-min fairly, conserve bytes, and slow each other where they meet and nowhere else."""

from __future__ import annotations

import numpy as np
import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from sim.network.flows import Flow, Network, fair_rates


def solve(capacity, flows):
    flow = np.array([i for i, f in enumerate(flows) for _ in f.links], np.int64)
    link = np.array([x for f in flows for x in f.links], np.int64)
    weight = np.array([w for f in flows for w in f.weights], float)
    return fair_rates(np.array(capacity, float), flow, link, weight, len(flows))


def optimum(capacity, flows):
    """Max-min fair rates by linear programs: raise the smallest free rate, fix the flows that cannot rise further."""
    n = len(flows)
    load = np.zeros((len(capacity), n))
    for i, f in enumerate(flows):
        for x, w in zip(f.links, f.weights, strict=True):
            load[x, i] += w
    fixed: dict[int, float] = {}
    while len(fixed) < n:
        free = [i for i in range(n) if i not in fixed]

        def most(weights, floor=None, free=free):
            """The largest weighted sum with every free rate at least ``t`` (the last variable), or ``floor``."""
            bounds = [(fixed[i], fixed[i]) if i in fixed else (floor or 0, None) for i in range(n)]
            above = [[-(i == j) for j in range(n)] + [1] for i in free] if floor is None else []
            rows = [[*row, 0] for row in load.tolist()] + above
            right = [*capacity, *[0] * len(above)]
            return linprog([-w for w in weights], A_ub=rows, b_ub=right, bounds=[*bounds, (0, None)]).x

        level = most([0] * n + [1])[-1]
        stuck = [i for i in free if most([*(i == j for j in range(n)), 0], level * (1 - 1e-9))[i] <= level * (1 + 1e-6)]
        fixed.update(dict.fromkeys(stuck, level))
    return [fixed[i] for i in range(n)]


@st.composite
def networks(draw):
    links = draw(st.integers(1, 5))
    capacity = draw(st.lists(st.sampled_from([1.0, 2.0, 5.0, 10.0]), min_size=links, max_size=links))
    flows = []
    for _ in range(draw(st.integers(1, 6))):
        used = draw(st.lists(st.integers(0, links - 1), min_size=1, max_size=links, unique=True))
        weights = draw(st.lists(st.sampled_from([0.25, 0.5, 1.0, 1.25]), min_size=len(used), max_size=len(used)))
        flows.append(Flow(1.0, tuple(used), tuple(weights)))
    return capacity, flows


@settings(max_examples=80)
@given(networks())
def test_rates_are_the_linear_programming_optimum(network):
    capacity, flows = network
    assert solve(capacity, flows) == pytest.approx(optimum(capacity, flows), rel=1e-5)


@settings(max_examples=80)
@given(networks())
def test_no_link_is_overfull_and_every_flow_meets_a_full_one(network):
    capacity, flows = network
    rates = solve(capacity, flows)
    load = np.zeros(len(capacity))
    for rate, f in zip(rates, flows, strict=True):
        for x, w in zip(f.links, f.weights, strict=True):
            load[x] += w * rate
    assert (load <= np.array(capacity) * (1 + 1e-9)).all()
    full = {x for x in range(len(capacity)) if load[x] >= capacity[x] * (1 - 1e-6)}
    assert all(full & set(f.links) for f in flows)


def test_textbook_example():
    """Two links of 1: one flow over both, one over each; all get a half."""
    flows = [Flow(1, (0, 1), (1, 1)), Flow(1, (0,), (1,)), Flow(1, (1,), (1,))]
    assert solve([1, 1], flows) == pytest.approx([0.5, 0.5, 0.5])
    assert solve([1, 2], flows) == pytest.approx([0.5, 0.5, 1.5])


def play(capacity, jobs):
    """Run jobs (start, flows); returns when each is done, and the network."""
    env = simpy.Environment()
    done = {}

    def later(delay, call):
        env.timeout(delay).callbacks.append(lambda _: call())

    network = Network(capacity, lambda: env.now, later)
    for number, (start, flows) in enumerate(jobs):
        later(start, lambda n=number, f=flows: network.start(f, lambda: done.__setitem__(n, env.now)))
    env.run()
    return [done[n] for n in range(len(jobs))], network


def test_a_second_job_slows_the_first_only_while_both_run():
    done, network = play([10.0, 10.0], [(0, [Flow(100, (0,), (1,))]), (5, [Flow(20, (0, 1), (1, 1))])])
    assert done == pytest.approx([12.0, 9.0])
    assert network.carried == pytest.approx([120.0, 20.0])
    assert network.busy == pytest.approx([12.0, 4.0])
    assert network.peak == pytest.approx([1.0, 0.5])


def test_jobs_on_different_links_do_not_meet():
    alone, _ = play([10.0, 4.0], [(0, [Flow(100, (0,), (1,))])])
    together, _ = play([10.0, 4.0], [(0, [Flow(100, (0,), (1,))]), (1, [Flow(100, (1,), (1,))])])
    assert together == pytest.approx([alone[0], 26.0])


def test_an_all_to_all_over_72_gpus_takes_its_closed_form():
    n, bandwidth, sent = 72, 900e9, 64e6
    flows = [Flow(sent / (n - 1), (a, n + b), (1.0, 1.0)) for a in range(n) for b in range(n) if a != b]
    (done,), network = play([bandwidth] * (2 * n), [(0, flows)])
    assert done == pytest.approx(sent / bandwidth, rel=1e-9)
    assert network.carried == pytest.approx([sent] * (2 * n), rel=1e-9)


def test_a_flow_of_nothing_is_done_at_once():
    done, _ = play([1.0], [(3, [Flow(0, (0,), (1,))]), (0, [])])
    assert done == [3, 0]


def slow_down(at, capacity):
    """A flow of 100 bytes over a link of 10 bytes/s that changes its capacity; what is left goes on."""
    env, times = simpy.Environment(), []

    def later(delay, call):
        env.timeout(delay).callbacks.append(lambda _: call())

    network = Network([10.0], lambda: env.now, later)
    network.start([Flow(100, (0,), (1,)), Flow(0, (0,), (1,))], lambda: times.append(env.now))

    def change():
        left = network.withdraw()
        network.reshape([capacity])
        assert list(left) == [0]
        assert list(left[0]) == [0]  # the flow of nothing is not under way
        network.start([Flow(100 * left[0][0], (0,), (1,))], lambda: times.append(env.now))

    later(at, change)
    env.run()
    network.finish()
    return times, network


@pytest.mark.parametrize(("at", "capacity", "end"), [(5, 5.0, 15.0), (2, 20.0, 6.0), (9, 1.0, 19.0)])
def test_a_flow_goes_on_over_a_link_that_changes(at, capacity, end):
    times, network = slow_down(at, capacity)
    assert times == pytest.approx([end])
    assert network.offered == pytest.approx([100.0])
    assert network.carried == pytest.approx([100.0])
    assert network.under_way() == pytest.approx([0.0])
    assert network.peak == pytest.approx([1.0])


@settings(max_examples=40)
@given(networks(), st.lists(st.floats(0, 3), min_size=6, max_size=6), st.floats(1, 50))
def test_bytes_are_conserved(network, starts, size):
    capacity, flows = network
    jobs = [(start, [f._replace(size=size)]) for start, f in zip(starts, flows, strict=False)]
    done, state = play(capacity, jobs)
    assert all(end >= start for end, (start, _) in zip(done, jobs, strict=True))
    expected = np.zeros(len(capacity))
    for _, (f,) in jobs:
        for x, w in zip(f.links, f.weights, strict=True):
            expected[x] += w * size
    assert state.carried == pytest.approx(expected, rel=1e-6)
    assert state.offered == pytest.approx(expected, rel=1e-12)
