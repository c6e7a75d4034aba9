"""The one home of what tests draw and build: small models, layouts, workloads and machines.

Sizes are small, so that a drawn example costs milliseconds; they divide by 1, 2, 4 and 8, and some by 3.
"""

from __future__ import annotations

from functools import lru_cache

from hypothesis import strategies as st

from sim.catalog.models import load_model
from sim.catalog.strategies import load_strategy
from sim.evaluate import Evaluation
from sim.kernels import Cost
from sim.lane import Lane
from sim.lower import lower
from sim.machine import Machine
from sim.model import DenseFfn, GroupedQueryAttention, LatentAttention, Layer, LayerRun, Model, MoeFfn
from sim.network.collectives import CollectiveCost
from sim.placement import Placement
from sim.program import CommunicationOp, Message, Work
from sim.step import StageModel
from sim.strategy import Strategy
from sim.testing import sample_machine
from sim.workload import Precision, Workload

# -- building by hand ---------------------------------------------------------------------------------------


def gqa(query_heads: int, kv_heads: int, head_dim: int = 16, window: int | None = None) -> GroupedQueryAttention:
    """Grouped-query attention; MHA where both numbers are equal."""
    return GroupedQueryAttention(
        query_heads=query_heads, kv_heads=kv_heads, head_dim=head_dim, v_head_dim=head_dim, window=window
    )


def mla(query_heads: int = 24, latent: int = 32, rope: int = 8) -> LatentAttention:
    """Multi-head latent attention."""
    return LatentAttention(
        query_heads=query_heads, q_lora_rank=48, kv_lora_rank=latent, rope_dim=rope, nope_dim=16, v_head_dim=16
    )


DENSE = DenseFfn(width=768)
MOE = MoeFfn(experts=48, top_k=4, width=96, shared_width=96)


def model(attention, ffn=DENSE, layers: int = 3, name: str = "small") -> Model:
    """A model of equal layers."""
    run = LayerRun(count=layers, layer=Layer(attention=attention, ffn=ffn))
    return Model(name=name, hidden=96, vocab=960, pattern=(run,))


def layout(kind: str, **degrees) -> Strategy:
    """A layout by the name of its strategy."""
    return load_strategy(kind)(**degrees)


def placement(of: Model | str, kind: str, precision: Precision | None = None, **degrees) -> Placement:
    """A model (by name or as it is) placed by a layout that exists."""
    found = load_model(of) if isinstance(of, str) else of
    strategy = layout(kind, **degrees)
    assert strategy.check(found, strategy.phases[0]) == []
    return Placement(found, strategy, precision or Precision())


def lane(placed: Placement, workload: Workload, rank: int = 0) -> Lane:
    """The figures of one rank."""
    w = workload
    return Lane(rank, placed.cut, w.sequences, placed.precision, w.generated)


def figures(
    placed: Placement, workload: Workload, rank: int = 0, layer: int = 0, pieces: int = 1
) -> dict[str, Work | Message]:
    """What each operation of a kind of layer asks of one rank, by its name."""
    program = lower(placed.model, placed.strategy, workload.phase, pieces)
    segment = list(program.layers.values())[layer]
    return _asked(segment.ops, lane(placed, workload, rank))


def outside(placed: Placement, workload: Workload, rank: int = 0) -> dict[str, Work | Message]:
    """The same for what runs before and after the layers."""
    program = lower(placed.model, placed.strategy, workload.phase)
    return _asked((*program.begin.ops, *program.end.ops), lane(placed, workload, rank))


def _asked(ops, on: Lane) -> dict[str, Work | Message]:
    found: dict[str, Work | Message] = {}
    for op in ops:
        if isinstance(op, CommunicationOp):
            found[op.name] = op.message(on)
        elif hasattr(op, "work"):
            found[op.name] = op.work(on)
    return found


machine = lru_cache(maxsize=4)(sample_machine)


def evaluate(placed: Placement, workload: Workload, on: Machine | None = None, **options) -> Evaluation:
    """A layout on 64 GPUs of an NVL72, unless another machine is given."""
    return Evaluation(placed, on or machine(64), workload, **options)


class _AnyFabric:
    """Every group sits alike."""

    def group_shape(self, ranks: tuple[int, ...]) -> int:
        return len(ranks)


class _Units:
    """Prices in round numbers: attention takes ``attention`` s per (sequence, KV head), a kind of collective
    ``fixed[kind]`` s plus ``per_byte[kind]`` s a byte, everything else nothing.
    """

    def __init__(self, attention: float = 0.0, fixed=None, per_byte=None, gemm: float = 0.0):
        self.attention, self.gemm = attention, gemm
        self.fixed, self.per_byte = fixed or {}, per_byte or {}
        self.fabric = _AnyFabric()

    def cost(self, what, ranks=()):
        """Of an operation's work, or of a kind of collective."""
        if isinstance(what, Work):
            per = self.gemm if what.family == "gemm" else 0.0
            if what.family == "decode_attention":
                per = self.attention * what.shape.sequences * what.shape.kv_heads
            return Cost(per, 0.0, per, 0.0, 0.0)
        fields = dict.fromkeys(CollectiveCost._fields, 0.0) | {"algorithm": "unit", "tier": "unit"}
        fields |= {"alpha": self.fixed.get(what, 0.0), "seconds_per_byte": self.per_byte.get(what, 0.0)}
        return CollectiveCost(**fields)


def UnitMachine(*arguments, **prices) -> Machine:  # noqa: N802  a machine like any other
    """A machine with the prices of ``_Units``."""
    units = _Units(*arguments, **prices)
    return Machine(units, units)


def run_stage(placed: Placement, on, workload: Workload, granularity: str = "folded", **options):
    """One pass of a whole batch over one stage."""
    w = workload
    stage = StageModel(placed, on, w.phase, w.sequences, generated=w.generated, **options)
    return stage.run(granularity)


# -- drawing ------------------------------------------------------------------------------------------------

KV_HEADS = (1, 2, 3, 4, 6, 8, 24)


@st.composite
def models(draw, kinds=("gqa", "windowed", "mla"), layers: int = 3) -> Model:
    """Models of 24 query heads with any of ``KV_HEADS``, with a window, or with a latent; dense or MoE."""
    kind = draw(st.sampled_from(kinds))
    if kind == "mla":
        attention = mla()
    else:
        attention = gqa(24, draw(st.sampled_from(KV_HEADS)), window=48 if kind == "windowed" else None)
    ffn = draw(st.sampled_from((DENSE, MOE)))
    count = draw(st.integers(1, layers))
    return model(attention, ffn, count, f"{kind}-{ffn.kind}-{count}")


DEGREES = (1, 2, 3, 4, 6, 8)
KINDS = ("tp", "attention_dp", "wide_ep", "kvp", "dcp", "helix")


@st.composite
def layouts(draw, of: Model, kinds=KINDS, extra: bool = True, pipelines: bool = True) -> Strategy:
    """Layouts that exist for a model, with every switch of every strategy; ``extra``: and of the base class."""
    kind = draw(st.sampled_from([k for k in kinds if k != "wide_ep" or any(layer.ffn == MOE for layer in of.kinds)]))
    degree = st.sampled_from(DEGREES)
    degrees: dict[str, object] = {}
    if kind == "tp":
        degrees = {"tp": draw(st.sampled_from((*DEGREES, 12, 24)))}
    elif kind == "attention_dp":
        degrees = {"dp": draw(degree), "tp": draw(st.sampled_from((1, 2, 3))), "dense": draw(_DENSE_OVER)}
        degrees["vocab"] = draw(_DENSE_OVER)
    elif kind == "wide_ep":
        degrees = {"dp": draw(st.sampled_from((2, 3, 4, 6, 8))), "tp": draw(st.sampled_from((1, 2)))}
        degrees["redundant_experts"] = draw(st.sampled_from((0, degrees["dp"] * degrees["tp"])))
        degrees["copies"] = draw(st.sampled_from(("per_rank", "per_expert")))
    elif kind == "kvp":
        degrees = {"kvp": draw(degree), "tp": draw(st.sampled_from((1, 2, 3, 4)))}
    elif kind == "dcp":
        inner = draw(st.sampled_from((1, 2, 3, 4)))
        degrees = {"tp": inner * draw(st.sampled_from((1, 2, 3, 4))), "dcp": inner}
        degrees["exchange"] = draw(st.sampled_from(("ag_rs", "a2a")))
        degrees["replicate_q"] = draw(st.booleans())
    else:
        degrees = {"tpa": draw(st.sampled_from((1, 2, 3, 4))), "kvp": draw(st.sampled_from((1, 2, 4)))}
        degrees["hop_b"] = draw(st.sampled_from((False, True, 3)))
        degrees["dp"] = draw(st.sampled_from((1, 1, 2)))
        if degrees["dp"] > 1 and any(layer.ffn == MOE for layer in of.kinds):
            degrees["ep"] = degrees["dp"] * degrees["tpa"] * degrees["kvp"]
    if kind in ("kvp", "dcp", "helix"):
        degrees["ownership"] = draw(st.sampled_from(("round_robin", "prompt_decode", "contiguous")))
        degrees["block"] = draw(st.sampled_from((1, 16, 32)))
    if extra:
        degrees["pp"] = draw(st.sampled_from((1, 1, 2))) if pipelines and of.layers > 1 else 1
        degrees["replicas"] = draw(st.sampled_from((1, 1, 2)))
        degrees["two_batch_overlap"] = draw(st.booleans())
        degrees["stage_split"] = draw(st.sampled_from(("vllm", "trtllm")))
    found = layout(kind, **degrees)
    if found.check(of) or found.gpus(of) > 64:
        found = layout("tp", tp=draw(st.sampled_from((1, 2, 4))))
    return found


_DENSE_OVER = st.sampled_from((None, "world", "attention_tp"))


@st.composite
def workloads(draw, query_tokens: int = 4) -> Workload:
    """Decode batches: even or ragged, smaller or larger than the ranks, contexts shorter than a block or long."""
    q = draw(st.integers(1, query_tokens))
    length = st.integers(q, 40) | st.integers(q, 5000)
    if draw(st.booleans()):
        return Workload(batch=draw(st.integers(1, 20)), context=draw(length), query_tokens=q)
    return Workload(context=tuple(draw(st.lists(length, min_size=1, max_size=9))), query_tokens=q)
