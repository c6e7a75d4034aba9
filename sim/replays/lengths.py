"""Distributions of lengths in tokens."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, model_validator

from sim.explain import show
from sim.noun import Noun
from sim.units import Count

Array = np.ndarray[Any, np.dtype[Any]]
Limit = Annotated[Count, Field(le=2**30)]


class Length(Noun):
    """Tokens of prompts or answers: one number, or a distribution of which each request draws.

    ``{uniform: [low, high]}``, ``{lognormal: [median, sigma]}`` (sigma of the natural logarithm), or
    ``{values: [...]}``, drawn with equal chances; ``most`` cuts off what is longer.
    """

    constant: Limit | None = None
    uniform: tuple[Limit, Limit] | None = None
    lognormal: tuple[Annotated[float, Field(ge=1, le=2**30)], Annotated[float, Field(ge=0, le=10)]] | None = None
    values: Annotated[tuple[Limit, ...], Field(min_length=1)] | None = None
    most: Limit | None = None

    @model_validator(mode="before")
    @classmethod
    def _number(cls, value: Any) -> Any:
        return {"constant": value} if isinstance(value, (int, str)) and not isinstance(value, bool) else value

    @model_validator(mode="after")
    def _one(self) -> Length:
        kinds = ("constant", "uniform", "lognormal", "values")
        said = [kind for kind in kinds if getattr(self, kind) is not None]
        if len(said) != 1:
            raise ValueError(f"must be a number of tokens or one of {', '.join(kinds[1:])}, not {len(said)} of them")
        if self.uniform and self.uniform[0] > self.uniform[1]:
            raise ValueError(f"uniform goes from low to high, not {show(list(self.uniform))}")
        return self

    def draw(self, random: np.random.Generator, count: int) -> Array:
        """``count`` lengths as int64, each 1 or more."""
        if self.constant is not None:
            found = np.full(count, self.constant, dtype=np.int64)
        elif self.uniform:
            found = random.integers(self.uniform[0], self.uniform[1] + 1, count)
        elif self.lognormal:
            median, sigma = self.lognormal
            found = np.rint(median * np.exp(sigma * random.standard_normal(count))).astype(np.int64)
        else:
            found = random.choice(np.array(self.values, dtype=np.int64), count)
        return np.clip(found, 1, self.most or 2**30)

    @property
    def kind(self) -> Literal["constant", "drawn"]:
        """Whether all requests have one length."""
        return "constant" if self.constant is not None else "drawn"
