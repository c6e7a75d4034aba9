"""Options by their long names, from a command or from YAML, become ``Settings``; every problem is reported at once."""

from __future__ import annotations

from typing import Any

from sim.errors import InputError, Problem
from sim.explain import read, show
from sim.launch.settings import EngineKey, Settings
from sim.launch.tables import Flag, FlagTable, flag_table, words
from sim.launch.values import READERS, read_json

MOST_IGNORED = 200


def dashed(name: str) -> str:
    """``--tensor_parallel_size`` as ``--tensor-parallel-size``; what follows a dot keeps its underscores."""
    head, dot, tail = name.partition(".")
    return head.replace("_", "-") + dot + tail


class Gathered:
    """Fields of ``Settings`` as they are met, and what is wrong with them.

    Parameters
    ----------
    engine
        Whose table of flags applies.
    """

    def __init__(self, engine: EngineKey):
        self.engine = engine
        self.table: FlagTable = flag_table(engine)
        self.fields: dict[str, Any] = {}
        self.problems: list[Problem] = []
        self.ignored: list[str] = []
        self.file: str | None = None
        """A YAML file of further options that the command names."""
        self.by_name: dict[str, Flag] = {dashed(name): flag for flag in self.table.flags for name in flag.names}
        self.known = {dashed(n): known for known in (*self.table.neutral, *self.table.switches) for n in known.names}

    def problem(self, message: str, key: str) -> None:
        """Note what is wrong with an option."""
        self.problems.append(Problem(message, key))

    def ignore(self, text: str) -> None:
        """List what is not used."""
        if text not in self.ignored and len(self.ignored) < MOST_IGNORED:
            self.ignored.append(text)

    def set(self, flag: Flag, value: Any, written: str) -> None:
        """Set what a flag sets; of a flag written twice the last counts, as in the engines."""
        if isinstance(value, (list, dict)) and flag.type != "json":
            self.problem(f"must be one value, not {show(value)}", written)
            return
        try:
            if flag.type == "json":
                self.json(flag, value if isinstance(value, dict) else read_json(str(value)), written)
                return
            found = READERS[flag.type](value if flag.type == "switch" else _as_text(value))
        except InputError as error:
            self.problems += [p._replace(key=written) for p in error.problems]
            return
        self.field(flag.sets, found, written)

    def field(self, name: str, value: Any, written: str) -> None:
        """Set one field, or leave it to the engine where the value is ``None``."""
        if value is None:
            self.fields.pop(name, None)
            return
        if name == "config_file":
            self.file = value
            return
        try:
            read(Settings, {"engine": self.engine, name: value})
        except InputError as error:
            self.problems += [p._replace(key=written) for p in error.problems]
            return
        self.fields[name] = value

    def json(self, flag: Flag, found: dict[str, Any], written: str) -> None:
        """Set what the keys of an object set; other keys are judged as unknown flags are."""
        keys = self.table.json_keys.get(flag.sets, {})
        for key, value in found.items():
            if key in keys:
                self.field(keys[key], value, f"{written}.{key}")
            else:
                self.ignore(f"{written}.{key}")

    def unknown(self, name: str, written: str) -> None:
        """List an unknown option, or refuse it: the words of its name decide."""
        if word := words().touching(name):
            text = f"is not understood and may touch layout or memory ({word!r}); leave it out if it does not"
            self.problem(text, written)
        else:
            self.ignore(written)

    def other(self, name: str, written: str) -> bool:
        """Note an option of which the table knows that it sets nothing; false if the table does not have it."""
        known = self.known.get(name) or self.known.get(name.partition(".")[0])
        if known is None:
            return False
        if known.kind == "refuse":
            self.problem(known.why, written)
        else:
            self.ignore(written)
        return True

    def settings(self, **more: Any) -> Settings:
        """The settings. Raises ``InputError`` with every problem met."""
        if self.problems:
            raise InputError(self.problems)
        return read(Settings, {"engine": self.engine, **self.fields, "ignored": tuple(self.ignored), **more})


def _as_text(value: Any) -> str:
    return "" if value is None else str(value)


def from_mapping(gathered: Gathered, data: dict[str, Any], prefix: str = "") -> None:
    """Read YAML whose keys are long names of flags, or the dotted keys of the engine's options."""
    table = gathered.table
    for key, value in data.items():
        full = f"{prefix}{key}"
        flag = gathered.by_name.get(dashed(f"--{key}")) if not prefix else None
        if full in table.keys:
            sets = table.keys[full]
            flag = next((f for f in table.flags if f.sets == sets), Flag(names=(full,), sets=sets, type="text"))
            if sets in _NUMBERS:
                flag = Flag(names=(full,), sets=sets, type="count")
            gathered.set(flag, value, full)
        elif flag and flag.sets not in ("config_file",):
            gathered.set(flag, value, full)
        elif full in table.neutral_keys or (not prefix and gathered.other(dashed(f"--{key}"), full)):
            gathered.ignore(full)
        elif isinstance(value, dict) and any(k.startswith(f"{full}.") for k in (*table.keys, *table.neutral_keys)):
            from_mapping(gathered, value, f"{full}.")
        else:
            gathered.unknown(full, full)


_NUMBERS = ("block_size", "max_tokens", "interleave", "draft_tokens")
