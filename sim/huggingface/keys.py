"""Typed look-ups in a ``config.json`` that collect everything that is wrong, not only the first."""

from __future__ import annotations

from typing import Any

from sim.errors import Problem
from sim.explain import show

UNKNOWN = 0
"""Stands for a number that is missing or wrong; the problem is already on the list."""

LARGEST = 10**9


def is_whole(value: Any, least: int, most: int = LARGEST) -> bool:
    """Tell if a value is an integer (and no bool) between two bounds."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


class Keys:
    """The keys of one JSON object, looked up by any of their spellings; ``null`` counts as absent.

    ``problems`` grows with everything found wrong, named with ``prefix`` in front of keys of a nested object.
    """

    def __init__(self, values: dict[str, Any], problems: list[Problem], prefix: str = ""):
        self.values = values
        self.problems = problems
        self.prefix = prefix

    def problem(self, key: str, message: str) -> None:
        """Note one thing that is wrong."""
        self.problems.append(Problem(message, key=self.prefix + key))

    def find(self, *names: str) -> tuple[str, Any]:
        """The first spelling that is present, and its value; ``("", None)`` if none is."""
        for name in names:
            if self.values.get(name) is not None:
                return name, self.values[name]
        return "", None

    def has(self, *names: str) -> bool:
        """Tell if any of the spellings is present."""
        return bool(self.find(*names)[0])

    def missing(self, purpose: str, *names: str) -> None:
        """Note a key that is absent, what it is needed for, and its other spellings."""
        others = f"; also read as {', '.join(names[1:])}" if names[1:] else ""
        self.problem(names[0], f"is missing: needed for {purpose}{others}")

    def optional(self, *names: str, least: int = 1, most: int = LARGEST) -> int | None:
        """A whole number, ``None`` when absent, ``UNKNOWN`` when wrong (and noted)."""
        name, value = self.find(*names)
        if not name:
            return None
        if is_whole(value, least, most):
            return int(value)
        self.problem(name, f"must be a whole number from {least:,} to {most:,}, is {show(value)}")
        return UNKNOWN

    def number(self, purpose: str, *names: str, least: int = 1, most: int = LARGEST) -> int:
        """A whole number that must be there; ``UNKNOWN`` when missing or wrong (and noted)."""
        value = self.optional(*names, least=least, most=most)
        if value is None:
            self.missing(purpose, *names)
            return UNKNOWN
        return value

    def flag(self, *names: str, default: bool) -> bool:
        """True or false, ``default`` when absent or wrong (and noted)."""
        name, value = self.find(*names)
        if not name:
            return default
        if isinstance(value, bool):
            return value
        self.problem(name, f"must be true or false, is {show(value)}")
        return default

    def text(self, *names: str) -> str:
        """A string, empty when absent or wrong (and noted)."""
        name, value = self.find(*names)
        if not name:
            return ""
        if isinstance(value, str):
            return value
        self.problem(name, f"must be a string, is {show(value)}")
        return ""

    def table(self, name: str) -> dict[str, Any] | None:
        """A JSON object, ``None`` when absent or wrong (and noted)."""
        value = self.values.get(name)
        if value is None or isinstance(value, dict):
            return value
        self.problem(name, f"must be an object, is {show(value)}")
        return None

    def per_layer(self, name: str, layers: int, words: dict[Any, bool], spare: int = 0) -> list[bool] | None:
        """A list with one entry per layer, each turned into a bool by ``words``.

        Up to ``spare`` more entries are allowed and ignored: multi-token-prediction layers. ``None`` when
        absent or wrong (and noted).
        """
        value = self.values.get(name)
        if value is None or not layers:
            return None
        choices = " or ".join(map(repr, words))
        if not isinstance(value, list) or not layers <= len(value) <= layers + spare:
            size = f"a list of {len(value)}" if isinstance(value, list) else show(value)
            self.problem(name, f"must be a list of {layers} entries, one per layer, is {size}")
            return None
        bad = [e for e in value if isinstance(e, (bool, list, dict)) or e not in words]
        if bad:
            self.problem(name, f"each entry must be {choices}, one is {show(bad[0])}")
            return None
        return [words[entry] for entry in value[:layers]]

    def indices(self, name: str, layers: int) -> set[int] | None:
        """Layer numbers from 0, a list or a string with commas; ``None`` when absent or wrong (and noted)."""
        value = self.values.get(name)
        if value is None or not layers:
            return None
        entries = value
        if isinstance(value, str):
            parts = [part.strip() for part in value.split(",") if part.strip()]
            entries = [int(p) if p.isascii() and p.isdigit() and len(p) < 10 else p for p in parts]
        if isinstance(entries, list) and all(is_whole(e, 0) for e in entries):
            return {int(e) for e in entries}
        self.problem(name, f"must list layer numbers from 0, is {show(value)}")
        return None
