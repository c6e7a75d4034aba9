"""What a study is: a scenario to start from, the fields that vary, and what is asked of the points.

A study is split into *tasks* (one scenario, some of its layouts) and these into *parts* of a few thousand points, which
are priced, written and resumed as a whole. The split follows from the study alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field

from sim import variation
from sim.catalog.scenarios import find_scenario, find_study
from sim.documents import Document, Kind, read_file
from sim.errors import InputError, Problem, ScenarioError
from sim.explain import read, show
from sim.noun import Noun
from sim.scenario import Scenario, parse_scenario
from sim.strategy import Strategy
from sim.study.columns import FIGURES, PLACE, WORKLOAD
from sim.study.constraints import Condition, parse_condition
from sim.study.layouts import AllLayouts
from sim.variants import apply

POINTS_OF_A_PART = 20_000
LAYOUTS_OF_A_PART = 24
LAYOUTS_OF_A_TASK = 12
_FILE = Kind("study", "base, vary and all_layouts")


class Task(NamedTuple):
    """Layouts of one scenario of a study, by their place in ``Study.layouts``."""

    change: variation.Change
    first: int
    last: int


Part = tuple[Task, ...]


class Study(Noun):
    """A study. ``base`` is a scenario's data; see ``load_study`` for the form of a file."""

    name: str = "study"
    description: str = ""
    base: dict[str, Any]
    vary: dict[str, Any] = Field(default_factory=dict)
    """Values by dotted path, crossed: a list or a range each."""
    zip: tuple[dict[str, Any], ...] = ()
    """Groups of paths whose values change together."""
    all_layouts: AllLayouts | None = None
    """Search these beside the base's own layouts."""
    constraints: tuple[str, ...] = ()
    """Conditions that a row must meet to count in tables and fronts; rows that do not are kept."""
    objectives: tuple[str, ...] = ("tokens_per_s_per_user", "output_tokens_per_s_per_gpu")
    """Columns of which more is better."""

    @cached_property
    def axes(self) -> list[variation.Axis]:
        """What varies. Raises ``InputError`` if it cannot be read."""
        return variation.axes(self.vary, self.zip)

    @cached_property
    def scenarios(self) -> list[variation.Axis]:
        """The axes that change more than the lengths of a step."""
        return [axis for axis in self.axes if not set(axis.paths) <= set(WORKLOAD)]

    @cached_property
    def lengths(self) -> list[variation.Axis]:
        """The axes that one pass over arrays prices at once."""
        return [axis for axis in self.axes if set(axis.paths) <= set(WORKLOAD)]

    @cached_property
    def columns(self) -> dict[str, str]:
        """Names of the columns that say where a row stands among the scenarios, by path."""
        return {path: path for axis in self.scenarios for path in axis.paths}

    @cached_property
    def conditions(self) -> list[Condition]:
        """The constraints. Raises ``InputError`` if one cannot be read."""
        return [parse_condition(text, [*self.columns, *PLACE, *FIGURES]) for text in self.constraints]

    def data(self, change: variation.Change = ()) -> dict[str, Any]:
        """The data of one scenario of the study, at the first of its lengths."""
        first = tuple(pair for axis in self.lengths for pair in next(axis.changes()))
        base = dict(self.base)
        if self.all_layouts and not base.get("layouts"):
            base["layouts"] = [{"strategy": "tp", "tp": 1}]
        return apply(base, dict(first + change))

    def scenario(self, change: variation.Change = ()) -> Scenario:
        """One scenario of the study. Raises ``InputError`` if it cannot be."""
        return _scenario(json.dumps(self.data(change), sort_keys=True, default=_plain))

    def layouts(self, scenario: Scenario) -> list[Strategy]:
        """The scenario's own layouts and those searched, each once."""
        own = list(scenario.layouts) if self.base.get("layouts") or not self.all_layouts else []
        if self.all_layouts:
            own += _searched(self.all_layouts, scenario.model, scenario.workload.phase)
        return list(dict.fromkeys(own))

    @property
    def points_of_a_layout(self) -> int:
        """How many lengths each layout is priced at."""
        return variation.size(self.lengths)

    def tasks(self) -> Iterator[Task]:
        """Everything to price, in order; one task for a scenario that cannot be, for its row with the reason."""
        each = max(1, min(LAYOUTS_OF_A_TASK, POINTS_OF_A_PART // self.points_of_a_layout))
        for change in variation.product(self.scenarios):
            try:
                count = len(self.layouts(self.scenario(change)))
            except InputError:
                count = 1
            for first in range(0, count, each):
                yield Task(change, first, min(first + each, count))

    def parts(self) -> Iterator[Part]:
        """Tasks together, up to some thousand points and some dozen layouts."""
        part: list[Task] = []
        layouts = 0
        most = max(1, min(LAYOUTS_OF_A_PART, POINTS_OF_A_PART // self.points_of_a_layout))
        for task in self.tasks():
            size = task.last - task.first
            if part and layouts + size > most:
                yield tuple(part)
                part, layouts = [], 0
            part.append(task)
            layouts += size
        if part:
            yield tuple(part)

    def count(self) -> tuple[int, int, int]:
        """Parts, layouts and points of the whole study."""
        parts = layouts = 0
        for part in self.parts():
            parts += 1
            layouts += sum(task.last - task.first for task in part)
        return parts, layouts, layouts * self.points_of_a_layout

    def resolved(self) -> dict[str, Any]:
        """The study as plain data that ``Study.model_validate`` reads."""
        return self.model_dump(mode="json", exclude_none=True)

    @property
    def digest(self) -> str:
        """Identifies the points of a study."""
        return hashlib.sha256(json.dumps(self.resolved(), sort_keys=True).encode()).hexdigest()


@lru_cache(maxsize=32)
def _scenario(data: str) -> Scenario:
    return parse_scenario(json.loads(data))


def _plain(value: Any) -> Any:
    """What JSON cannot write: a model that was changed, or a tuple of something."""
    return value.model_dump(mode="json", exclude_none=True) if isinstance(value, Noun) else list(value)


@lru_cache(maxsize=32)
def _searched(search: AllLayouts, model: Any, phase: Any) -> tuple[Strategy, ...]:
    return tuple(search.find(model, phase))


def load_study(path: str | Path) -> Study:
    """Read a study file, or a shipped study by its bare name.

    ``base`` is the path or name of a scenario (relative to the file), or a scenario's keys.

    Raises
    ------
    ScenarioError
        With every problem, each with ``file:line:col``.
    """
    document = read_file(find_study(path), _FILE)
    return _study(document, Path(document.name).parent)


def _study(document: Document, folder: Path) -> Study:
    data = {"name": Path(document.name).stem, **document.data}
    problems = list(document.problems)
    try:
        data["base"] = _base(data.get("base"), folder)
        study = read(Study, data)
        problems += check(study)
    except InputError as error:
        problems += error.problems
    if problems:
        raise ScenarioError([document.place(p) for p in problems])
    return study


def check(study: Study) -> list[Problem]:
    """What is wrong with a study as a whole: axes, constraints, objectives, and a first scenario that cannot be."""
    found: list[Problem] = []
    try:
        first = next(variation.product(study.scenarios))
    except InputError as error:
        return list(error.problems)
    for key, texts in (("constraints", study.constraints), ("objectives", study.objectives)):
        for i, text in enumerate(texts):
            try:
                parse_condition(text if key == "constraints" else f"{text} > 0", [*study.columns, *PLACE, *FIGURES])
            except InputError as error:
                found += [p._replace(key=f"{key}.{i}") for p in error.problems]
    try:
        study.layouts(study.scenario(first))
    except InputError as error:
        found += [p if p.where else p._replace(key=f"base.{p.key}".rstrip(".")) for p in error.problems]
    return found


def _base(said: Any, folder: Path) -> dict[str, Any]:
    """A scenario's data: as written, or of the file that it names, with paths made absolute."""
    if isinstance(said, Mapping):
        return dict(said)
    if not isinstance(said, str):
        text = f"must be the path or name of a scenario, or a scenario's keys, not {show(said)}"
        raise InputError(Problem(text, "base"))
    path = folder / said if (folder / said).is_file() else find_scenario(said)
    document = read_file(path)
    if document.problems:
        raise InputError([document.place(p) for p in document.problems])
    data = dict(document.data)
    for key in ("model", "topology"):
        if isinstance(data.get(key), str) and (path.parent / data[key]).exists():
            data[key] = str((path.parent / data[key]).resolve())
    return data
