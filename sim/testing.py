"""Conformance: what every strategy and every topology must satisfy, ours and anybody's.

A strategy is also executed with real numbers (``sim.proof``), so a third party's is proved exact with the rest.

A plug-in's test suite calls ``check_strategy`` on a few of its layouts and ``check_topology`` on its machines. Each
raises ``ConformanceError`` with the promise that is broken, the model and the figures, or returns.

>>> from strategies.tp import TensorParallel
>>> check_strategy(TensorParallel(tp=2), SAMPLE_MODELS["gqa"])
"""

from __future__ import annotations

import itertools
import pickle

from sim.catalog.gpus import load_gpu
from sim.errors import InputError, Problem, ShardwiseError
from sim.evaluate import Evaluation
from sim.hardware import Gpu
from sim.kernels import Kernels, load_constants
from sim.lane import Lane
from sim.lower import lower
from sim.machine import Machine
from sim.model import (
    Attention,
    DenseFfn,
    Ffn,
    GroupedQueryAttention,
    LatentAttention,
    Layer,
    LayerRun,
    LinearAttention,
    Model,
    MoeFfn,
    SparseIndex,
)
from sim.network.collectives import Collectives
from sim.network.constants import load_fabric_constants
from sim.placement import Placement
from sim.proof import prove
from sim.strategy import Strategy
from sim.sweep import sweep
from sim.topology import Topology
from sim.workload import Precision, Sequences, Workload

CLOSE = 1e-9


class ConformanceError(ShardwiseError, AssertionError):
    """A strategy or a topology breaks a promise that the simulator relies on."""


def _gqa(query: int, kv: int, window: int | None = None) -> GroupedQueryAttention:
    return GroupedQueryAttention(query_heads=query, kv_heads=kv, head_dim=16, v_head_dim=16, window=window)


def _model(name: str, attention: Attention, *ffns: Ffn) -> Model:
    runs = tuple(LayerRun(count=3, layer=Layer(attention=attention, ffn=ffn)) for ffn in ffns)
    return Model(name=name, hidden=256, vocab=1024, pattern=runs)


_DENSE = DenseFfn(width=768)
_MOE = MoeFfn(experts=32, top_k=4, width=96, shared_width=96)
_MLA = LatentAttention(query_heads=32, q_lora_rank=48, kv_lora_rank=32, rope_dim=8, nope_dim=16, v_head_dim=16)

_SPARSE = _MLA.model_copy(update={"index": SparseIndex(heads=8, head_dim=16, top_k=64)})
_DELTA = LinearAttention(key_heads=8, value_heads=32, key_dim=16, value_dim=16)
_MAMBA = LinearAttention(key_heads=4, value_heads=32, key_dim=16, value_dim=16, rule="sum", gates=1, wide_norm=True)


def _hybrid(name: str, ffn: Ffn) -> Model:
    chunked = _gqa(32, 8, window=64).model_copy(update={"chunked": True})
    layers = (Layer(linear=_DELTA, ffn=ffn), Layer(linear=_MAMBA), Layer(attention=chunked, ffn=ffn))
    return Model(name=name, hidden=256, vocab=1024, pattern=tuple(LayerRun(count=2, layer=x) for x in layers))


SAMPLE_MODELS: dict[str, Model] = {
    "mha": _model("mha", _gqa(32, 32), _DENSE),
    "gqa": _model("gqa", _gqa(32, 4), _DENSE),
    "mqa": _model("mqa", _gqa(32, 1), _DENSE),
    "windowed": _model("windowed", _gqa(32, 8, window=64), _DENSE),
    "gqa-moe": _model("gqa-moe", _gqa(32, 4), _MOE),
    "mla-moe": _model("mla-moe", _MLA, _DENSE, _MOE),
    "sparse": _model("sparse", _SPARSE, _DENSE),
    "hybrid": _hybrid("hybrid", _MOE.model_copy(update={"latent": 64})),
}
"""Small models of every attention and feed-forward kind, whose sizes divide by 1, 2, 4, 8, 16 and 32."""


def sample_machine(gpus: int = 64) -> Machine:
    """An NVSwitch domain of B200 large enough for a layout; built without any catalogue entry of a topology."""
    from sim.catalog.topologies import parse_topology

    gpu = load_gpu("gb200" if gpus <= 72 else "b200-sxm")
    spec = {"kind": "nvl72"} if gpus <= 72 else {"kind": "cluster", "nodes": -(-gpus // 8), "node": "hgx-8"}
    fabric = parse_topology(spec).build(gpu)
    return Machine(Kernels(gpu, load_constants(gpu.constants)), Collectives(fabric, gpu, load_fabric_constants()))


def _require(condition: bool, strategy: Strategy, model: Model, promise: str) -> None:
    if not condition:
        raise ConformanceError(f"{type(strategy).__name__} ({strategy.label}) on {model.name}: {promise}")


def check_strategy(strategy: Strategy, model: Model, machine: Machine | None = None) -> None:
    """Check one layout on one model.

    A layout that ``Strategy.check`` refuses passes if every reason is a ``Problem`` with a message; so a suite may run
    over degrees and models without knowing which go together.

    Raises
    ------
    ConformanceError
        With the promise that is broken.
    ProgramError
        If the program does not type-check.
    """
    _require(bool(strategy.kind and strategy.label), strategy, model, "it needs a kind and a label")
    try:
        copy = pickle.loads(pickle.dumps(strategy))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ConformanceError(f"{type(strategy).__name__} must survive pickling: {error}") from error
    _require(copy == strategy, strategy, model, "it must survive pickling")
    refused = strategy.check(model)
    if refused:
        told = all(isinstance(p, Problem) and p.message for p in refused)
        _require(told, strategy, model, "each reason against a layout is a Problem with a message")
        return
    placement = Placement(model, strategy, Precision())
    _check_weights(placement)
    _check_attention(placement)
    machine = machine or sample_machine(strategy.gpus(model))
    _check_times(placement, machine)
    for phase in strategy.phases:
        proof = prove(model, strategy, phase=phase)
        _require(proof.ok, strategy, model, f"executing {phase} shows: {proof.difference}")


def _check_weights(placement: Placement) -> None:
    """Every element of every weight is on some rank of the stage that needs it."""
    strategy, model, cut = placement.strategy, placement.model, placement.cut
    for stage in range(strategy.pp):
        for held in placement.held(stage):
            ranks = [
                r
                for r in range(cut.mesh.size)
                if all(cut.mesh.coordinate(r, a) == at for a, at in cut.holds(held.tensor))
            ]
            slices = {
                tuple(cut.range(cut.dim(role, size, held.mixer), rank) for role, size in held.tensor.dims)
                for rank in ranks
            }
            whole = [cut.dim(role, size, held.mixer).size for role, size in held.tensor.dims]
            for position, size in enumerate(whole):
                covered = {i for one in slices for i in range(one[position][0], sum(one[position]))}
                _require(
                    covered == set(range(size)), strategy, model, f"{held.tensor.name} has parts that no rank holds"
                )
            boxes = sum(_volume(one) for one in slices)
            _require(boxes >= _product(whole), strategy, model, f"slices of {held.tensor.name} leave gaps")
    lanes = [Lane(rank, cut, _sequences(), placement.precision) for rank in range(cut.mesh.size)]
    held_kv = sum(placement.kv_bytes(stage, lane) for stage in range(strategy.pp) for lane in lanes)
    unique = placement.unique_kv_bytes(_sequences())
    _require(held_kv >= unique, strategy, model, f"ranks hold {held_kv} bytes of KV, one copy is {unique}")


def _product(sizes: list[int]) -> int:
    total = 1
    for size in sizes:
        total *= size
    return total


def _volume(box: tuple[tuple[int, int], ...]) -> int:
    return _product([length for _, length in box])


def _sequences() -> Sequences:
    return Workload(context=(97, 1, 64, 200, 33)).sequences


def _check_attention(placement: Placement) -> None:
    """For every query head and token, some rank that attends with this head holds this token of its KV head."""
    strategy, model, cut = placement.strategy, placement.model, placement.cut
    for attention in {layer.attention for layer in model.kinds if layer.attention}:
        heads = cut.dim("attention_heads", attention.query_heads)
        group = attention.query_heads // attention.cached_heads
        pairs = set()
        for rank in range(cut.mesh.size):
            first, count = cut.range(heads, rank)
            kv_first, kv_count = cut.kv_heads(attention, rank)
            for head in range(first, first + count):
                served = kv_first <= head // group < kv_first + kv_count
                _require(served, strategy, model, f"rank {rank} attends head {head} without its KV head")
                where = (cut.mesh.index(rank, cut.sequence_axes), cut.mesh.index(rank, cut.kv_axes))
                pairs.add((head, *where))
        everything = itertools.product(range(attention.query_heads), range(cut.sequence_groups), range(cut.kv_ranks))
        missing = set(everything) - pairs
        _require(
            not missing, strategy, model, f"no rank attends (head, sequence group, token shard) {sorted(missing)[:1]}"
        )
    for context in (1, 2, 31, 32, 33, 1000):
        held = sum(cut.ownership.held(context, cut.kv_ranks, r) for r in range(cut.kv_ranks))
        _require(held == context, strategy, model, f"{held} of {context} tokens have an owner")


def _check_times(placement: Placement, machine: Machine) -> None:
    """Program, memory and time: they exist, agree between granularities, and never beat the floor."""
    strategy, model = placement.strategy, placement.model
    for phase in strategy.phases:
        lower(model, strategy, phase)
    for work in (Workload(batch=7, context=100), Workload(batch=64, context=4096, query_tokens=2)):
        folded = Evaluation(placement, machine, work).report()
        ranks = Evaluation(placement, machine, work, granularity="ranks").step()
        same = abs(folded.step.seconds / ranks.seconds - 1) < CLOSE
        _require(same, strategy, model, f"folded {folded.step.seconds} s, ranks {ranks.seconds} s at {work}")
        total = sum(folded.step.breakdown.values())
        _require(abs(total / folded.step.seconds - 1) < CLOSE, strategy, model, "the breakdown does not add up")
        kv = folded.kv
        _require(
            kv.held_bytes == round(kv.unique_bytes * kv.duplication),
            strategy,
            model,
            "held is not unique x duplication",
        )
        points = sweep(placement, machine, work.sequences.count, work.context, work.query_tokens)
        close = abs(points.seconds[0] / folded.step.seconds - 1) < CLOSE
        _require(close, strategy, model, f"a sweep gives {points.seconds[0]} s, the engine {folded.step.seconds} s")
    times = [Evaluation(placement, machine, Workload(batch=8, context=c)).step().seconds for c in (64, 4096, 2**20)]
    _require(times == sorted(times), strategy, model, f"more context made a step faster: {times}")


def check_topology(topology: Topology, gpu: Gpu) -> None:
    """Check one machine: it connects its GPUs, is the same each time, and prices every collective.

    Raises
    ------
    ConformanceError
        With the promise that is broken.
    TopologyError
        If the machine cannot be built for this GPU.
    """
    fabric, again = topology.build(gpu), topology.build(gpu)

    def require(condition: bool, promise: str) -> None:
        if not condition:
            raise ConformanceError(f"{type(topology).__name__} ({fabric.name}) with {gpu.name}: {promise}")

    require(len(fabric) == topology.gpu_count, f"it promises {topology.gpu_count} GPUs and builds {len(fabric)}")
    require(fabric.gpus == again.gpus, "it numbers its GPUs differently each time")
    require(
        sorted(fabric.graph.edges(data=True), key=str) == sorted(again.graph.edges(data=True), key=str),
        "it builds other links each time",
    )
    for a, b in itertools.islice(itertools.permutations(fabric.gpus, 2), 500):
        share = sum(route.share for route in fabric.routes(a, b))
        require(abs(share - 1) < CLOSE, f"the routes from {a} to {b} carry {share} of the traffic")
    prices = Collectives(fabric, gpu, load_fabric_constants())
    everyone = tuple(range(min(len(fabric), 16)))
    for kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "gather", "send"):
        if len(everyone) < 2:
            break
        try:
            cost = prices.cost(kind, everyone[:2] if kind == "send" else everyone)
        except InputError as error:
            raise ConformanceError(f"{fabric.name}: {kind} cannot be priced: {error}") from error
        require(cost.alpha >= 0 and cost.seconds_per_byte > 0, f"{kind} costs {cost}")
        require(cost.floor_seconds_per_byte <= cost.seconds_per_byte, f"{kind} is faster than its links")
