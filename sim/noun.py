"""The base of every noun: a frozen pydantic model that refuses keys it does not know."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Noun(BaseModel):
    """Immutable, hashable, strict about unknown keys and about NaN or infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)
