"""Names that users may extend: built-in classes by lazy import, others through entry points.

A built-in name never touches the entry points (looking them up costs about 30 ms), so no plug-in can replace
or break one. A plug-in that cannot be loaded warns and the others go on.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

from sim.errors import InputError, Problem
from sim.explain import show, suggest

T = TypeVar("T")


class PluginWarning(UserWarning):
    """An installed plug-in cannot be used and is left out."""


@lru_cache(maxsize=16)
def _entries(group: str, path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    """Entry points of a group; ``path`` is only the key under which the slow look-up is remembered."""
    return tuple(sorted(entry_points(group=group), key=lambda entry: (entry.name, entry.value)))


def _origin(entry: EntryPoint) -> str:
    distribution = f" of {entry.dist.name}" if entry.dist else ""
    return f"{entry.name!r}{distribution} ({entry.value})"


@dataclass(frozen=True)
class Registry(Generic[T]):
    """Classes by name.

    Parameters
    ----------
    noun
        What an error calls one of them, for example ``strategy``; also the key of its problems.
    group
        Entry-point group of third parties. The entry point's name is the class's ``kind``.
    built_ins
        ``module:class`` by name.
    base
        What every class must derive from.
    error
        Raised for a name that is not known.
    """

    noun: str
    group: str
    built_ins: Mapping[str, str]
    base: type[T]
    error: type[InputError]

    def names(self) -> list[str]:
        """Return every name that ``load`` accepts: built-ins first, then plug-ins, each sorted.

        Plug-ins that are broken or claim a taken name are left out with a ``PluginWarning``.
        """
        found: dict[str, None] = dict.fromkeys(sorted(self.built_ins))
        for entry in self._plug_ins():
            problem = "the name is taken" if entry.name in found else self._fault(entry)
            if problem:
                text = f"{self.noun} plug-in {_origin(entry)} is left out: {problem}"
                warnings.warn(text, PluginWarning, stacklevel=2)
            else:
                found[entry.name] = None
        return list(found)

    def __contains__(self, name: str) -> bool:
        """Whether something of this name is built in or installed, be it broken or not."""
        return name in self.built_ins or any(entry.name == name for entry in self._plug_ins())

    def load(self, name: str) -> type[T]:
        """Return the class called ``name``.

        Raises
        ------
        InputError
            Of the type ``error``: the name is unknown (lists what is installed), or its plug-in is broken.
        """
        if name in self.built_ins:
            module, _, attribute = self.built_ins[name].partition(":")
            return self._checked(getattr(import_module(module), attribute), name)
        for entry in self._plug_ins():
            if entry.name == name:
                if fault := self._fault(entry):
                    raise self.error(Problem(f"plug-in {_origin(entry)} cannot be used: {fault}", self.noun))
                return self._checked(entry.load(), name)
        known = self.names()
        text = f"{show(name)} is not installed; {suggest(name, known)}known: {', '.join(known)}"
        raise self.error(Problem(text, self.noun))

    def _plug_ins(self) -> tuple[EntryPoint, ...]:
        return _entries(self.group, tuple(sys.path))

    def _fault(self, entry: EntryPoint) -> str:
        """Say why a plug-in cannot be used; empty if it can."""
        try:
            self._checked(entry.load(), entry.name)
        except Exception as error:  # whatever a stranger's module raises on import
            return f"{type(error).__name__}: {error}"
        return ""

    def _checked(self, found: Any, name: str) -> type[T]:
        if not (isinstance(found, type) and issubclass(found, self.base)):
            raise TypeError(f"{found!r} does not derive from {self.base.__module__}.{self.base.__qualname__}")
        kind = getattr(found, "kind", None)
        if kind != name:
            raise TypeError(f"its kind is {kind!r}, which is not the name of its entry point, {name!r}")
        return found
