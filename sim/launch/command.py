"""Read a pasted launch command. It is split into words and never run; no variable is expanded, no file fetched."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from sim.documents import Kind, read_document, read_file
from sim.errors import InputError
from sim.explain import show
from sim.launch.gather import Gathered, dashed, from_mapping
from sim.launch.settings import EngineKey, Settings
from sim.launch.tables import ENGINES, flag_table, words

MOST_CHARACTERS = 100_000
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_INTERPRETER = re.compile(r"(.*/)?python[0-9.]*")
_FLAG = re.compile(r"--?[A-Za-z]")
_OPERATORS = frozenset(";&|<>()")


def parse(command: str, base: Path | None = None, options: str | None = None) -> Settings:
    """Read a launch command, such as ``vllm serve Qwen/Qwen3-32B -tp 4``.

    Parameters
    ----------
    base
        Folder from which the YAML file that a command names (``--config``) is read; without it the file is not read
        and naming one is an error.
    options
        The text of that YAML file, where it is at hand.

    Raises
    ------
    InputError
        With every problem: an engine that is not known, values that cannot be read, flags that may touch layout or
        memory and are not understood.
    """
    every = split(command)
    engine, start, end = _engine(every)
    rest = every[end:]
    cut = next((i for i, word in enumerate(rest) if word and set(word) <= _OPERATORS), len(rest))
    gathered = Gathered(engine)
    for word in every[:start]:
        _before(gathered, word)
    if rest[cut:]:
        gathered.ignore(" ".join(rest[cut : cut + 5]))
    _read(gathered, rest[:cut])
    if gathered.file:
        _config(gathered, gathered.file, base, options)
    return gathered.settings()


def split(command: str) -> list[str]:
    """The words of a command as a POSIX shell splits them; operators are words. Raises ``InputError``."""
    if len(command) > MOST_CHARACTERS:
        raise InputError(f"is longer than {MOST_CHARACTERS:,} characters; is it a launch command?")
    text = re.sub(r"[\\^]\r?\n", " ", command).replace("\x00", " ")
    text = re.sub(r"(\s)\d(>)", r"\1\2", text)  # the number of a stream that is sent elsewhere
    lexer = shlex.shlex(text, posix=True, punctuation_chars=";&|<>")
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        return [word.strip() for word in lexer]
    except ValueError as error:
        what = "a quote that is opened is not closed" if "quotation" in str(error) else "a backslash ends it"
        raise InputError(f"the command cannot be split into words: {what}") from None


def _engine(every: list[str]) -> tuple[EngineKey, int, int]:
    """Which engine a command starts, and where its name begins and ends."""
    found: list[tuple[int, int, EngineKey]] = []
    for engine in ENGINES:
        table = flag_table(engine)
        for name in table.commands:
            for i in range(len(every) - len(name) + 1):
                words_ = [every[i].rsplit("/", 1)[-1], *every[i + 1 : i + len(name)]]
                if tuple(words_) == name:
                    found.append((i, -len(name), engine))  # type: ignore[arg-type]  # ENGINES are its values
                    break
        for i, word in enumerate(every):
            if word.partition(":")[0].endswith(table.image):
                found.append((i, -1, engine))  # type: ignore[arg-type]
    if not found:
        known = ", ".join(" ".join(flag_table(e).commands[0]) for e in ENGINES)
        raise InputError(f"no engine's launch command was found in it; known: {known}")
    start, length, engine_ = min(found)
    return engine_, start, start - length


def _before(gathered: Gathered, word: str) -> None:
    """A word in front of the engine's name: an assignment may set something, a wrapper is listed."""
    if _ASSIGNMENT.fullmatch(word):
        name, _, value = word.partition("=")
        if name in gathered.table.environment:
            flag = next(f for f in gathered.table.flags if f.sets == gathered.table.environment[name])
            gathered.set(flag, value, name)
        elif name in words().environment or name == "CUDA_VISIBLE_DEVICES":
            gathered.ignore(name)
        else:
            gathered.unknown(name, name)
    elif word and not set(word) <= _OPERATORS and not _INTERPRETER.fullmatch(word):
        gathered.ignore(word)


def _read(gathered: Gathered, every: list[str]) -> None:
    """Read the words after the engine's name: flags with their values, and the model.

    argparse cannot be used here: it does not say how many words a flag that it does not know takes.
    """
    types = gathered.by_name
    known_switches = {dashed(n) for known in gathered.table.switches for n in known.names}
    i = 0
    while i < len(every):
        word = every[i]
        i += 1
        if not _FLAG.match(word):
            _positional(gathered, word)
            continue
        name, equals, value = word.partition("=")
        name = dashed(name)
        flag, dotted = types.get(name), types.get(name.partition(".")[0])
        takes_value = not (flag and flag.type == "switch") and name not in known_switches
        if not equals and takes_value and i < len(every) and not _FLAG.match(every[i]):
            value, equals = every[i], "="
            i += 1
        if flag and takes_value and not equals:
            gathered.problem("needs a value", name)
        elif flag:
            gathered.set(flag, value if equals else True, name)
        elif dotted and dotted.type == "json":
            gathered.json(dotted, {name.partition(".")[2]: _number(value)}, name)
        elif not gathered.other(name, name):
            negated = types.get(f"--{name[5:]}") if name.startswith("--no-") else None
            if negated and negated.type == "switch":
                gathered.set(negated, False, name)
            else:
                gathered.unknown(name, name)


def _number(text: str) -> int | str:
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else text


def _positional(gathered: Gathered, word: str) -> None:
    """A word without a flag is the model, once."""
    if not word:
        return
    if "model" not in gathered.fields:
        gathered.set(next(f for f in gathered.table.flags if f.sets == "model"), word, "model")
    else:
        gathered.problem(f"{show(word)} does not belong to any flag", "command")


def _config(gathered: Gathered, file: str, base: Path | None, options: str | None) -> None:
    """Read the YAML of further options that a command names; what the command says itself wins."""
    if base is None and options is None:
        text = f"names {show(file)}, which was not given; add its options to the command"
        gathered.problem(text, gathered.table.config)
        return
    kind = Kind("file of options", "tensor_parallel_size")
    try:
        if options is not None:
            document = read_document(options, file, kind)
        else:
            document = read_file((base or Path()) / file, kind)
    except InputError as error:
        gathered.problems += error.problems
        return
    gathered.problems += document.problems
    of_file = Gathered(gathered.engine)
    from_mapping(of_file, document.data)
    gathered.problems += [document.place(p) for p in of_file.problems]
    gathered.fields = of_file.fields | gathered.fields
    for text in of_file.ignored:
        gathered.ignore(text)
