"""Say in our own words what is wrong with a value: which key, which rule, which value, what would work.

pydantic finds the problems; its sentences never reach a user. A problem's key is the dotted path of what the
user wrote (``layouts.1.kvp``), without the branches of unions that pydantic puts in between.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from sim.errors import InputError, Problem

M = TypeVar("M", bound=BaseModel)
LONGEST = 60


def show(value: Any) -> str:
    """Write a value as an error quotes it: as in YAML, cut to one short line."""
    if value is None:
        return "empty"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        named = ", ".join(str(k)[:20] for k in list(value)[:4])
        return f"keys ({named}{', ...' * (len(value) > 4)})" if value else "{}"
    if isinstance(value, (list, tuple)):
        return f"a list of {len(value)}" if len(value) != 1 else "a list"
    if isinstance(value, int) and abs(value) >= 10**LONGEST:
        return f"a number of {len(hex(value)) - 2} hexadecimal digits"  # decimal digits may be refused
    text = repr(value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 4]}...{text[-1]}"


def suggest(word: object, known: Iterable[str]) -> str:
    """Return ``did you mean 'batch'? ``, or nothing when no known word comes close."""
    text = str(word).lower()
    choices = {k.lower(): k for k in known}
    close = get_close_matches(text, choices, n=2) or [k for k in choices if len(text) > 2 and k.startswith(text)][:2]
    return f"did you mean {' or '.join(repr(choices[c]) for c in close)}? " if close else ""


def unknown_key(key: object, known: Iterable[str]) -> str:
    """Return the message about a key that does not exist here."""
    known = list(known)
    listed = ", ".join(known) if known else "none"
    return f"unknown key {show(key)}; {suggest(key, known)}known keys: {listed}"


def one_of(expected: Iterable[str]) -> str:
    """Write choices as a sentence does: ``a, b or c``."""
    listed = list(expected)
    return f"{', '.join(listed[:-1])} or {listed[-1]}" if len(listed) > 1 else "".join(listed)


def _quoted(text: str) -> list[str]:
    return re.findall(r"'([^']*)'", text)


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"


_Phrase = Callable[[dict[str, Any]], str]
_MUST: dict[str, _Phrase] = {
    "int_type": lambda c: "a whole number",
    "int_parsing": lambda c: "a whole number",
    "int_from_float": lambda c: "a whole number",
    "int_parsing_size": lambda c: "a whole number of less than 19 digits",
    "float_type": lambda c: "a number",
    "float_parsing": lambda c: "a number",
    "finite_number": lambda c: "a finite number",
    "bool_type": lambda c: "true or false",
    "bool_parsing": lambda c: "true or false",
    "string_type": lambda c: "text (in quotes if it looks like a number)",
    "string_too_short": lambda c: f"text of at least {_plural(c['min_length'], 'character')}",
    "string_too_long": lambda c: f"text of at most {_plural(c['max_length'], 'character')}",
    "string_pattern_mismatch": lambda c: f"text of the form {c['pattern']}",
    "too_short": lambda c: f"a list of at least {_plural(c['min_length'], 'item')}",
    "too_long": lambda c: f"a list of at most {_plural(c['max_length'], 'item')}",
    "list_type": lambda c: "a list",
    "tuple_type": lambda c: "a list",
    "dict_type": lambda c: "keys with values",
    "model_type": lambda c: "keys with values",
    "model_attributes_type": lambda c: "keys with values",
    "greater_than": lambda c: f"more than {c['gt']:g}",
    "greater_than_equal": lambda c: f"at least {c['ge']:g}" if c["ge"] < 1e6 else f"at least {c['ge']}",
    "less_than": lambda c: f"less than {c['lt']}",
    "less_than_equal": lambda c: f"at most {c['le']}",
    "literal_error": lambda c: one_of(_quoted(c["expected"]) or [c["expected"]]),
    "enum": lambda c: one_of(_quoted(c["expected"]) or [c["expected"]]),
    "none_required": lambda c: "left empty",
}


def read(
    cls: type[M],
    data: Any,
    error: type[InputError] = InputError,
    *,
    spelled: Mapping[str, str] | None = None,
    context: Any = None,
) -> M:
    """Return ``cls.model_validate(data, context=context)``, except that no flag passes for a number.

    Parameters
    ----------
    error
        Raised if the data is wrong.
    spelled
        How the user spelled a field of ``cls``, where it was an alias.

    Raises
    ------
    InputError
        Of the type ``error``, with every problem.
    """
    found = None
    problems: list[Problem] = []
    try:
        found = cls.model_validate(data, context=context)
    except ValidationError as wrong:
        problems = explain(wrong, cls, data, spelled)
    known = {p.key for p in problems}
    problems += [p for p in _flags([cls], data, "", spelled or {}) if p.key not in known]
    if found is None or problems:
        raise error(problems)
    return found


def _flags(classes: list[type[BaseModel]], data: Any, path: str, spelled: Mapping[str, str]) -> Iterator[Problem]:
    """Numbers that are written ``true``, which pydantic reads as 1; the model takes ``classes`` at this place."""
    if isinstance(data, (list, tuple)):
        for i, item in enumerate(data):
            yield from _flags(classes, item, f"{path}{i}.", {})
    if not isinstance(data, dict):
        return
    for name, value in data.items():
        fields = [c.model_fields[name] for c in classes if name in c.model_fields]
        key = path + spelled.get(name, str(name))
        if isinstance(value, bool):
            types = [kind for field in fields for kind in _leaves(field.annotation)]
            if bool not in types and (int in types or float in types):
                yield Problem(f"must be a number, not {show(value)}", key)
        elif isinstance(value, (dict, list, tuple)):
            yield from _flags([c for f in fields for c in _nested(f.annotation)], value, f"{key}.", {})


def _leaves(annotation: Any) -> list[Any]:
    """All plain types that a field may hold, through lists, unions and annotations."""
    inner = get_args(annotation)
    return [leaf for part in inner for leaf in _leaves(part)] if inner else [annotation]


def explain(
    error: ValidationError, cls: type[BaseModel], data: Any, spelled: Mapping[str, str] | None = None
) -> list[Problem]:
    """Turn what pydantic found into problems, one per key.

    Parameters
    ----------
    error
        Raised by ``cls.model_validate(data)``.
    data
        What the user wrote, in plain lists and dictionaries.
    spelled
        How the user spelled a field of ``cls``, where it was an alias.
    """
    musts: dict[str, list[str]] = {}
    values: dict[str, Any] = {}
    whole: list[Problem] = []
    for found in error.errors(include_url=False):
        kind, context = found["type"], found.get("ctx", {})
        path, holder, here = _follow(found["loc"], cls, data)
        key = ".".join([(spelled or {}).get(str(path[0]), str(path[0])), *map(str, path[1:])]) if path else ""
        if kind == "missing":
            name = str(found["loc"][-1])
            needed = [n for n, f in here.model_fields.items() if f.is_required()] if here else []
            also = f"; needed: {', '.join(needed)}" if len(needed) > 1 else ""
            whole.append(Problem(f"is missing{also}", f"{key}.{name}" if key else name))
        elif kind == "extra_forbidden":
            whole.append(Problem(unknown_key(path[-1], holder.model_fields if holder else ()), key))
        elif kind in ("union_tag_invalid", "union_tag_not_found"):
            tags = one_of(_quoted(context.get("expected_tags", "")))
            tag = f"must be {tags}, not {show(context['tag'])}" if "tag" in context else "is missing"
            whole.append(Problem(tag, f"{key}.{context['discriminator'].strip(chr(39))}".lstrip(".")))
        elif kind in _MUST:
            musts.setdefault(key, []).append(_MUST[kind](context))
            values[key] = found["input"]
        else:  # our own validators say all by themselves; anything else gets no foreign sentence
            own = context.get("error")
            if isinstance(own, InputError):
                whole += [p._replace(key=".".join(filter(None, (key, p.key)))) for p in own.problems]
            else:
                whole.append(Problem(str(own) if own else f"{show(found['input'])} cannot be used here", key))
    keys = {p.key for p in whole} | musts.keys()
    for key, rules in musts.items():
        # a list whose items are wrong is also called too short, and a wrong branch of a union an odd type
        if not any(other.startswith(f"{key}.") for other in keys) and all(p.key != key for p in whole):
            whole.append(Problem(f"must be {', or '.join(dict.fromkeys(rules))}, not {show(values[key])}", key))
    return whole


class _Place(NamedTuple):
    """Where a location leads in the user's data, with the classes of the value there and of what holds it."""

    path: list[int | str]
    holder: type[BaseModel] | None
    here: type[BaseModel] | None


def _follow(loc: tuple[int | str, ...], cls: type[BaseModel], data: Any) -> _Place:
    path: list[int | str] = []
    holders: list[type[BaseModel]] = []
    here = [cls]
    for part in loc:
        if isinstance(data, dict) and part in data:
            holders = here
            field = here[0].model_fields.get(str(part)) if len(here) == 1 else None
            here = _nested(field.annotation) if field else []
            data = data[part]
            path.append(part)
        elif isinstance(data, (list, tuple)) and isinstance(part, int) and part < len(data):
            data = data[part]
            path.append(part)
        else:  # the branch of a union, or a key that is missing
            here = [c for c in here if _tag(c) == part] or here
    return _Place(path, holders[0] if len(holders) == 1 else None, here[0] if len(here) == 1 else None)


def _nested(annotation: Any) -> list[type[BaseModel]]:
    """All models that a field may hold, through lists, unions and annotations."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [cls for inner in get_args(annotation) for cls in _nested(inner)]


def _tag(cls: type[BaseModel]) -> Any:
    field = cls.model_fields.get("kind")
    return field.default if field else None
