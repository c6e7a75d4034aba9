"""YAML text to plain data that remembers where every key stands.

The reader is strict where YAML is treacherous: duplicate keys, keys that are not text, tabs, several
documents, custom tags, aliases that multiply, and nesting without end are problems with line and column.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError

from sim.errors import InputError, Problem, ScenarioError

MOST_BYTES = 2**20
MOST_NODES = 100_000
MOST_DEPTH = 32
MOST_DIGITS = 64
_BRACKETS = re.compile(rf"(?:[\[{{]\s*){{{MOST_DEPTH + 1}}}")

_WORDS = (
    ("could not find expected ':'", "this line is not a 'key: value'"),
    ("found another document", "starts a second YAML document; a file is one, so remove the '---'"),
    ("expected <block end>", "the indentation does not fit the lines above"),
    ("expected ',' or", "a bracket is not closed, or a comma is missing"),
    ("unexpected end of stream", "a quote or a bracket is never closed"),
    ("expected the node content", "a value is missing, or a bracket closes what was never opened"),
    ("undefined alias", "the alias has no anchor above it"),
    ("special characters are not allowed", "holds a control character; is it a text file?"),
    ("unacceptable character", "holds a control character; is it a text file?"),
)


@dataclass(frozen=True)
class Document:
    """A mapping read from YAML.

    ``positions`` gives line and column (from 1) by dotted key; ``problems`` is what was wrong although the
    rest could be read, so that all of a file's problems can be shown together.
    """

    name: str
    data: dict[str, Any]
    positions: dict[str, tuple[int, int]]
    problems: list[Problem] = field(default_factory=list)

    def place(self, problem: Problem) -> Problem:
        """Return the problem with ``file:line:col`` of its key, or of the nearest key around it."""
        if problem.where:
            return problem
        key = problem.key
        while key not in self.positions:
            key = key.rpartition(".")[0]
        line, column = self.positions[key]
        return problem._replace(where=f"{self.name}:{line}:{column}")


class Kind(NamedTuple):
    """What a file is meant to be, for errors."""

    noun: str
    keys: str
    """Examples of its keys."""


SCENARIO = Kind("scenario", "model, gpu and layouts")


def read_content(path: str | Path, noun: str, most: int = MOST_BYTES) -> bytes:
    """Read a whole file of at most ``most`` bytes that is meant to be a ``noun``.

    Raises
    ------
    InputError
        If it cannot be read, or is too large (no more than ``most`` bytes are read).
    """
    try:
        with open(path, "rb") as file:
            content = file.read(most + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        reason = f"cannot be read: {reason[:1].lower()}{reason[1:]}"
        raise InputError(Problem(reason, where=str(path))) from None
    if len(content) > most:
        raise InputError(_too_large(str(path), noun, most))
    return content


def _too_large(name: str, noun: str, most: int) -> Problem:
    return Problem(f"is larger than {most:,} bytes; is it a {noun}?", where=name)


def read_file(path: str | Path, kind: Kind = SCENARIO) -> Document:
    """Read a YAML file. Raises ``ScenarioError`` as ``read_document`` does, or if the file cannot be read."""
    try:
        content = read_content(path, kind.noun)
    except InputError as error:
        raise ScenarioError(error.problems) from None
    return read_document(content, str(path), kind)


def read_document(content: bytes | str, name: str, kind: Kind = SCENARIO) -> Document:
    """Read YAML whose root is a mapping.

    Parameters
    ----------
    name
        What the file is called in errors.

    Raises
    ------
    ScenarioError
        If the text is not one YAML mapping. Problems that leave the rest readable are in ``problems``.
    """
    if len(content) > MOST_BYTES:
        raise ScenarioError(_too_large(name, kind.noun, MOST_BYTES))
    if isinstance(content, bytes):
        try:
            content = content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = error.object.count(b"\n", 0, error.start) + 1
            message = f"is not UTF-8 text (byte {error.object[error.start]:#04x})"
            raise ScenarioError(Problem(message, where=f"{name}:{line}:1")) from None
    root = _compose(content.removeprefix("\ufeff"), name)
    if root is None or (isinstance(root, ScalarNode) and not root.value):
        raise ScenarioError(Problem(f"is empty; a {kind.noun} has keys such as {kind.keys}", where=name))
    if not isinstance(root, MappingNode):
        found = "a list" if isinstance(root, SequenceNode) else "one value"
        where = f"{name}:{root.start_mark.line + 1}:{root.start_mark.column + 1}"
        raise ScenarioError(Problem(f"must hold keys such as {kind.keys}, not {found}", where=where))
    walk = _Walk(name)
    data = walk.value(root, "", 0)
    return Document(name, data, walk.positions, walk.problems)


def _compose(text: str, name: str) -> Node | None:
    too_deep = Problem(f"is nested more than {MOST_DEPTH} levels deep", where=name)
    if _BRACKETS.search(text):  # the scanner needs quadratic time for these
        raise ScenarioError(too_deep)
    try:
        root: Node | None = YAML(typ="safe", pure=True).compose(text)
    except RecursionError:
        raise ScenarioError(too_deep) from None
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ScenarioError(Problem(_in_our_words(str(error.reason)), where=f"{name}:{line}:1")) from None
    except MarkedYAMLError as error:
        key_mark = error.context_mark if "could not find" in str(error.problem) else None
        mark = key_mark or error.problem_mark or error.context_mark
        where = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
        line_text = text.split("\n")[mark.line] if mark and mark.line < text.count("\n") + 1 else ""
        found = str(error.problem or error.context)
        raise ScenarioError(Problem(_in_our_words(found, line_text), where=where)) from None
    except (YAMLError, ValueError) as error:
        message = str(error).partition("\n")[0]
        raise ScenarioError(Problem(f"is not YAML: {message}", where=name)) from None
    return root


def _in_our_words(problem: str, line: str = "") -> str:
    if "cannot start any token" in problem:
        if "\t" in line:
            return "a tab cannot indent YAML; use spaces"
        character = re.search(r"character (.+?) that", problem)
        return f"a value cannot start with {character[1] if character else 'this character'}; put it in quotes"
    if "mapping values are not allowed" in problem:
        if line.count(": ") > 1:
            return "a second ': ' on one line; put a text that contains ': ' in quotes"
        return "a key does not fit here; is a space missing after a ':' above, or is the indentation off?"
    for theirs, ours in _WORDS:
        if theirs in problem:
            return ours
    return f"is not YAML: {problem}"


class _Walk:
    """From nodes to plain data, collecting positions and problems on the way."""

    def __init__(self, name: str):
        self.name = name
        self.positions: dict[str, tuple[int, int]] = {}
        self.problems: list[Problem] = []
        self.nodes = 0
        self.constructor = YAML(typ="safe", pure=True).constructor

    def value(self, node: Node, key: str, depth: int) -> Any:
        """Return the data of a node whose dotted key is ``key``."""
        self.nodes += 1
        if self.nodes > MOST_NODES:
            text = f"holds more than {MOST_NODES:,} values once its aliases are written out"
            raise ScenarioError(Problem(text, where=self.where(node)))
        if depth > MOST_DEPTH:
            text = f"is nested more than {MOST_DEPTH} levels deep, or refers to itself"
            raise ScenarioError(Problem(text, where=self.where(node)))
        self.positions.setdefault(key, (node.start_mark.line + 1, node.start_mark.column + 1))
        if isinstance(node, MappingNode):
            self.only_plain(node, "tag:yaml.org,2002:map", key)
            return self.mapping(node, key, depth)
        if isinstance(node, SequenceNode):
            self.only_plain(node, "tag:yaml.org,2002:seq", key)
            prefix = f"{key}." if key else ""
            return [self.value(item, f"{prefix}{i}", depth + 1) for i, item in enumerate(node.value)]
        return self.scalar(node, key)

    def mapping(self, node: MappingNode, key: str, depth: int) -> dict[str, Any]:
        """Return a mapping; of duplicate keys the first one counts, so that the rest can be checked too."""
        data: dict[str, Any] = {}
        lines: dict[str, int] = {}
        for name_node, value_node in node.value:
            if not isinstance(name_node, ScalarNode):
                self.problem("a key must be one word, not a list or a mapping", key, name_node)
                continue
            name = str(name_node.value)
            full = f"{key}.{name}" if key else name
            if name_node.tag == "tag:yaml.org,2002:merge":
                self.problem("merge keys ('<<') are not read; write the keys out", full, name_node)
            elif name_node.tag != "tag:yaml.org,2002:str":
                self.problem(f"the key {name or 'null'} is not text; put it in quotes", full, name_node)
            elif name in data:
                self.problem(f"is written twice; first on line {lines[name]}", full, name_node)
            else:
                lines[name] = name_node.start_mark.line + 1
                self.positions[full] = (lines[name], name_node.start_mark.column + 1)
                data[name] = self.value(value_node, full, depth + 1)
        return data

    def scalar(self, node: Node, key: str) -> Any:
        """Return text, a number, true or false, or nothing. Dates stay text."""
        kind = str(node.tag).removeprefix("tag:yaml.org,2002:")
        if kind in ("int", "float", "bool", "null"):
            try:
                if len(node.value) > MOST_DIGITS:
                    raise ValueError(node.value)
                return getattr(self.constructor, f"construct_yaml_{kind}")(node)
            except (ValueError, OverflowError):
                self.problem(f"{str(node.value)[:40]!r} is not a number that can be read", key, node)
                return None
        if kind not in ("str", "timestamp"):
            self.only_plain(node, "", key)
        return str(node.value)

    def only_plain(self, node: Node, expected: str, key: str) -> None:
        """Refuse tags such as ``!!python/object``."""
        if node.tag != expected:
            tag = str(node.tag).replace("tag:yaml.org,2002:", "!!")
            self.problem(f"the tag {tag} is not read; remove it", key, node)

    def problem(self, message: str, key: str, node: Node) -> None:
        """Note a problem at a node."""
        self.problems.append(Problem(message, key, self.where(node)))

    def where(self, node: Node) -> str:
        """``file:line:col`` of a node."""
        return f"{self.name}:{node.start_mark.line + 1}:{node.start_mark.column + 1}"
