"""Values carry what they owe: a strategy that forgets a step is refused with the step's name."""

from __future__ import annotations

import pytest
from strategies_for_tests import MOE, UnitMachine, evaluate, figures, gqa, lane, layout, machine, mla, model, outside
from strategies_for_tests import placement as place

from sim import mixers
from sim.builder import Builder
from sim.cut import Cut, Dim
from sim.errors import ProgramError
from sim.lower import lower
from sim.mesh import Mesh
from sim.network.collectives import Collectives
from sim.network.constants import load_fabric_constants
from sim.program import CommunicationOp, Value
from sim.workload import Workload
from strategies.dcp import DecodeContextParallel
from strategies.helix import Helix
from strategies.kvp import KvParallel
from strategies.tp import TensorParallel

GQA, EXPERTS = model(gqa(24, 4)), model(gqa(24, 4), MOE)


def _refusal(strategy, of=GQA) -> str:
    with pytest.raises(ProgramError) as error:
        lower(of, strategy, "decode")
    return str(error.value)


# -- strategies that forget something -----------------------------------------------------------------------


class ForgetsToReduce(TensorParallel):
    def attention(self, b, x):
        return mixers.output(b, mixers.attend(b, mixers.query(b, x)))


class ForgetsToReduceTheFfn(TensorParallel):
    def ffn(self, b, x):
        return mixers.feed_forward(b, x)


class ForgetsToMerge(Helix):
    def attention(self, b, x):
        shares = mixers.attend(b, mixers.query(b, x))
        return b.all_reduce(mixers.output(b, b.exchange_heads(shares, statistics=2)))


class ForgetsToExchange(Helix):
    def attention(self, b, x):
        return b.all_reduce(mixers.output(b, mixers.attend(b, mixers.query(b, x))))


class SumsShares(Helix):
    def attention(self, b, x):
        shares = mixers.attend(b, mixers.query(b, x))
        return b.all_reduce(shares._replace(partial=shares.shares))


class ForgetsTheStatistics(DecodeContextParallel):
    def attention(self, b, x):
        q = b.all_gather(mixers.query(b, x), ("dcp",), over="heads")
        return b.rescale(mixers.attend(b, q), None)


class ForgetsToGatherQueries(DecodeContextParallel):
    def attention(self, b, x):
        return mixers.attend(b, mixers.query(b, x))


class ForgetsToBroadcast(KvParallel):
    def attention(self, b, x):
        shares = b.gather_shares(mixers.attend(b, mixers.query(b, x)), statistics=1)
        return b.all_reduce(mixers.output(b, b.merge(shares)))


class AddsDifferentSums(TensorParallel):
    def ffn(self, b, x):
        return b.all_reduce(b.add(b.all_reduce(mixers.routed_experts(b, x)), mixers.shared_expert(b, x)))


class ReturnsFewerTokens(TensorParallel):
    def ffn(self, b, x):
        return b.reduce_scatter(mixers.feed_forward(b, x), ("tp",))


class ScattersNothing(TensorParallel):
    def ffn(self, b, x):
        y = b.all_reduce(mixers.feed_forward(b, x))
        return b.reduce_scatter(y, ("tp",))


@pytest.mark.parametrize(
    ("strategy", "of", "message"),
    [
        (ForgetsToReduce(tp=2), GQA, "ffn.add_norm: attention.o still owes a sum over world"),
        (ForgetsToReduceTheFfn(tp=2), GQA, "layer: ffn.down still owes a sum over world"),
        (
            ForgetsToMerge(tpa=2, kvp=2),
            GQA,
            "attention.o: attention.q.rope.attended.exchanged still owes a merge of stacked shares over kvp",
        ),
        (
            ForgetsToExchange(tpa=2, kvp=2),
            GQA,
            "attention.o: attention.q.rope.attended still owes a softmax merge over kvp",
        ),
        (
            SumsShares(tpa=2, kvp=2),
            GQA,
            "attention.all_reduce: attention.q.rope.attended owes a softmax merge, which a sum does not pay",
        ),
        (
            ForgetsTheStatistics(tp=8, dcp=2),
            GQA,
            "attention.rescale: attention.q.rope.gathered.attended needs the statistics of dcp",
        ),
        (
            ForgetsToGatherQueries(tp=8, dcp=2),
            GQA,
            "attention.attend: attention.q.rope has 24 heads split over tpa·dcp; the cache's KV heads serve tpa",
        ),
        (
            AddsDifferentSums(tp=2),
            EXPERTS,
            "ffn.add: ffn.routed.sum and ffn.shared_down are not split alike or owe different sums",
        ),
        (ReturnsFewerTokens(tp=2), GQA, "the layer takes tokens split over () and returns ('tp',)"),
        (ScattersNothing(tp=2), GQA, "ffn.reduce_scatter: ffn.down.sum owes no sum over tp"),
    ],
    ids=lambda x: type(x).__name__ if isinstance(x, TensorParallel | Helix | DecodeContextParallel) else "",
)
def test_a_strategy_that_forgets_a_step_is_refused(strategy, of, message):
    assert _refusal(strategy, of) == message


def test_forgetting_costs_nothing_at_degree_1():
    """Nothing is owed on one rank, so the same program is right."""
    for strategy in (ForgetsToReduce(tp=1), ForgetsToReduceTheFfn(tp=1), ForgetsToExchange(tpa=1, kvp=1)):
        segments = lower(GQA, strategy, "decode").segments
        assert [op.name for s in segments for op in s.ops if isinstance(op, CommunicationOp)] == []


# -- the builder by itself ----------------------------------------------------------------------------------


@pytest.fixture
def builder() -> Builder:
    cut = Cut(Mesh({"dp": 2, "tp": 3}), {"q_heads": ("tp",), "ffn": ("tp",)}, sequences=("dp",))
    return Builder(GQA, cut, "decode", next(iter(GQA.kinds)))


def _value(name: str = "x", **owed) -> Value:
    return Value(name, (), (Dim("hidden", 96),))._replace(**owed)


def test_collectives_over_axes_of_size_1_are_not_issued():
    b = Builder(GQA, Cut(Mesh({"tp": 1}), {}), "decode")
    x = _value()
    assert b.all_gather(x, ("tp",)) is b.reduce_scatter(x, ("tp",)) is b.all_reduce(x) is b.broadcast(x, ("tp",)) is x
    assert b.ops == []


def test_a_reduce_scatter_leaves_the_rest_of_the_sum(builder):
    y = builder.reduce_scatter(_value(partial=("world",)), ("dp",))
    assert (y.tokens, y.partial) == (("dp",), ("tp",))
    assert builder.all_reduce(y).whole


def test_an_all_gather_takes_what_is_innermost(builder):
    x = _value(tokens=("dp", "tp"))
    assert builder.all_gather(x, ("tp",)).tokens == ("dp",)
    with pytest.raises(ProgramError) as error:
        builder.all_gather(x, ("dp",))
    assert str(error.value) == "all_gather: the tokens of x are not split over dp innermost"
    with pytest.raises(ProgramError) as error:
        builder.all_gather(x._replace(partial=("tp",)), ("tp",))
    assert str(error.value) == "all_gather: x still owes a sum over tp"


def test_residuals_must_be_split_alike(builder):
    with pytest.raises(ProgramError) as error:
        builder.add_norm(_value("a", tokens=("dp",)), _value("b"), "ffn_norm")
    assert str(error.value) == "add_norm: a and b are not split alike"


def test_everything_that_is_owed_is_named(builder):
    with pytest.raises(ProgramError) as error:
        builder.whole("sample", _value(partial=("tp",), shares=("dp",), stacked=("dp", "tp")))
    assert str(error.value) == (
        "sample: x still owes a sum over tp and a softmax merge over dp and a merge of stacked shares over dp·tp"
    )


def test_values_come_from_somewhere_and_only_once(builder):
    builder.norm(_value("ghost"), "ffn_norm")
    with pytest.raises(ProgramError) as error:
        builder.segment((), ())
    assert str(error.value) == "norm: nobody made ghost before it is read"
    builder.norm(_value("ghost"), "ffn_norm")
    with pytest.raises(ProgramError) as error:
        builder.segment((_value("ghost"),), ())
    assert str(error.value) == "norm: ghost.norm is made twice"


def test_pieces_go_together_in_order(builder):
    a, b, c = builder.split(_value(), 3)
    assert builder.concat([a, b, c]) == _value()
    with pytest.raises(ProgramError) as error:
        builder.concat([a, c, b])
    assert str(error.value) == "concat: the pieces are not the pieces of one batch in order"


def test_a_result_of_the_first_group_only_does_not_go_with_one_of_all():
    assert _refusal(ForgetsToBroadcast(kvp=2, tp=2)) == (
        "ffn.add_norm: attention.o.sum and y.residual are not split alike"
    )


# -- whole programs -----------------------------------------------------------------------------------------

WORK = Workload(batch=8, context=1000)


@pytest.mark.parametrize("ranks", [2, 3, 4, 6, 8])
def test_a_ring_all_reduce_moves_2_n_minus_1_over_n(ranks):
    """Through a whole scenario: what every rank sends in a step, and what the ring costs on real links."""
    placed = place(GQA, "tp", tp=ranks)
    message = 8 * 96 * 2
    sent = evaluate(placed, WORK).best.passes[0].critical.sent
    assert sent["attention.all_reduce"] == 3 * (2 * (ranks - 1) * message // ranks)
    fabric = machine(64).collectives.fabric
    forced = {"all_reduce": "ring"}
    prices = Collectives(fabric, machine(64).kernels.gpu, load_fabric_constants(), forced=forced)
    ring = prices.cost("all_reduce", tuple(range(ranks)))
    assert ring.wire_per_byte == pytest.approx(2 * (ranks - 1) / ranks, rel=1e-9)


def test_latent_attention_absorbs_in_decode_and_expands_in_prefill():
    latent = place(model(mla()), "tp", tp=2)
    decode = set(figures(latent, WORK))
    prefill = set(figures(latent, Workload(phase="prefill", batch=2, context=100)))
    assert decode - prefill == {"attention.absorb", "attention.raise"}
    assert prefill - decode == {"attention.kv_b"}


def test_the_head_sees_one_row_per_prompt():
    work = Workload(phase="prefill", batch=3, context=100)
    placed = place(GQA, "tp", tp=2)
    found = outside(placed, work)
    assert found["logits.lm_head"].flops == 2 * 3 * 96 * 480
    assert found["embedding.all_reduce"].size == 300 * 96 * 2


def test_draft_tokens_multiply_rows_and_not_the_cache():
    one, three = (figures(place(GQA, "tp", tp=2), Workload(batch=8, context=1000, query_tokens=q)) for q in (1, 3))
    assert three["attention.qkv"].flops == 3 * one["attention.qkv"].flops
    assert three["attention.core"].flops == 3 * one["attention.core"].flops
    assert three["attention.core"].kv_bytes == one["attention.core"].kv_bytes
    assert three["attention.append_kv"].kv_bytes == 3 * one["attention.append_kv"].kv_bytes
    assert three["ffn.all_reduce"].size == 3 * one["ffn.all_reduce"].size


def test_a_window_bounds_what_is_read():
    windowed = model(gqa(24, 4, window=128))
    for context, tokens in ((100, 100), (128, 128), (5000, 128)):
        core = figures(place(windowed, "tp", tp=1), Workload(batch=2, context=context))["attention.core"]
        assert core.kv_bytes == 2 * tokens * 4 * 32 * 2


def test_a_program_is_written_once_for_all_ranks():
    assert lower(GQA, layout("tp", tp=2), "decode") is lower(GQA, layout("tp", tp=2), "decode")
    assert isinstance(UnitMachine().collectives.cost("all_reduce").alpha, float)
    assert lane(place(GQA, "tp", tp=2), WORK).rank == 0
