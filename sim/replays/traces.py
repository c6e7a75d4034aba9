"""Readers of the request traces that people have, each with errors that name the file and the line.

==================== ========================================================================================
``mooncake``         JSONL: timestamp (ms), input_length, output_length, hash_ids of 512-token blocks (FAST 2025)
``azure``            CSV: TIMESTAMP with seven decimals, ContextTokens, GeneratedTokens (Azure LLM traces 2023, 2024)
``burstgpt``         CSV: Timestamp (s), Request tokens, Response tokens; rows without a response are left out
``sharegpt``         JSON: conversations of human and gpt turns; tokens are estimated from characters
``lengths``          CSV or JSONL: input and output tokens of each request
``vllm``             JSON of ``vllm bench serve --save-detailed``: input_lens, output_lens, start_times
``aiperf``           JSONL of AIPerf (profile_export): one request a line, with lengths and start in nanoseconds
``aiperf_summary``   JSON of AIPerf or GenAI-Perf: mean lengths and the request rate
==================== ========================================================================================
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from sim.documents import read_content
from sim.errors import InputError, Problem
from sim.explain import show

MOST_BYTES = 4 * 2**30
MOST_PROBLEMS = 20
CHARACTERS_PER_TOKEN = 4.0
"""Of English text; OpenAI's rule of thumb (help.openai.com, What are tokens and how to count them)."""
MOONCAKE_BLOCK = 512
"""Tokens behind one of Mooncake's hash_ids (FAST25-release/README.md)."""


class Trace(NamedTuple):
    """Requests in the order of their arrival."""

    arrivals: list[float]
    """Seconds after the first one; empty where the file has none."""
    prompts: list[int]
    outputs: list[int]
    hashes: list[tuple[int, ...]] = []  # noqa: RUF012  never changed
    grain: int = 0
    """Tokens of a hash."""


class _Rows:
    """Requests as they are read, and what was wrong with rows."""

    def __init__(self, path: Path):
        self.path = path
        self.problems: list[Problem] = []
        self.found: list[tuple[float, int, int, tuple[int, ...]]] = []

    def bad(self, line: int, text: str, key: str = "") -> None:
        self.problems.append(Problem(text, key, f"{self.path}:{line}"))
        if len(self.problems) >= MOST_PROBLEMS:
            raise InputError(self.problems)

    def number(self, line: int, key: str, value: Any, least: float = 0) -> float | None:
        """A finite number of at least ``least``; notes a problem and returns ``None`` for anything else."""
        try:
            found = float(value)
            if isinstance(value, bool) or not found < float("inf"):
                raise ValueError
        except (TypeError, ValueError):
            self.bad(line, f"must be a number, not {show(value)}", key)
            return None
        if found < least:
            self.bad(line, f"must be at least {least:g}, not {show(value)}", key)
            return None
        return found

    def add(self, line: int, time: Any, prompt: Any, output: Any, keys: tuple[str, str, str], hashes: Any = ()) -> None:
        """Note one request; every wrong field is reported."""
        values = [
            self.number(line, key, value, least)
            for key, value, least in zip(keys, (time, prompt, output), (float("-inf"), 1, 1), strict=True)
        ]
        if None not in values:
            self.found.append((values[0], int(values[1]), int(values[2]), hashes))  # type: ignore[arg-type]

    def trace(self, grain: int = 0, timed: bool = True) -> Trace:
        """What was read. Raises ``InputError`` with every problem, or if there is no request."""
        if self.problems:
            raise InputError(self.problems)
        if not self.found:
            raise InputError(Problem("holds no request", where=str(self.path)))
        rows = sorted(self.found, key=lambda row: row[0]) if timed else self.found
        first = rows[0][0]
        return Trace(
            [row[0] - first for row in rows] if timed else [],
            [row[1] for row in rows],
            [row[2] for row in rows],
            [row[3] for row in rows] if grain else [],
            grain,
        )


def _text(path: Path) -> str:
    try:
        return read_content(path, "trace of requests", MOST_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(Problem("is not UTF-8 text", where=str(path))) from None


def _json_lines(rows: _Rows) -> Iterator[tuple[int, dict[str, Any]]]:
    for line, text in enumerate(_text(rows.path).splitlines(), start=1):
        if not text.strip():
            continue
        try:
            item = json.loads(text)
        except (ValueError, RecursionError):
            rows.bad(line, "is not a line of JSON")
            continue
        if isinstance(item, dict):
            yield line, item
        else:
            rows.bad(line, f"must be keys with values, not {show(item)}")


def _csv_rows(rows: _Rows, needed: tuple[str, ...]) -> Iterator[tuple[int, dict[str, str]]]:
    reader = csv.DictReader(_text(rows.path).splitlines())
    names = [name.strip() for name in reader.fieldnames or ()]
    reader.fieldnames = names
    if missing := [name for name in needed if name not in names]:
        rows.bad(1, f"has no column {', '.join(missing)}; found: {', '.join(names) or 'none'}")
        return
    for row in reader:
        if None in row or None in row.values():
            rows.bad(reader.line_num, f"has not as many cells as the header ({len(names)})")
        else:
            yield reader.line_num, row


def _one_json(path: Path) -> Any:
    try:
        return json.loads(_text(path))
    except json.JSONDecodeError as error:
        raise InputError(Problem(f"is not JSON: {error.msg.lower()}", where=f"{path}:{error.lineno}")) from None
    except RecursionError:
        raise InputError(Problem("is not JSON that can be read", where=str(path))) from None


def mooncake(path: Path) -> Trace:
    """Mooncake's JSONL; the last id of a row stands for a block that may be partial."""
    rows = _Rows(path)
    keys = ("timestamp", "input_length", "output_length")
    for line, item in _json_lines(rows):
        if missing := [key for key in keys if key not in item]:
            rows.bad(line, f"has no {', '.join(missing)}")
            continue
        ids = item.get("hash_ids", [])
        if not isinstance(ids, list) or not all(isinstance(i, int) for i in ids):
            rows.bad(line, f"must be a list of numbers, not {show(ids)}", "hash_ids")
            continue
        length = item["input_length"]
        if ids and isinstance(length, int) and len(ids) != -(-length // MOONCAKE_BLOCK):
            wanted = -(-length // MOONCAKE_BLOCK)
            rows.bad(line, f"has {len(ids)} ids for {length:,} tokens, which are {wanted} blocks", "hash_ids")
            continue
        rows.add(line, item["timestamp"], length, item["output_length"], keys, tuple(ids))
    rows.found = [(time / 1e3, *rest) for time, *rest in rows.found]  # type: ignore[misc]
    return rows.trace(MOONCAKE_BLOCK)


def azure(path: Path) -> Trace:
    """Azure's CSV; its times have seven decimals and no zone."""
    rows = _Rows(path)
    keys = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
    for line, row in _csv_rows(rows, keys):
        try:
            whole, _, part = row["TIMESTAMP"].strip().removesuffix("Z").removesuffix("+00:00").partition(".")
            moment = datetime.fromisoformat(whole)
            seconds = (moment - datetime(2020, 1, 1)).total_seconds() + (float(f"0.{part}") if part else 0.0)
        except ValueError:
            rows.bad(line, f"must be a time such as 2023-11-16 18:17:03.9799600, not {show(row[keys[0]])}", keys[0])
            continue
        rows.add(line, seconds, row[keys[1]], row[keys[2]], keys)
    return rows.trace()


def burstgpt(path: Path) -> Trace:
    """BurstGPT's CSV; requests without a response failed."""
    rows = _Rows(path)
    keys = ("Timestamp", "Request tokens", "Response tokens")
    for line, row in _csv_rows(rows, keys):
        if row[keys[2]].strip() not in ("0", "0.0"):
            rows.add(line, row[keys[0]], row[keys[1]], row[keys[2]], keys)
    return rows.trace()


def lengths(path: Path) -> Trace:
    """Rows with input and output tokens, as CSV or JSONL."""
    rows = _Rows(path)
    keys = ("arrival", "input", "output")
    lines: Iterator[tuple[int, dict[str, Any]]]
    is_json = _text(path).lstrip().startswith("{")
    lines = _json_lines(rows) if is_json else _csv_rows(rows, keys[1:])
    timed = True
    for line, row in lines:
        timed = timed and "arrival" in row
        rows.add(line, row.get("arrival", 0), row.get("input"), row.get("output"), keys)
    return rows.trace(timed=timed)


def sharegpt(path: Path) -> Trace:
    """ShareGPT's JSON: each human turn with the answer after it; the prompt holds the conversation up to there."""
    data = _one_json(path)
    rows = _Rows(path)
    if not isinstance(data, list):
        raise InputError(Problem(f"must be a list of conversations, not {show(data)}", where=f"{path}:1"))
    for number, item in enumerate(data):
        talk = item.get("conversations") if isinstance(item, dict) else None
        if not isinstance(talk, list):
            rows.bad(1, "has no list of turns", f"{number}.conversations")
            continue
        said = 0
        for turn in talk:
            if not isinstance(turn, dict) or not isinstance(turn.get("value"), str):
                rows.bad(1, "has a turn without text", f"{number}.conversations")
                break
            tokens = max(1, round(len(turn["value"]) / CHARACTERS_PER_TOKEN))
            if turn.get("from") == "gpt" and said:
                rows.found.append((0.0, said, tokens, ()))
            said += tokens
    return rows.trace(timed=False)


def vllm(path: Path) -> Trace:
    """A result of ``vllm bench serve``; lengths of each request need ``--save-detailed``."""
    data = _one_json(path)
    rows = _Rows(path)
    if not isinstance(data, dict) or not isinstance(data.get("input_lens"), list):
        text = "has no input_lens; run vllm bench serve with --save-detailed"
        raise InputError(Problem(text, where=f"{path}:1"))
    prompts, outputs = data["input_lens"], data.get("output_lens") or []
    starts = data.get("start_times") or [0.0] * len(prompts)
    failed = data.get("errors") or [""] * len(prompts)
    if not len(prompts) == len(outputs) == len(starts) == len(failed):
        raise InputError(Problem("has lists of different lengths", "input_lens", f"{path}:1"))
    keys = ("start_times", "input_lens", "output_lens")
    for time, prompt, output, error in zip(starts, prompts, outputs, failed, strict=True):
        if not error:
            rows.add(1, time, prompt, output, keys)
    return rows.trace(timed=bool(data.get("start_times")))


def aiperf(path: Path) -> Trace:
    """AIPerf's profile_export.jsonl; failed and cancelled requests are left out."""
    rows = _Rows(path)
    keys = ("request_start_ns", "input_sequence_length", "output_sequence_length")
    for line, item in _json_lines(rows):
        about, metrics = item.get("metadata"), item.get("metrics")
        if not isinstance(about, dict) or not isinstance(metrics, dict):
            rows.bad(line, "has no metadata or no metrics")
            continue
        if item.get("error") or about.get("was_cancelled") or about.get("benchmark_phase") == "warmup":
            continue
        tokens = [value.get("value") if isinstance(value := metrics.get(key), dict) else None for key in keys[1:]]
        rows.add(line, about.get(keys[0]), tokens[0], tokens[1], keys)
    rows.found = [(time / 1e9, *rest) for time, *rest in rows.found]  # type: ignore[misc]
    return rows.trace()


def aiperf_summary(path: Path) -> Trace:
    """A summary of AIPerf or GenAI-Perf: as many requests of the mean lengths, evenly spread."""
    data = _one_json(path)
    rows = _Rows(path)
    keys = ("request_throughput", "input_sequence_length", "output_sequence_length")

    def mean(key: str) -> Any:
        found = data.get(key) if isinstance(data, dict) else None
        return found.get("avg") if isinstance(found, dict) else None

    count, rate = rows.number(1, "request_count", mean("request_count"), 1), rows.number(1, keys[0], mean(keys[0]))
    if count and rate:
        for i in range(int(count)):
            rows.add(1, i / rate, mean(keys[1]), mean(keys[2]), keys)
    return rows.trace()


FORMATS: dict[str, Callable[[Path], Trace]] = {
    reader.__name__: reader for reader in (mooncake, azure, burstgpt, sharegpt, lengths, vllm, aiperf, aiperf_summary)
}


def guess(path: Path) -> str:
    """The format that a file looks like.

    Raises
    ------
    InputError
        If it looks like none.
    """
    start = read_content(path, "trace of requests", MOST_BYTES)[:4096].decode("utf-8-sig", errors="replace").lstrip()
    line = start.partition("\n")[0]
    for sign, anywhere, name in _SIGNS:
        if sign in (start if anywhere else line):
            return name
    known = ", ".join(FORMATS)
    raise InputError(Problem(f"looks like no trace that is known; say its format: {known}", where=str(path)))


_SIGNS = (
    ('"input_length"', False, "mooncake"),
    ("ContextTokens", False, "azure"),
    ("Request tokens", False, "burstgpt"),
    ('"request_start_ns"', False, "aiperf"),
    ('"conversations"', True, "sharegpt"),
    ('"request_throughput": {', True, "aiperf_summary"),
    ('"endpoint_type"', True, "vllm"),
    ('"input_lens"', True, "vllm"),
    ("input,output", False, "lengths"),
    ('"input"', False, "lengths"),
)
"""What a format has in its first line, or anywhere near its start."""


def read_trace(path: Path, kind: str | None = None) -> Trace:
    """Read a trace.

    Raises
    ------
    InputError
        If it cannot be read, with ``file:line`` of every bad row (twenty at most).
    """
    return FORMATS[kind or guess(path)](path)
