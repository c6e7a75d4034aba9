"""Every layout of a model on a machine: all degrees of the strategies that are asked for, as powers of two."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from sim.catalog.strategies import load_strategy
from sim.model import Model
from sim.strategy import Strategy
from sim.workload import Phase

SHARED = tuple(Strategy.model_fields)


def degrees_of(kind: str) -> list[str]:
    """The degrees of a strategy: its own whole numbers of 1 or more without a default, or with the default 1."""
    return [
        name
        for name, field in load_strategy(kind).model_fields.items()
        if name not in SHARED
        and field.annotation is int
        and (field.is_required() or field.default == 1)
        and any(getattr(rule, "ge", None) == 1 for rule in field.metadata)
    ]


def layouts(model: Model, kinds: tuple[str, ...], gpus: int, stages: int, phase: Phase) -> Iterator[Strategy]:
    """Every layout of one instance on at most ``gpus`` GPUs. Raises ``LayoutError`` for an unknown kind."""
    powers = [2**n for n in range(gpus.bit_length())]
    for kind in kinds:
        names, made = degrees_of(kind), load_strategy(kind)
        for pp, *sizes in product([p for p in powers if p <= stages], *[powers] * len(names)):
            layout = made(pp=pp, **dict(zip(names, sizes, strict=True)))
            if not layout.check(model, phase) and layout.gpus(model) <= gpus:
                yield layout
