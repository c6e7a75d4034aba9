"""The instances that answer a stream: engines of a layout with their KV blocks and step prices, in one pool or two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from pydantic import SerializeAsAny, field_serializer, field_validator

from sim.catalog.strategies import parse_layout
from sim.errors import InputError, LayoutError
from sim.evaluate import Evaluation
from sim.machine import Machine
from sim.model import Model
from sim.noun import Noun
from sim.placement import Placement
from sim.replays.blocks import BlockPool
from sim.replays.engine import Engine, Prices
from sim.replays.lane import Lane
from sim.replays.loop import Loop, Router
from sim.replays.scheduler import Scheduler
from sim.replays.step_prices import StepPrices
from sim.serving import ServingConstants
from sim.strategy import Strategy
from sim.units import format_bytes
from sim.workload import Precision, Sequences, Workload

MOST_TOKENS = 2**34
"""A cache that never fills (windows and states only) counts as so many tokens."""


class Disaggregation(Noun):
    """Prefill on instances of their own; the layouts of the scenario then only decode."""

    prefill: SerializeAsAny[Strategy]
    """Layout of a prefill instance; its ``replicas`` are their number."""
    transfer: Literal["layerwise", "whole"] = "layerwise"
    """Whether the cache of a layer is sent while the next one computes, or all of it after the last one."""

    @field_validator("prefill", mode="before")
    @classmethod
    def _layout(cls, value: Any) -> Strategy:
        try:
            return value if isinstance(value, Strategy) else parse_layout(value)
        except LayoutError as error:
            raise LayoutError([p._replace(key=f"prefill.{p.key}".rstrip(".")) for p in error.problems]) from None

    @field_serializer("prefill")
    def _as_written(self, layout: Strategy) -> dict[str, Any]:
        return {"strategy": layout.kind, **layout.model_dump(mode="json", exclude_none=True)}


class Place(NamedTuple):
    """What instances run on."""

    model: Model
    machine: Machine
    precision: Precision
    usable_memory: float


class NoRoomError(LayoutError):
    """A layout leaves no room for a KV cache: a result, not a mistake."""


class Instance(NamedTuple):
    """One instance of a layout."""

    placement: Placement
    prices: StepPrices
    groups: int
    gpus: int
    blocks: int
    """KV blocks of each attention group."""


def tokens_of_a_group(place: Place, placement: Placement, budget: int) -> int:
    """Tokens of cache that one attention group has room for beside weights and the activations of a step.

    Raises
    ------
    NoRoomError
        If there is no room at all.
    """
    groups = placement.cut.sequence_groups
    decode = Evaluation(placement, place.machine, Workload(batch=groups, context=1024), place.usable_memory)
    memory = decode.memory()
    tokens = memory.max_context
    if "prefill" in placement.strategy.phases and tokens:
        work = Workload(phase="prefill", batch=groups, context=budget)
        prompt = Evaluation(placement, place.machine, work, place.usable_memory)
        more = max(kind.activations(prompt.lane(kind.ranks[0], prompt.replica)) for kind in prompt.kinds)
        more += prompt.buffers.bytes(prompt.lane(0, prompt.replica))
        extra = more - memory.activations_bytes - memory.communication_bytes
        if memory.kv_bytes:
            tokens -= int(max(0, extra) / (memory.kv_bytes / 1024))
    if tokens < 1:
        need, have = memory.total_bytes - memory.kv_bytes, memory.capacity_bytes
        raise NoRoomError(
            f"{placement.strategy.label}: needs {format_bytes(need)} of {format_bytes(have)} without a cache"
        )
    return min(tokens, MOST_TOKENS)


def instance(place: Place, layout: Strategy, rules: Scheduler, longest: int, phase: str = "decode") -> Instance:
    """One instance of a layout, its replicas left out.

    Raises
    ------
    NoRoomError
        If weights leave no room for a cache.
    """
    single = layout.model_copy(update={"replicas": 1})
    placement = Placement(place.model, single, place.precision)
    tokens = tokens_of_a_group(place, placement, rules.max_tokens)
    prices = StepPrices(placement, place.machine, longest, rules.sizes(), rules.speculation)
    gpus = placement.cut.mesh.size * single.pp
    return Instance(placement, prices, placement.cut.sequence_groups, gpus, max(1, tokens // rules.block))


def entries(rules: Scheduler, grain: int) -> int:
    """Blocks of a prefix entry of ``grain`` tokens; 0 where prefixes are not kept.

    Raises
    ------
    InputError
        If entries are not whole blocks.
    """
    if not grain or not rules.prefix_cache:
        return 0
    if grain % rules.block:
        raise InputError(f"blocks of {rules.block} tokens do not divide prefixes of {grain}; choose a divisor")
    return grain // rules.block


def engine(
    prices: Prices,
    rules: Scheduler,
    blocks: int,
    groups: int = 1,
    gpus: int = 1,
    grain: int = 0,
    sends: bool = False,
    stepwise: bool = False,
) -> Engine:
    """An engine with empty groups of ``blocks`` KV blocks each."""
    unit = entries(rules, grain)
    lanes = [Lane(rules, BlockPool(blocks, unit), grain, growing=not sends) for _ in range(groups)]
    return Engine(rules, lanes, prices, gpus, sends, stepwise)


class KvTransfer:
    """Sending the cache of a request between two instances: every pair of GPUs sends its share over its own links."""

    def __init__(self, place: Place, source: Instance, target: Instance, layerwise: bool):
        self.placement = source.placement
        self.layers = place.model.layers if layerwise else 1
        self.streams = max(1, min(source.gpus // source.groups, target.gpus // target.groups))
        first = min(target.gpus, len(place.machine.collectives.fabric) - 1)
        self.cost = place.machine.collectives.cost("send", (first, 0)) if first else None
        self.sent = 0.0
        """Bytes of all transfers so far."""
        self._known: dict[int, tuple[int, float]] = {}

    def seconds(self, tokens: int) -> float:
        """Of one transfer that has its links for itself."""
        known = self._known.get(tokens)
        if known is None:
            size = self.placement.unique_kv_bytes(Sequences.even(1, tokens))
            known = self._known[tokens] = size, self.cost.seconds(size / self.streams) if self.cost else 0.0
        self.sent += known[0]
        return known[1]


class Fleet(NamedTuple):
    """A loop ready to run, and what it is made of."""

    loop: Loop
    gpus: int
    decode: Instance
    prefill: Instance | None


def fleet(
    place: Place,
    layout: Strategy,
    rules: Scheduler,
    longest: int,
    grain: int = 0,
    router: Router = "least_loaded",
    disaggregation: Disaggregation | None = None,
    stepwise: bool = False,
    check: bool = False,
) -> Fleet:
    """All instances of a layout, and of its prefill pool.

    Raises
    ------
    NoRoomError
        If an instance has no room for a cache.
    """
    decode = instance(place, layout, rules, longest)
    prefill = instance(place, disaggregation.prefill, rules, longest) if disaggregation else None
    workers = disaggregation.prefill.replicas if disaggregation else 0
    layerwise = not disaggregation or disaggregation.transfer == "layerwise"
    return fleet_of(place, decode, layout.replicas, rules, grain, router, prefill, workers, layerwise, stepwise, check)


def fleet_of(
    place: Place,
    decode: Instance,
    count: int,
    rules: Scheduler,
    grain: int = 0,
    router: Router = "least_loaded",
    prefill: Instance | None = None,
    workers: int = 0,
    layerwise: bool = True,
    stepwise: bool = False,
    check: bool = False,
) -> Fleet:
    """``count`` instances that decode, and ``workers`` that only prefill."""
    engines = [
        engine(decode.prices, rules, decode.blocks, decode.groups, decode.gpus, grain, stepwise=stepwise)
        for _ in range(count)
    ]
    gpus = decode.gpus * count
    fronts: list[Engine] = []
    transfer = None
    if prefill:
        fronts = [
            engine(prefill.prices, rules, prefill.blocks, prefill.groups, prefill.gpus, grain, True, stepwise)
            for _ in range(workers)
        ]
        gpus += prefill.gpus * workers
        transfer = KvTransfer(place, prefill, decode, layerwise)
    loop = Loop(engines, fronts, router, transfer, front_end(place.machine.serving), check)
    return Fleet(loop, gpus, decode, prefill)


def front_end(constants: ServingConstants) -> Callable[[int], float]:
    """Seconds of HTTP and tokenizer before a request of so many tokens reaches the scheduler."""
    fixed, each = constants.front_end, constants.front_end_per_token
    return lambda tokens: fixed + each * tokens
