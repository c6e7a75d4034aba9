"""One weight of a model, by the roles of its dimensions (see ``sim.model``)."""

from __future__ import annotations

import math
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

Positive = Annotated[int, Field(ge=1, le=10**9)]
Part = Literal["attention", "dense_ffn", "routed_experts", "shared_experts", "embeddings"]


class TensorShape(NamedTuple):
    """One weight: dimensions as (role, size), the memory part it counts in, and if it may be quantised."""

    name: str
    dims: tuple[tuple[str, int], ...]
    part: Part
    quantised: bool = True

    @property
    def elements(self) -> int:
        """Number of elements of the whole tensor."""
        return math.prod(size for _, size in self.dims)
