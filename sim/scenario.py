"""A scenario: one question about one model on one machine, asked of several layouts.

A file is flat YAML; every problem in it is reported at once, with ``file:line:col`` of the key. What may be
left out is filled in and written out by ``Scenario.resolved``:

* ``topology``: the machine that the GPU usually comes in (``sim.scenario_parts.default_topology``);
* ``precision.weights``: the format that the checkpoint ships its weights in, else bf16;
* ``usable_memory``: 0.9 of the capacity (SGLang and TensorRT-LLM use about 0.9, vLLM 0.92).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, SerializeAsAny, ValidationError, ValidationInfo, field_validator, model_validator

from sim.catalog.gpus import gpu_names, load_gpu
from sim.catalog.models import load_model, model_names
from sim.catalog.scenarios import find_scenario
from sim.conditions import Conditions, EngineName, Fault, Source, Traffic
from sim.documents import read_file
from sim.errors import InputError, Problem, ScenarioError
from sim.explain import explain, show, unknown_key
from sim.hardware import Gpu
from sim.model import Model
from sim.noun import Noun
from sim.planner.settings import PlanSettings
from sim.replays.fleet import Disaggregation
from sim.replays.requests import Requests, Slo
from sim.replays.scheduler import Scheduler
from sim.scenario_parts import Parts, layout_problems
from sim.speculation import Speculation
from sim.strategy import Strategy
from sim.topology import Topology
from sim.variants import apply, expand, label
from sim.workload import Precision, Workload

REQUIRED = ("model", "gpu", "workload", "layouts")
SERVING = ("requests", "scheduler", "slo", "disaggregation", "plan")
SIMPLE = ("name", "description", "usable_memory", "granularity")


class Variant(Noun):
    """A scenario with some fields changed."""

    label: str
    """What is changed, in words."""
    values: dict[str, Any]
    """By path, as written."""
    scenario: Scenario


class Scenario(Noun):
    """A model, a machine, the work of one step and the layouts to compare. Immutable; may be pickled."""

    name: str = Field("scenario", min_length=1, max_length=200)
    """The question it answers; the title of the answer."""
    description: str = ""
    model: Model
    gpu: Gpu
    topology: SerializeAsAny[Topology]
    precision: Precision = Precision()
    workload: Workload
    speculation: Speculation | None = None
    """Who drafts the tokens of a decode step; its query tokens follow from it."""
    layouts: tuple[SerializeAsAny[Strategy], ...] = Field(min_length=1)
    usable_memory: Annotated[float, Field(gt=0, le=1)] = 0.9
    """Fraction of the GPU's memory that an engine uses."""
    granularity: Literal["folded", "ranks", "flows"] = "folded"
    """Simulate one rank of each class, or every rank (the same answer), or every rank with messages sharing links."""

    engine: EngineName = "trtllm"
    """Whose kernels run."""
    kernels: Source = "fitted"
    """Times of compute kernels from fitted models, or from measured tables where these cover a shape."""
    collectives: dict[str, str | tuple[str, ...]] = Field(default_factory=dict)
    """Forced algorithm, kernel or library by kind of collective: ``{all_reduce: ring}``."""
    faults: tuple[Fault, ...] = ()
    """Parts of the machine that are gone or slow."""
    background: tuple[Traffic, ...] = ()
    """Messages of others on the same links."""

    variants: tuple[Variant, ...] = ()
    """What runs instead, where fields are varied (``vary`` in a file)."""
    requests: Requests | None = None
    """What ``replay`` and ``plan`` answer."""
    scheduler: Scheduler | None = None
    """How instances batch; left out, the defaults of ``engine``."""
    slo: Slo | None = None
    """What requests must keep."""
    disaggregation: Disaggregation | None = None
    """Prefill on instances of their own."""
    plan: PlanSettings | None = None
    """What ``plan`` searches."""

    @field_validator("name", "description")
    @classmethod
    def _printable(cls, value: str, info: ValidationInfo) -> str:
        lines = value.split("\n") if info.field_name == "description" else [value]
        if not all(line.isprintable() for line in lines) or value.isspace():
            raise ValueError("must be printable text" + " on one line" * (info.field_name == "name"))
        return value

    @field_validator("usable_memory", mode="before")
    @classmethod
    def _no_flag(cls, value: Any) -> Any:
        if isinstance(value, bool):
            raise ValueError(f"must be a fraction such as 0.9, not {show(value)}")
        return value

    @model_validator(mode="after")
    def _layouts_exist(self) -> Scenario:
        found = list(layout_problems(self.layouts, self.model, self.workload.phase, self.topology))
        if found:
            raise ValueError("\n".join(map(str, found)))
        if self.speculation and self.workload.query_tokens != 1 + self.speculation.draft_tokens:
            raise ValueError("query_tokens differs from 1 + the draft tokens of speculation")
        return self

    @property
    def conditions(self) -> Conditions:
        """What the machine is up against."""
        return Conditions(**{name: getattr(self, name) for name in Conditions.model_fields})

    @property
    def each(self) -> list[tuple[str, Scenario]]:
        """What is to run, each with a label: the variants, or the scenario itself."""
        return [(variant.label, variant.scenario) for variant in self.variants] or [("", self)]

    def adjusted(self, **fields: Any) -> Scenario:
        """With other fields, in every variant too."""
        variants = tuple(v.model_copy(update={"scenario": v.scenario.adjusted(**fields)}) for v in self.variants)
        return self.model_copy(update={"variants": variants} | fields)

    def layout(self, tag: str) -> Strategy:
        """Return the layout with this tag.

        Raises
        ------
        ScenarioError
            If there is none; lists the tags.
        """
        for layout in self.layouts:
            if layout.label == tag:
                return layout
        tags = ", ".join(layout.label for layout in self.layouts)
        raise ScenarioError(f"no layout has the tag {show(tag)}; choose one of {tags}")

    def _resolved_speculation(self) -> dict[str, Any]:
        said = self.speculation
        if said is None:
            return {}
        data: dict[str, Any] = said.model_dump(mode="json", exclude_none=True, exclude={"model", "layout"})
        if said.model:
            data["model"] = _by_name(said.model, load_model, model_names())
        if said.layout:
            data["layout"] = {"strategy": said.layout.kind, **_plain(said.layout)}
        return {"speculation": data}

    def resolved(self) -> dict[str, Any]:
        """Return the scenario with every default written out, as plain data that ``parse_scenario`` reads.

        Models and GPUs of the catalogue are named, all others are written in full.
        """
        model, gpu = _by_name(self.model, load_model, model_names()), _by_name(self.gpu, load_gpu, gpu_names())
        fixed = {"name": self.name, "description": self.description, "model": model, "gpu": gpu}
        return {
            **fixed,
            "topology": _plain(self.topology),
            "precision": _plain(self.precision.resolve(self.model)),
            "workload": _plain(self.workload),
            **self._resolved_speculation(),
            "usable_memory": self.usable_memory,
            "granularity": self.granularity,
            **_plain(self.conditions),
            **({"vary": [v.values for v in self.variants]} if self.variants else {}),
            **{name: _plain(part) for name in SERVING if (part := getattr(self, name)) is not None},
            "layouts": [{"strategy": layout.kind, **_plain(layout)} for layout in self.layouts],
        }


def _plain(noun: Noun) -> dict[str, Any]:
    return noun.model_dump(mode="json", exclude_none=True)


def _by_name(noun: Any, load: Callable[[str], Any], catalogue: Sequence[str]) -> str | dict[str, Any]:
    """The name, if the catalogue has exactly this; a file or folder of that name does not count."""
    return str(noun.name) if noun.name in catalogue and load(noun.name) == noun else _plain(noun)


def load_scenario(path: str | Path) -> Scenario:
    """Read a scenario file, or a shipped scenario by its bare name.

    Raises
    ------
    ScenarioError
        With every problem of the file, each with ``file:line:col``.
    """
    path = find_scenario(path)
    document = read_file(path)
    parts = Parts(path.parent, document.problems)
    scenario = _assemble({"name": path.stem} | document.data, parts)
    if scenario is None:
        raise ScenarioError(sorted(map(document.place, parts.problems), key=_line))
    return scenario


def parse_scenario(data: dict[str, Any], base: Path | None = None) -> Scenario:
    """Build a scenario from the data of a file; nouns may stand in for their data.

    Parameters
    ----------
    base
        Folder from which a relative path to a model starts.

    Raises
    ------
    ScenarioError
        With every problem.
    """
    if not isinstance(data, dict):
        raise ScenarioError(f"must be keys such as model, gpu and layouts, not {show(data)}")
    parts = Parts(base)
    scenario = _assemble(data, parts)
    if scenario is None:
        raise ScenarioError(parts.problems)
    return scenario


def _assemble(data: dict[str, Any], parts: Parts) -> Scenario | None:
    """Return the scenario, or ``None`` after noting every problem in ``parts``."""
    known = ["vary" if key == "variants" else key for key in Scenario.model_fields]
    for key in data:
        if key not in known:
            parts.note(Problem(unknown_key(key, known), str(key)))
    for key in REQUIRED:
        if data.get(key) is None and not (key == "workload" and data.get("requests") is not None):
            parts.note(Problem(f"is missing; a scenario needs {', '.join(REQUIRED)}", key))
    fields = {key: value for key, value in data.items() if key in SIMPLE} | parts.read(data)
    try:
        scenario = Scenario.model_validate(fields)
    except ValidationError as error:
        for problem in explain(error, Scenario, fields):
            if problem.key in SIMPLE or not parts.problems:  # the other parts have been explained already
                parts.note(problem)
        return None
    if data.get("vary") is not None:
        found = parts.part("vary", data, lambda d: _variants(d, parts.base))
        scenario = scenario.model_copy(update={"variants": tuple(found or ())})
    return None if parts.problems else scenario


def _variants(data: dict[str, Any], base: Path | None) -> list[Variant]:
    """Every variant as a scenario. Raises ``InputError``, with the variant in front of each problem."""
    found: list[Variant] = []
    problems: list[Problem] = []
    for number, values in enumerate(expand(data["vary"]), 1):
        name = label(values)
        if any(variant.label == name for variant in found):  # lists and mappings are not written out
            name = f"{name} ({number})"
        try:
            scenario = parse_scenario(apply(data, values, base), base)
        except InputError as error:
            problems += [Problem(f"{name}: {p.key}: {p.message}".replace(": : ", ": "), "vary") for p in error.problems]
        else:
            found.append(Variant(label=name, values=values, scenario=scenario))
    if problems:
        raise ScenarioError(problems)
    return found


def _line(problem: str | Problem) -> tuple[int, int]:
    """Sort key: problems in the order of the file, those of other files first."""
    where = problem.where if isinstance(problem, Problem) else ""
    _, line, column = ("", "", *where.rsplit(":", 2))[-3:]
    return (int(line), int(column)) if line.isdigit() and column.isdigit() else (0, 0)
