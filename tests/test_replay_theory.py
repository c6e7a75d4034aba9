"""Replays against queueing theory: M/D/1, M/M/1, Little's law, work conservation."""

from __future__ import annotations

import numpy as np
import pytest
from replay_fleets import LinearPrices, loop, rules

from sim.replays.loop import Stream

ONE = rules(max_sequences=1, prefix_cache=False)


def queue(outputs, load, seconds_each, random):
    """One server: a request needs a decode step for each token after the first; arrivals keep it busy by ``load``."""
    prices = LinearPrices(fixed=1e-3, sequence=0, token=0, prompt=0)
    service = np.array(outputs) * seconds_each
    arrivals = np.cumsum(random.exponential(service.mean() / load, len(outputs)))
    made = loop(ONE, blocks=10**6, prices=prices)
    made.check = False
    log = made.run(Stream(arrivals.tolist(), [1] * len(outputs), list(map(int, outputs))))
    return np.frombuffer(log.arrival), np.frombuffer(log.end), service, made, log


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_equal_requests_at_batch_one_are_an_m_d_1_queue(load):
    random = np.random.default_rng(1)
    arrival, end, service, _, _ = queue([100] * 40_000, load, 1e-3, random)
    wait = (end - arrival - service).mean()
    assert wait == pytest.approx(load * service.mean() / (2 * (1 - load)), rel=0.06)


def test_exponential_requests_at_batch_one_are_an_m_m_1_queue():
    random = np.random.default_rng(2)
    outputs = np.maximum(1, np.rint(random.exponential(400, 60_000))).astype(int)
    arrival, end, service, _, _ = queue(outputs, 0.6, 1e-3, random)
    assert (end - arrival).mean() == pytest.approx(service.mean() / 0.4, rel=0.06)


def test_every_wait_is_that_of_one_server():
    """Lindley's recursion, request by request."""
    random = np.random.default_rng(3)
    outputs = random.integers(1, 200, 500)
    arrival, end, service, made, _ = queue(outputs, 0.9, 1e-3, random)
    free = 0.0
    for a, e, s in zip(arrival, end, service, strict=True):
        free = max(free, a) + s
        assert e == pytest.approx(free, rel=1e-9)
    assert made.engines[0].seconds_busy == pytest.approx(service.sum(), rel=1e-9)


@pytest.mark.parametrize("pools", [{}, {"engines": 3}, {"engines": 2, "prefill": 2}])
def test_littles_law(pools):
    random = np.random.default_rng(4)
    count = 300
    arrivals = np.cumsum(random.exponential(0.05, count))
    made = loop(rules(), blocks=800, **pools)
    log = made.run(Stream(arrivals.tolist(), random.integers(1, 3000, count).tolist(),
                          random.integers(1, 300, count).tolist()))  # fmt: skip
    times = np.frombuffer(log.end) - np.frombuffer(log.arrival)
    assert log.in_system == pytest.approx(times.sum(), rel=1e-9)
