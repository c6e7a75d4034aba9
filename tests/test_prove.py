"""Layouts are proved by execution, and deliberately broken variants of each strategy are caught."""

from __future__ import annotations

from dataclasses import dataclass, fields

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim import mixers
from sim import ops_communication as comm
from sim import ops_compute as ops
from sim.catalog.models import load_model
from sim.cut import Cut, Dim
from sim.errors import InputError
from sim.model import DenseFfn, GroupedQueryAttention, LatentAttention, Layer, LayerRun, Model, MoeFfn
from sim.ownership import Ownership
from sim.placement import Placement
from sim.proof import prove
from sim.proof.compute import compute
from sim.proof.world import Piece
from sim.testing import SAMPLE_MODELS
from sim.workload import Precision
from strategies.attention_dp import AttentionDataParallel
from strategies.dcp import DecodeContextParallel
from strategies.helix import Helix
from strategies.kvp import KvParallel
from strategies.tp import TensorParallel
from strategies.wide_ep import WideExpertParallel

GQA, MLA = SAMPLE_MODELS["gqa-moe"], SAMPLE_MODELS["mla-moe"]
FORMATS = Precision(weights="nvfp4", kv_cache="fp8", dispatch="fp8")
SOUND = [
    TensorParallel(tp=8),
    TensorParallel(tp=4, ep=2, pp=2),
    AttentionDataParallel(dp=4),
    AttentionDataParallel(dp=2, tp=2, ep=4, replicas=2),
    KvParallel(kvp=3, tp=2),
    DecodeContextParallel(tp=8, dcp=4),
    DecodeContextParallel(tp=8, dcp=2, exchange="a2a"),
    Helix(tpa=2, kvp=4, hop_b=2),
    Helix(dp=2, tpa=2, kvp=2, ep=8),
    WideExpertParallel(dp=4, tp=2, redundant_experts=8, placement="round_robin"),
    WideExpertParallel(dp=4, copies="per_expert", two_batch_overlap=True),
]


@pytest.mark.parametrize("model", [GQA, MLA], ids=["gqa", "mla"])
@pytest.mark.parametrize("strategy", SOUND, ids=lambda s: s.label)
def test_sound_layouts_are_exact_and_every_byte_is_accounted_for(strategy, model):
    proof = prove(model, strategy, FORMATS)
    assert proof.difference == ""
    assert proof.ok
    assert 0 < proof.max_relative_error < 1e-12
    assert proof.held_bytes == proof.claimed_held_bytes > 0
    assert proof.sent_bytes == proof.claimed_sent_bytes > 0
    assert proof.duplication_counted == proof.duplication_claimed
    assert proof.steps == 4 * strategy.replicas


@pytest.mark.parametrize(("tp", "copies"), [(2, 1), (4, 1), (8, 2), (16, 4), (32, 8)])
def test_tp_beyond_the_kv_heads_is_counted_as_duplication(tp, copies):
    proof = prove(SAMPLE_MODELS["gqa"], TensorParallel(tp=tp))
    assert proof.ok
    assert proof.duplication_counted == copies


def test_mla_under_tp_lives_on_every_rank_and_dcp_takes_the_copies_away():
    assert prove(MLA, TensorParallel(tp=8)).duplication_counted == 8
    assert prove(MLA, DecodeContextParallel(tp=8, dcp=8)).duplication_counted == 1


def test_degrees_that_divide_no_kv_head_count_are_exact_too():
    attention = GroupedQueryAttention(query_heads=24, kv_heads=6, head_dim=16, v_head_dim=16)
    model = Model(
        name="six",
        hidden=96,
        vocab=100,
        pattern=(LayerRun(count=2, layer=Layer(attention=attention, ffn=DenseFfn(width=96))),),
    )
    proof = prove(model, TensorParallel(tp=4))  # 6 KV heads over 4 ranks: two straddle, so 8 are held
    assert proof.ok
    assert proof.duplication_counted == pytest.approx(8 / 6)


@pytest.mark.parametrize("name", ["qwen3-235b-a22b", "deepseek-r1", "gpt-oss-20b", "gemma-4-26b-a4b", "mimo-v2-flash"])
def test_catalogue_models_keep_their_heads_and_experts(name):
    model = load_model(name)
    proof = prove(model, TensorParallel(tp=2), Precision(kv_cache="fp8"))
    assert proof.ok, proof.difference
    assert "layers" in proof.scaling


def test_prefill_is_proved_where_a_strategy_has_it():
    for strategy in (TensorParallel(tp=4, pp=2), AttentionDataParallel(dp=2, tp=2, ep=4), WideExpertParallel(dp=4)):
        for model in (MLA, SAMPLE_MODELS["windowed"]):
            if not strategy.check(model, "prefill"):
                assert prove(model, strategy, phase="prefill").ok
    with pytest.raises(InputError, match="runs decode only, not prefill"):
        prove(GQA, Helix(kvp=2), phase="prefill")


def test_a_price_for_a_tensor_that_does_not_exist_is_not_proved():
    proof = prove(MLA, Helix(kvp=4, exchange_space="paper_hidden"))
    assert not proof.ok
    assert "a price only, which no execution can show" in proof.difference


@pytest.mark.parametrize("kv", ["nvfp4", "mxfp4", "mxfp8", "fp8_group", "int4", "fp32"])
def test_cache_formats_with_scales_are_accounted_in_whole_bytes(kv):
    for model in (GQA, MLA, SAMPLE_MODELS["windowed"]):
        proof = prove(model, TensorParallel(tp=8), Precision(kv_cache=kv))
        assert proof.ok, proof.difference


# -- broken variants -------------------------------------------------------------------------------------


def broken_cut(whole: Cut, kind: type[Cut]) -> Cut:
    """The same cut with another class's rules."""
    return kind(**{f.name: getattr(whole, f.name) for f in fields(Cut)})


class HeadTwice(Cut):
    """The second rank takes the first rank's query heads."""

    def range(self, dim: Dim, rank: int) -> tuple[int, int]:
        return super().range(dim, 0 if "heads" in dim.role and rank == 1 else rank)


class OtherOwner(Ownership):
    """New tokens go to the neighbour of the rank that is said to hold them."""

    def owner(self, token: int, ranks: int, context: int, generated: int = 0) -> int:
        there = super().owner(token, ranks, context, generated)
        return (there + 1) % ranks if token >= 5 else there


class ExpertDropped(Cut):
    """The last slot holds the first expert once more."""

    def slot_table(self, experts: int) -> tuple[int, ...]:
        table = super().slot_table(experts)
        return (*table[:-1], table[0])


def with_cut(strategy, change):
    """The strategy with another cut."""

    class Broken(type(strategy)):
        kind = "broken"

        def cut(self, model):
            return change(super().cut(model))

    return Broken(**{name: getattr(strategy, name) for name in type(strategy).model_fields})


@pytest.mark.parametrize(
    "strategy", [s for s in SOUND if s.label not in ("dp4", "dp4-wide_ep4-tbo")], ids=lambda s: s.label
)
def test_a_head_assigned_twice_is_caught(strategy):
    proof = prove(GQA, with_cut(strategy, lambda cut: broken_cut(cut, HeadTwice)))
    assert not proof.ok


@pytest.mark.parametrize("strategy", [s for s in SOUND if s.kind in ("kvp", "dcp", "helix")], ids=lambda s: s.label)
def test_a_token_on_the_wrong_rank_is_caught(strategy):
    def change(cut):
        ownership = OtherOwner(rule=cut.ownership.rule, block=cut.ownership.block)
        return Cut(**{f.name: getattr(cut, f.name) for f in fields(Cut)} | {"ownership": ownership})

    proof = prove(GQA, with_cut(strategy, change))
    assert not proof.ok
    assert "KV" in proof.difference


@pytest.mark.parametrize(
    "strategy", [s for s in SOUND if s.kind in ("wide_ep", "helix") and getattr(s, "dp", 1) > 1], ids=lambda s: s.label
)
def test_a_dropped_expert_is_caught(strategy):
    strategy = strategy.model_copy(update={"redundant_experts": 0}) if strategy.kind == "wide_ep" else strategy
    proof = prove(GQA, with_cut(strategy, lambda cut: broken_cut(cut, ExpertDropped)))
    assert not proof.ok
    assert proof.difference == "stage 0 layer 0: experts that some rank holds: 31 counted, 32 claimed"


@dataclass(frozen=True, slots=True)
class Unscaled(ops.Rescale):
    """A rescale that leaves its share as it is."""


@compute.register
def _(op: Unscaled, rank, world):
    x = rank.get(op.inputs[0])
    world.put(op, rank, op.outputs[0], Piece(x.array, x.rows, x.ranges))


def replaced(b, old, new):
    """Put another operation in the place of the last one of a kind."""
    at = max(i for i, op in enumerate(b.ops) if type(op) is old)
    b.ops[at] = new(*(getattr(b.ops[at], f.name) for f in fields(b.ops[at])))


class NoRescale(DecodeContextParallel):
    kind = "no_rescale"

    def attention(self, b, x):
        y = super().attention(b, x)
        replaced(b, ops.Rescale, Unscaled)
        return y


def test_a_missing_rescale_is_caught_by_the_numbers():
    proof = prove(GQA, NoRescale(tp=8, dcp=4))
    assert not proof.ok
    assert proof.difference.startswith("stage 0 rank 0 layer 0 hidden state: element ")
    assert "the reference has" in proof.difference


@dataclass(frozen=True, slots=True)
class HalfClaimed(comm.ExchangeShares):
    """An all-to-all that claims half of its bytes."""

    def message(self, lane):
        message = super(HalfClaimed, self).message(lane)
        return message._replace(sent=message.sent // 2)


class HalfExchange(Helix):
    kind = "half_exchange"

    def attention(self, b, x):
        y = super().attention(b, x)
        replaced(b, comm.ExchangeShares, HalfClaimed)
        return y


def test_an_all_to_all_that_claims_half_its_bytes_is_caught():
    proof = prove(GQA, HalfExchange(tpa=2, kvp=4, hop_b=False))
    assert not proof.ok
    assert proof.max_relative_error < 1e-12
    assert "attention.all_to_all: bytes sent" in proof.difference
    assert proof.claimed_sent_bytes < proof.sent_bytes


def forgetful(base, method):
    """A strategy that says a sum is paid without paying it."""

    class Forgets(base):
        kind = "forgets"

    def attention(self, b, x):
        pay = type(b).all_reduce
        b.all_reduce = lambda v: v._replace(partial=())
        try:
            return getattr(super(Forgets, self), method)(b, x)
        finally:
            b.all_reduce = pay.__get__(b)

    setattr(Forgets, method, attention)
    return Forgets


@pytest.mark.parametrize("method", ["attention", "ffn"])
@pytest.mark.parametrize(
    ("base", "degrees"),
    [
        (TensorParallel, {"tp": 4}),
        (DecodeContextParallel, {"tp": 4, "dcp": 2}),
        (Helix, {"tpa": 2, "kvp": 2}),
        (KvParallel, {"kvp": 2, "tp": 2}),
        (AttentionDataParallel, {"dp": 2, "tp": 2}),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_a_forgotten_reduce_is_caught(base, degrees, method):
    proof = prove(GQA, forgetful(base, method)(**degrees))
    assert not proof.ok
    assert "the reference has" in proof.difference


def test_duplication_that_is_reported_too_low_is_caught(monkeypatch):
    honest = Placement.kv_bytes
    monkeypatch.setattr(Placement, "kv_bytes", lambda self, stage, lane: honest(self, stage, lane) // 2)
    proof = prove(GQA, TensorParallel(tp=8))
    assert not proof.ok
    assert "bytes of KV cache" in proof.difference
    assert (proof.duplication_counted, proof.duplication_claimed) == (2.0, 1.0)


class ReadsElsewhere(KvParallel):
    """Runs the output projection on every group, although only the first one holds it."""

    kind = "reads_elsewhere"

    def attention(self, b, x):
        y = super().attention(b, x)
        for i, op in enumerate(b.ops):
            if op.name == "attention.o":
                everywhere = [tuple(v._replace(only=()) for v in vs) for vs in (op.inputs, op.outputs)]
                b.ops[i] = ops.Project(op.name, *everywhere, op.weights)
        return y


def test_touching_what_a_rank_does_not_hold_fails():
    proof = prove(GQA, ReadsElsewhere(kvp=2, tp=2))
    assert not proof.ok
    assert "which it does not hold" in proof.difference


class SecondQuery(TensorParallel):
    """Attends one rank's heads with the next rank's queries: the types are right, the numbers are not."""

    kind = "second_query"

    def attention(self, b, x):
        return b.all_reduce(mixers.output(b, mixers.attend(b, mixers.query(b, b.norm(x, "ffn_norm")))))


def test_a_wrong_program_is_caught_by_the_numbers():
    proof = prove(GQA, SecondQuery(tp=4))
    assert not proof.ok
    assert proof.max_relative_error > 1e-3


# -- drawn layouts -----------------------------------------------------------------------------------------


@st.composite
def layouts(draw):
    power = st.sampled_from([1, 2, 4])
    a, b, c = draw(power), draw(power), draw(power)
    return draw(
        st.sampled_from(
            [
                TensorParallel(tp=a * b, pp=draw(st.integers(1, 3)), replicas=draw(st.integers(1, 2))),
                AttentionDataParallel(dp=a, tp=b, two_batch_overlap=draw(st.booleans())),
                KvParallel(kvp=draw(st.integers(1, 5)), tp=b, block=draw(st.integers(1, 3))),
                DecodeContextParallel(tp=a * b, dcp=b, exchange=draw(st.sampled_from(["ag_rs", "a2a"]))),
                Helix(tpa=a, kvp=b, dp=c, hop_b=draw(st.booleans()), block=draw(st.integers(1, 3))),
            ]
        )
    )


@st.composite
def models(draw):
    heads = 16
    if draw(st.booleans()):
        kv = draw(st.sampled_from([1, 2, 4, 8, 16]))
        window = draw(st.sampled_from([None, 64]))
        attention = GroupedQueryAttention(query_heads=heads, kv_heads=kv, head_dim=8, v_head_dim=8, window=window)
    else:
        lora = draw(st.sampled_from([None, 8]))
        attention = LatentAttention(
            query_heads=heads, q_lora_rank=lora, kv_lora_rank=8, rope_dim=4, nope_dim=8, v_head_dim=8
        )
    shared = draw(st.sampled_from([0, 64]))
    ffn = draw(st.sampled_from([DenseFfn(width=64), MoeFfn(experts=16, top_k=3, width=64, shared_width=shared)]))
    run = LayerRun(count=3, layer=Layer(attention=attention, ffn=ffn))
    return Model(name="drawn", hidden=64, vocab=70, tied_embeddings=draw(st.booleans()), pattern=(run,))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(model=models(), strategy=layouts())
def test_drawn_layouts_are_refused_or_proved(model, strategy):
    if not strategy.check(model):
        proof = prove(model, strategy, FORMATS)
        assert proof.ok, proof.difference
