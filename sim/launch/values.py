"""Values of flags as engines read them."""

from __future__ import annotations

import json
import re
from typing import Any

from sim.errors import InputError
from sim.explain import show

_COUNT = re.compile(r"(\d{1,18})(?:\.(\d{1,6}))?([kKmMgG])?(i?)")
_SCALE = {"k": 10**3, "K": 2**10, "m": 10**6, "M": 2**20, "g": 10**9, "G": 2**30}
OPEN = ("auto", "-1", "none", "null", "default", "")
"""Values by which a flag leaves the choice to the engine."""


def read_count(text: str) -> int | None:
    """A whole number; ``32k`` is 32,000 and ``32K`` 32,768, as vLLM reads them. ``None`` where the engine chooses."""
    if text.strip().lower() in OPEN:
        return None
    match = _COUNT.fullmatch(text.strip())
    if match is None:
        raise InputError(f"must be a whole number such as 8 or 32k, not {show(text)}{_variable(text)}")
    whole, part, unit, binary = match.groups()
    scale = 2 ** {"k": 10, "m": 20, "g": 30}[unit.lower()] if unit and binary else _SCALE.get(unit, 1)
    value = int(whole) * scale + (int(part) * scale // 10 ** len(part) if part else 0)
    if part and scale == 1:
        raise InputError(f"must be a whole number, not {show(text)}")
    return value


def read_fraction(text: str) -> float | None:
    """A fraction of the memory. ``None`` where the engine chooses."""
    if text.strip().lower() in OPEN:
        return None
    try:
        value = float(text)
    except ValueError:
        raise InputError(f"must be a fraction such as 0.9, not {show(text)}{_variable(text)}") from None
    if not 0 < value <= 1:
        raise InputError(f"must be more than 0 and at most 1, not {show(text)}")
    return value


def read_text(text: str) -> str | None:
    """Text; a shell variable has no value here."""
    if text.strip().lower() in OPEN:
        return None
    if "$" in text or "`" in text:
        raise InputError(f"is {show(text)}{_variable(text)}")
    return text


def read_switch(value: Any) -> bool:
    """True or false, as YAML or text."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "1", "yes", "on"):
        return True
    if value is None or (isinstance(value, str) and value.lower() in ("false", "0", "no", "off", "")):
        return False
    raise InputError(f"must be true or false, not {show(value)}")


def read_json(text: str) -> dict[str, Any]:
    """A JSON object, within what one flag may hold."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise InputError(f'must be JSON such as {{"method": "mtp"}} in quotes, not {show(text)}') from None
    if not isinstance(found, dict):
        raise InputError(f"must be a JSON object, not {show(found)}")
    return found


def _variable(text: str) -> str:
    return "; write out the value of the shell variable" if "$" in text or "`" in text else ""


READERS = {"count": read_count, "fraction": read_fraction, "text": read_text, "switch": read_switch, "json": read_json}
