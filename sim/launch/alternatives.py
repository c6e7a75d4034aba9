"""Other layouts that the same engine can run on the same GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sim.errors import InputError
from sim.launch.layouts import layout_of
from sim.launch.rules import broken_rules
from sim.launch.settings import Settings
from sim.model import Model
from sim.strategy import Strategy, has_experts

MOST_RANKS = 256
_DEGREES: dict[str, Any] = {
    "tp": 1, "dp": 1, "dcp": 1, "cp": 1, "cp_type": None, "ep": None, "moe_tp": None, "dense_tp": None,
    "expert_parallel": False, "attention_dp": False, "all_to_all": None, "deepep": False, "redundant_experts": 0,
    "interleave": None, "two_batch_overlap": False, "expert_placement": None, "local_vocabulary": False,
}  # fmt: skip


def alternatives(settings: Settings, model: Model, weights: str, ranks: int) -> Iterator[tuple[Settings, Strategy]]:
    """Yield launches of ``ranks`` ranks a stage that exist for the model and break no rule of the engine."""
    if ranks > MOST_RANKS:
        return
    seen: set[Strategy] = set()
    for degrees in _CHOICES[settings.engine](ranks, has_experts(model)):
        changed = settings.model_copy(update={**_DEGREES, **degrees})
        try:
            layout = layout_of(changed, model)
        except InputError:
            continue
        shape_only = changed.model_copy(update={"max_length": None})  # a length that is refused is so everywhere
        refused = any(rule.effect == "refuses" for rule in broken_rules(shape_only, model, weights))
        if layout in seen or refused or layout.check(model, "decode"):
            continue
        seen.add(layout)
        yield changed, layout


def _divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]


def _vllm(ranks: int, moe: bool) -> Iterator[dict[str, Any]]:
    for tp in _divisors(ranks):
        for expert_parallel in (False, True)[: 1 + moe]:
            yield {"tp": tp, "dp": ranks // tp, "expert_parallel": expert_parallel}
            if tp == ranks:
                yield from ({"tp": tp, "dcp": d, "expert_parallel": expert_parallel} for d in _divisors(tp)[1:])


def _sglang(ranks: int, moe: bool) -> Iterator[dict[str, Any]]:
    for ep in (1, ranks)[: 1 + moe]:
        yield {"tp": ranks, "ep": ep}
        for degree in _divisors(ranks)[1:]:
            yield {"tp": ranks, "dp": degree, "attention_dp": True, "ep": ep}
            yield {"tp": ranks, "dcp": degree, "ep": ep}


def _trtllm(ranks: int, moe: bool) -> Iterator[dict[str, Any]]:
    for ep in (1, ranks)[: 1 + moe]:
        yield {"tp": ranks, "ep": ep}
        yield {"tp": ranks, "ep": ep, "attention_dp": True}
        for cp in _divisors(ranks)[1:]:
            yield {"tp": ranks // cp, "cp": cp, "cp_type": "HELIX", "ep": ep}


_CHOICES = {"vllm": _vllm, "sglang": _sglang, "trtllm": _trtllm}
