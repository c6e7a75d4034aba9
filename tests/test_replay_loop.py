"""Requests through engines: nothing lost, nothing twice, and many steps at once equal to step by step."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replay_fleets import LinearPrices, loop, rules, stream

from sim.replays.loop import Stream

CASES = {
    "vllm": {},
    "short of blocks": {"blocks": 400},
    "swap": {"blocks": 400, "given": rules(preemption="swap")},
    "sglang": {"blocks": 6000, "given": rules("sglang")},
    "trtllm": {"given": rules("trtllm")},
    "decode first": {"given": rules(policy="decode_first")},
    "prefill first, short": {"blocks": 400, "given": rules(policy="prefill_first")},
    "no chunks": {"given": rules(chunked=False, max_tokens=2048)},
    "few sequences": {"given": rules(max_sequences=4)},
    "attention DP": {"blocks": 400, "groups": 4},
    "attention DP in turn": {"blocks": 400, "groups": 3, "given": rules(dp_router="round_robin")},
    "replicas": {"blocks": 500, "engines": 3},
    "drafts": {"given": rules(speculation={"draft_tokens": 3, "acceptance": 0.7})},
    "drafts and attention DP": {"groups": 3, "given": rules(speculation={"draft_tokens": 2, "acceptance": 0.5})},
    "drafts in pools": {"engines": 2, "prefill": 2, "given": rules(speculation={"draft_tokens": 2, "acceptance": 0.5})},
    "pools": {"blocks": 800, "engines": 2, "prefill": 2},
    "pools, layer by layer": {"blocks": 800, "engines": 2, "prefill": 2, "layers": 40},
    "pools with attention DP": {"blocks": 500, "engines": 2, "prefill": 2, "groups": 2},
}


def run(case, work, **more):
    arguments = {"given": rules(), **case, **more}
    made = loop(arguments.pop("given"), **arguments)
    return made, made.run(work)


def everybody_answered(made, log, count):
    """Each request arrives once, gets its first token once and ends once, in this order."""
    events = {}
    for what, index, time in made.journal:
        events.setdefault(index, []).append((what, time))
    assert len(events) == count
    for happened in events.values():
        names, times = zip(*happened, strict=True)
        assert names in (("arrival", "first", "end"), ("arrival", "refused"))
        assert list(times) == sorted(times)
    assert not np.isnan(np.frombuffer(log.arrival)).any()


@pytest.mark.parametrize("name", CASES)
def test_many_steps_at_once_equal_step_by_step(name):
    for seed in range(2):
        work = stream(np.random.default_rng(seed))
        fast, _ = run(CASES[name], work)
        slow, _ = run(CASES[name], work, stepwise=True)
        assert [event[:2] for event in fast.journal] == [event[:2] for event in slow.journal]
        assert [event[2] for event in fast.journal] == pytest.approx([event[2] for event in slow.journal], rel=1e-9)
        assert fast.number < slow.number


@pytest.mark.parametrize("name", CASES)
def test_no_request_is_lost_and_no_block_is_left(name):
    work = stream(np.random.default_rng(7), count=80, rate=50)
    made, log = run(CASES[name], work)
    everybody_answered(made, log, 80)
    for engine in (*made.engines, *made.prefill):
        assert engine.load == 0
        for lane in engine.lanes:
            lane.check()
            assert (lane.pool.used, lane.count, lane.tokens, lane.held, lane.load) == (0, 0, 0, 0, 0)


def test_short_blocks_preempt_and_a_full_reserve_never_does():
    work = stream(np.random.default_rng(0))
    _, short = run({"blocks": 400}, work)
    _, kept = run({"blocks": 400, "given": rules(reserve_output=1.0)}, work)
    assert sum(short.preemptions) > 0
    assert sum(kept.preemptions) == 0


def test_accepted_drafts_save_steps():
    chosen = rules(speculation={"draft_tokens": 3, "acceptance": 0.8})
    assert chosen.gain == pytest.approx(1 + 0.8 + 0.64 + 0.512)
    assert np.mean([chosen.steps(400, seed) for seed in range(200)]) == pytest.approx(400 / chosen.gain, rel=0.02)
    prices = LinearPrices(sequence=0, token=0)
    made, _ = run({"prices": prices, "given": chosen}, Stream([0.0], [100], [401]))
    assert made.engines[0].steps == 1 + chosen.steps(400, 0)
    never, always = (rules(speculation={"draft_tokens": 3, "acceptance": a}) for a in (0.0, 1.0))
    assert (never.steps(12, 0), always.steps(12, 0), always.steps(13, 0)) == (12, 3, 4)


def test_the_same_run_every_time():
    work = stream(np.random.default_rng(3))
    first, _ = run(CASES["pools"], work)
    second, _ = run(CASES["pools"], work)
    assert first.journal == second.journal


@settings(max_examples=30)
@given(st.data())
def test_any_stream_on_any_engine(data):
    """Arrivals at equal times, single tokens, prompts beyond the budget and beyond the cache."""
    draw = data.draw
    count = draw(st.integers(1, 25))
    times = sorted(draw(st.lists(st.sampled_from([0.0, 0.01, 0.5, 0.5, 1.0, 3.0]), min_size=count, max_size=count)))
    prompts = draw(st.lists(st.integers(1, 700), min_size=count, max_size=count))
    outputs = draw(st.lists(st.integers(1, 60), min_size=count, max_size=count))
    chosen = rules(
        draw(st.sampled_from(["vllm", "sglang", "trtllm"])),
        max_tokens=draw(st.sampled_from([64, 256, 8192])),
        max_sequences=draw(st.integers(1, 8)),
        preemption=draw(st.sampled_from(["recompute", "swap"])),
        policy=draw(st.sampled_from(["mixed", "prefill_first", "decode_first"])),
        block=draw(st.sampled_from([1, 16])),
        chunked=draw(st.booleans()),
    )
    pools = draw(st.sampled_from([(1, 0), (2, 0), (1, 1), (2, 2)]))
    groups = draw(st.integers(1, 3))
    blocks = draw(st.integers(20, 120)) * 16 // chosen.block
    sized = {"blocks": blocks, "groups": groups, "engines": pools[0], "prefill": pools[1], "given": chosen}
    work = Stream(times, prompts, outputs)
    made, log = run(sized, work)
    everybody_answered(made, log, count)
    slow, _ = run(sized, work, stepwise=True)
    ends = [sorted((i, w, t) for w, i, t in one.journal) for one in (made, slow)]
    assert [e[:2] for e in ends[0]] == [e[:2] for e in ends[1]]


def test_one_request_takes_its_prefill_and_its_steps():
    prices = LinearPrices(sequence=0, token=0)
    made, log = run({"prices": prices}, Stream([1.0], [1000], [11]))
    assert log.first[0] == pytest.approx(1.0 + prices.fixed + 1000 * prices.new)
    assert log.end[0] == pytest.approx(log.first[0] + 10 * prices.fixed)
    assert made.engines[0].steps == 11


def test_a_prompt_beyond_the_budget_is_cut_into_chunks():
    prices = LinearPrices()
    made, log = run({"prices": prices, "given": rules(max_tokens=300)}, Stream([0.0], [1000], [1]))
    assert made.engines[0].steps == 4
    assert log.end[0] == pytest.approx(4 * prices.fixed + 1000 * prices.new)


def test_a_request_that_never_fits_is_refused():
    _, log = run({"blocks": 10}, Stream([0.0, 0.1], [200, 20], [5, 5]))
    assert log.refused == [0]
    assert log.end[1] > 0


def test_a_closed_loop_keeps_its_number_in_the_system():
    random = np.random.default_rng(0)
    work = Stream([float("nan")] * 60, random.integers(1, 500, 60).tolist(), random.integers(2, 90, 60).tolist(),
                  concurrency=8)  # fmt: skip
    made, _ = run({}, work)
    present, most = 0, 0
    for what, _, _ in made.journal:
        present += {"arrival": 1, "end": -1}.get(what, 0)
        most = max(most, present)
    assert most == 8


def test_shared_prefixes_are_computed_once():
    def hashes(index):
        return (("common", 0), ("common", 1), (index, 2))

    work = Stream([0.0, 1.0, 2.0], [1600] * 3, [4] * 3, hashes=hashes, grain=512)
    made, log = run({"grain": 512}, work)
    assert list(log.hit) == [0, 1024, 1024]
    without, cold = run({"grain": 512, "given": rules(prefix_cache=False)}, work)
    assert list(cold.hit) == [0, 0, 0]
    saved = (cold.first[1] - cold.arrival[1]) - (log.first[1] - log.arrival[1])
    assert saved == pytest.approx(1024 * made.engines[0].prices.new)
    assert without.engines[0].lanes[0].pool.idle == {}


def test_idle_prefixes_make_room_the_oldest_first():
    work = Stream([0.0, 10.0, 20.0], [1024] * 3, [2] * 3, hashes=lambda i: ((i, 0), (i, 1)), grain=512)
    made, _ = run({"grain": 512, "blocks": 130}, work)
    pool = made.engines[0].lanes[0].pool
    assert pool.evictions > 0
    assert (2, 0) in pool.idle
    assert (0, 0) not in pool.idle


def test_back_pressure_holds_prompts_where_they_were_computed():
    work = stream(np.random.default_rng(0), rate=200, prompt=600, output=200)
    made, _ = run({"blocks": 60, "engines": 1, "prefill": 2}, work)
    free, _ = run({"blocks": 6000, "engines": 1, "prefill": 2}, work)
    waits = [{i: t for w, i, t in one.journal if w == "first"} for one in (made, free)]
    assert sum(waits[0].values()) > 2 * sum(waits[1].values())


def test_attention_groups_wait_for_the_fullest():
    prices = LinearPrices(token=1e-7)
    alone = run({"prices": prices, "groups": 2}, Stream([0.0], [5000], [100]))[1]
    beside = run({"prices": prices, "groups": 2}, Stream([0.0, 0.0], [5000, 10], [100, 100]))[1]
    assert beside.end[1] - beside.first[1] == pytest.approx(beside.end[0] - beside.first[0], rel=0.05)
    assert beside.end[0] >= alone.end[0]
