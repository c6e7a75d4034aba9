"""Names that users may extend: built-in classes by lazy import, others through entry points.

A built-in name never touches the entry points (looking them up costs about 30 ms), so no plug-in can replace
or break one. A plug-in that cannot be loaded warns and the others go on; one that fails later is named by
``failure_of_plug_in``.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from traceback import walk_tb
from types import FrameType
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ValidationError

from sim.errors import InputError, Problem
from sim.explain import explain, show, suggest

T = TypeVar("T")
_LONGEST = 300


class PluginWarning(UserWarning):
    """An installed plug-in cannot be used and is left out."""


@lru_cache(maxsize=16)
def _entries(group: str, path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    """Entry points of a group; ``path`` is only the key under which the slow look-up is remembered."""
    try:
        return tuple(sorted(entry_points(group=group), key=lambda entry: (entry.name, entry.value)))
    except Exception as error:  # whatever the metadata of a stranger's package makes of the reader
        warnings.warn(f"no plug-in can be used: {_short(error)}", PluginWarning, stacklevel=2)
        return ()


_IN_USE: dict[type, str] = {}
"""Every class that a plug-in has lent us, and what to call that plug-in."""


def _short(error: BaseException) -> str:
    """Type and text of a stranger's error, on one line."""
    try:
        text = " ".join(str(error).split())
        if isinstance(error, ValidationError):
            key = ".".join(map(str, error.errors()[0]["loc"]))
            text = f"{error.title} {key} {explain(error, BaseModel, None)[0].message}"
    except Exception:  # an error whose text is an error
        text = ""
    text = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def failure_of_plug_in(error: BaseException) -> str:
    """Say which plug-in was at work when ``error`` was raised, where, and what happened; empty if none was."""
    lines = dict(walk_tb(error.__traceback__))
    frames = list(lines)[::-1]
    for frame in frames if _IN_USE else ():
        cls = _plug_in_at_work(frame)
        if cls:
            inside = next((f for f in frames if f.f_globals.get("__name__") == cls.__module__), frames[0])
            place = f"{Path(inside.f_code.co_filename).name}, line {lines[inside]}"
            return f"{_IN_USE[cls]} failed: {_short(error)} ({place})"
    return ""


def _plug_in_at_work(frame: FrameType) -> type | None:
    """The plug-in's class that a frame runs on: a variable of it, or of what a variable holds directly."""
    values = list(frame.f_locals.values())
    for value in values + [inner for v in values for inner in getattr(v, "__dict__", {}).values()]:
        for cls in value.__mro__ if isinstance(value, type) else type(value).__mro__:
            if cls in _IN_USE:
                return cls
    return None


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
                cls = self._checked(entry.load(), name)
                _IN_USE[cls] = f"{self.noun} plug-in {_origin(entry)}"
                return cls
        known = self.names()
        text = f"{show(name)} is not installed; {suggest(name, known)}known: {', '.join(known)}"
        raise self.error(Problem(text, self.noun))

    def _plug_ins(self) -> tuple[EntryPoint, ...]:
        return _entries(self.group, tuple(sys.path))

    def _fault(self, entry: EntryPoint) -> str:
        """Say why a plug-in cannot be used; empty if it can."""
        try:
            self._checked(entry.load(), entry.name)
        except (Exception, SystemExit) as error:  # whatever a stranger's module raises on import
            return _short(error)
        return ""

    def _checked(self, found: Any, name: str) -> type[T]:
        if not (isinstance(found, type) and issubclass(found, self.base)):
            raise TypeError(f"{found!r} does not derive from {self.base.__module__}.{self.base.__qualname__}")
        kind = getattr(found, "kind", None)
        if kind != name:
            raise TypeError(f"its kind is {kind!r}, which is not the name of its entry point, {name!r}")
        return found
