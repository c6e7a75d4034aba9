"""The base of every noun: a frozen pydantic model that refuses keys it does not know."""

from __future__ import annotations

from collections.abc import Hashable
from functools import cached_property
from typing import Any, Self

from pydantic import BaseModel, ConfigDict


def _hashable(value: Any) -> Hashable:
    """Mappings and lists as tuples; everything else as it is."""
    if isinstance(value, dict):
        return tuple((key, _hashable(item)) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return tuple(map(_hashable, value))
    return value  # type: ignore[no-any-return]


class Noun(BaseModel):
    """Immutable, strict about unknown keys and about NaN or infinity; its hash is computed once."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True, populate_by_name=True
    )

    @cached_property
    def _hash(self) -> int:
        return hash((type(self), *(_hashable(getattr(self, name)) for name in type(self).model_fields)))

    def __hash__(self) -> int:
        return self._hash

    def changed(self, **fields: Any) -> Self:
        """A copy with other fields: checked again, and without what was computed from the old ones."""
        return type(self)(**{name: getattr(self, name) for name in type(self).model_fields} | fields)

    def __getstate__(self) -> dict[Any, Any]:
        """Without what was computed from the fields: hashes of text differ from process to process."""
        state = super().__getstate__()
        fields = type(self).model_fields
        return {**state, "__dict__": {k: v for k, v in state["__dict__"].items() if k in fields}}
