"""The validation suite (``suite.csv``): chosen rows of the other files, each with the tolerance it should meet."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise

from sim.validate.cases import Case, case
from sim.validate.memory_rows import GIB, kv_bytes, layout, memory_precision, shape
from sim.validate.result import Group, Outcome, failed
from sim.validate.runs import Run

Row = dict[str, str]
Step = Callable[[Run, int], float]
"""Seconds of a decode step of a run's layout with one sequence of so many tokens."""
EXACT = 0.001


def tolerance(text: str) -> float:
    """The first percentage of a text as a fraction; 0.1 % where it says exact."""
    found = re.search(r"([\d.]+) %", text)
    return float(found[1]) / 100 if found else EXACT


def suite_group(
    rows: Iterable[Row], known: Mapping[str, Outcome], memory: Mapping[str, Row], latency: Mapping[str, Row], step: Step
) -> Group:
    """Every primary and companion row of the suite, and the ratios that it asks for.

    Parameters
    ----------
    known
        Outcomes of the other groups, by name of their row.
    memory, latency
        Rows of these files by name.
    step
        Prices a single step.
    """
    found: list[Outcome] = []
    for row in rows:
        suite, allowed = row["suite_id"], tolerance(row["suggested_tolerance"])
        special = SPECIAL.get(suite)
        if special:
            try:
                found += special(suite, known, memory, latency, step)
            except KeyError as missing:
                found.append(failed(f"row {missing.args[0]} that it is about is missing", suite))
            continue
        for name in (row["primary_row"], *filter(None, row["companion_rows"].split(";"))):
            found.append(_of(suite, name, allowed, known, memory, latency))
    return Group("suite", tuple(found))


def _of(
    suite: str,
    name: str,
    allowed: float,
    known: Mapping[str, Outcome],
    memory: Mapping[str, Row],
    latency: Mapping[str, Row],
) -> Outcome:
    if name in known:
        one = known[name]
        return one._replace(row=f"{suite}/{name}", tolerance=allowed)
    if name in memory and memory[name]["kv_tokens"] and memory[name]["formula_B_per_token_rank"]:
        return _formula(suite, memory[name], allowed)
    source = (memory.get(name) or latency.get(name) or {}).get("source_url", "")
    why = "the row has no figure that a single step or a layout's memory gives"
    return Outcome(f"{suite}/{name}", "", source, 0.0, None, "", why, allowed)


def _formula(suite: str, row: Row, allowed: float) -> Outcome:
    """The pool that the printed number of tokens fills, by the closed form and by the placement."""
    tokens = float(row["kv_tokens"])
    model = shape(row)
    each = kv_bytes(model, layout(row), memory_precision(row, model), row["engine"])
    text = f"{row['model']} tp{row['tp']} dcp{row['cp_dcp']}: pool of {tokens:,.0f} tokens"
    measured = tokens * float(row["formula_B_per_token_rank"]) / GIB
    return Outcome(
        f"{suite}/{row['row_id']}", text, row["source_url"], measured, tokens * each / GIB, "GiB", "", allowed
    )


def _deduplication(
    suite: str, known: Mapping[str, Outcome], memory: Mapping[str, Row], _: Mapping[str, Row], __: Step
) -> list[Outcome]:
    """DCP 8 against TP 8 in the same pool: tokens grow as bytes per token shrink."""
    few, many = memory["M050"], memory["M051"]
    one, shared = known["M050"].predicted, known["M051"].predicted
    assert one
    assert shared
    measured = float(many["kv_tokens"]) / float(few["kv_tokens"])
    text = "Kimi-K2-Thinking tp8: tokens with dcp8 over tokens without"
    return [Outcome(f"{suite}/M051", text, many["source_url"], measured, one / shared, "x", "", EXACT)]


def _line(
    suite: str, _: Mapping[str, Outcome], __: Mapping[str, Row], latency: Mapping[str, Row], step: Step
) -> list[Outcome]:
    """Intercept and slope of a step over the context, without any parallelism."""
    from sim.validate.latency_rows import single

    found = []
    short, long = 1024, 120 * 1024
    for name in ("L011", "L012"):
        row = latency[name]
        a, b = (float(x) for x in re.findall(r"[ab]=([\d.e-]+)", row["other_value"]))
        run = single(row)
        ends = 1e3 * step(run, short), 1e3 * step(run, long)
        slope = (ends[1] - ends[0]) / (long - short)
        text = f"{row['model']} {row['gpu']} {row['kv_dtype']} cache: ITL"
        source = row["source_url"]
        found.append(Outcome(f"{suite}/{name} at 0", text, source, a, ends[0] - slope * short, "ms", "", 0.1))
        found.append(Outcome(f"{suite}/{name} slope", text, source, b * 1e6, slope * 1e6, "ns/token", "", 0.1))
    return found


def _crossing_heads(
    suite: str, known: Mapping[str, Outcome], _: Mapping[str, Row], __: Mapping[str, Row], ___: Step
) -> list[Outcome]:
    """Twice the GPUs beyond the KV heads: each row, and the ratio TP 8 / TP 4 at each load."""
    four = ("L369", "L370", "L371", "L372", "L373", "L374")
    eight = ("L375", "L376", "L377", "L378", "L379", "L380")
    found = [known[name]._replace(row=f"{suite}/{name}", tolerance=0.25) for name in (*eight, *four)]
    for wide, narrow in zip(eight, four, strict=True):
        found.append(_ratio(suite, known[wide], known[narrow], 0.1))
    return found


def _sharded_latent(
    suite: str, known: Mapping[str, Outcome], _: Mapping[str, Row], __: Mapping[str, Row], ___: Step
) -> list[Outcome]:
    """DCP 4 against TP 8 over the context: each row, and where the two lines cross."""
    alone = {0: "L113", 16384: "L121", 32768: "L126", 65536: "L130", 131072: "L133"}
    shared = {0: "L161", 16384: "L169", 32768: "L176", 65536: "L182", 131072: "L187"}
    found = [known[n]._replace(row=f"{suite}/{n}", tolerance=0.25) for n in (*alone.values(), *shared.values())]
    lines = [[(c, known[n]) for c, n in names.items()] for names in (alone, shared)]
    measured = _crossing([[(c, o.measured) for c, o in line] for line in lines])
    predicted = _crossing([[(c, o.predicted or 0.0) for c, o in line] for line in lines])
    text = "Kimi-K2.6 on PCIe GPUs: context from which DCP 4 is faster (32k to 64k allowed)"
    middle = 49152.0  # of the range that the suite allows; a third of it is the range itself
    found.append(
        Outcome(
            f"{suite}/crossover",
            f"{text}; measured {measured:,.0f}",
            known["L187"].source,
            middle,
            predicted,
            "tokens",
            "" if predicted else "the lines do not cross",
            1 / 3,
        )
    )
    return found


def _crossing(lines: list[list[tuple[float, float]]]) -> float | None:
    """Where the second of two lines through the same contexts falls below the first."""
    one, other = lines
    gaps = [(c, b - a) for (c, a), (_, b) in zip(one, other, strict=True)]
    for (left, before), (right, after) in pairwise(gaps):
        if before > 0 >= after:
            return left + (right - left) * before / (before - after)
    return None


def _ratio(suite: str, one: Outcome, other: Outcome, allowed: float) -> Outcome:
    predicted = one.predicted / other.predicted if one.predicted and other.predicted else None
    why = one.why or other.why
    name = f"{suite}/{one.row} over {other.row}"
    return Outcome(name, one.what, one.source, one.measured / other.measured, predicted, "x", why, allowed)


SPECIAL: dict[str, Callable[..., list[Outcome]]] = {
    "V04": _deduplication,
    "V16": _line,
    "V17": _crossing_heads,
    "V23": _sharded_latent,
}
"""Suite rows that ask for more than a row's own figure."""


def priced(step: Callable[[Case, int], float]) -> Step:
    """A step by run from a step by configuration."""
    return lambda run, context: step(case(run), context)
