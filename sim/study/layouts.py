"""Every layout of a model up to a number of GPUs, by the strategies' own rules of validity."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from sim.catalog.strategies import load_strategy, strategy_names
from sim.errors import InputError
from sim.explain import one_of, show, suggest
from sim.model import Model
from sim.noun import Noun
from sim.strategy import Strategy
from sim.units import Count
from sim.workload import Phase


def _known_strategies(value: Any) -> Any:
    known = strategy_names()
    names = value if isinstance(value, (list, tuple)) else [value]
    for name in names:
        if name not in known:
            raise ValueError(f"{show(name)} is not a strategy; {suggest(name, known)}choose {one_of(known)}")
    return tuple(names)


class AllLayouts(Noun):
    """Which layouts to search.

    Degrees are powers of two unless ``degrees`` lists others. Strategies and degrees that cannot exist for the model
    are left out; two strategies that do the same at some degrees (Helix with one KVP rank is TP) are both there.
    """

    up_to: Annotated[Count, Field(le=65536)]
    """GPUs of a layout at most."""
    at_least: Count = 1
    strategies: Annotated[tuple[str, ...], BeforeValidator(_known_strategies)] = ()
    """Names of strategies; left out, every one that is installed."""
    degrees: dict[str, tuple[Count, ...]] = Field(default_factory=dict)
    """The only values of a degree, for strategies that have it: ``{pp: [1, 2, 4]}``; one replica unless said."""
    options: dict[str, dict[str, tuple[Any, ...]]] = Field(default_factory=dict)
    """Other fields to try, by strategy: ``{helix: {hop_b: [true, false]}}``."""

    def find(self, model: Model, phase: Phase = "decode") -> Iterator[Strategy]:
        """Every valid layout, in the order of strategies, degrees and options.

        Raises
        ------
        InputError
            If an option or a degree names a field that no strategy searched has.
        """
        kinds = {name: load_strategy(name) for name in self.strategies or strategy_names()}
        for name in self.degrees:
            if not any(name in cls.degree_fields() for cls in kinds.values()):
                known = sorted({d for cls in kinds.values() for d in cls.degree_fields()})
                raise InputError(
                    f"all_layouts.degrees: no strategy has the degree {show(name)}; choose {one_of(known)}"
                )
        for kind, fields in self.options.items():
            for field in fields:
                if kind not in kinds or field not in kinds[kind].model_fields:
                    raise InputError(f"all_layouts.options.{kind}.{field}: is not a field of a strategy searched")
        for kind, cls in kinds.items():
            if phase in cls.phases:
                yield from self._of(cls, self.options.get(kind, {}), model, phase)

    def _of(self, cls: type[Strategy], options: Mapping[str, Any], model: Model, phase: Phase) -> Iterator[Strategy]:
        names = [name for name, default in cls.degree_fields().items() if default is not None and name not in options]
        values = [self._values(name, model) for name in names]
        for degrees in itertools.product(*values):
            layout = _valid(cls, dict(zip(names, degrees, strict=True)), model, phase, self.up_to)
            if layout is None or layout.gpus(model) < self.at_least:
                continue
            for chosen in itertools.product(*options.values()):
                with_options = dict(zip(names, degrees, strict=True)) | dict(zip(options, chosen, strict=True))
                made = _valid(cls, with_options, model, phase, self.up_to) if options else layout
                if made:
                    yield made

    def _values(self, name: str, model: Model) -> tuple[int, ...]:
        if name in self.degrees:
            return self.degrees[name]
        if name == "replicas":
            return (1,)
        most = min(self.up_to, model.layers) if name == "pp" else self.up_to
        return tuple(2**i for i in range(most.bit_length()))


def _valid(cls: type[Strategy], fields: dict[str, Any], model: Model, phase: Phase, most: int) -> Strategy | None:
    layout = cls(**fields)
    if layout.reasons(model) or layout.gpus(model) > most or layout.check(model, phase):
        return None
    return layout
