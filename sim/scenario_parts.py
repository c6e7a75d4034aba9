"""Read the parts of a scenario one by one, so that a wrong part does not hide the problems of the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from sim.catalog.gpus import load_gpu
from sim.catalog.models import load_model
from sim.catalog.strategies import parse_layout, spellings
from sim.catalog.topologies import parse_topology
from sim.conditions import Conditions
from sim.errors import InputError, Problem
from sim.explain import read, show, suggest
from sim.fabric import Fabric
from sim.formats import FORMATS
from sim.hardware import Gpu
from sim.machine import assemble
from sim.model import Model
from sim.noun import Noun
from sim.planner.settings import PlanSettings
from sim.replays.fleet import Disaggregation
from sim.replays.requests import Requests, Slo, typical
from sim.replays.scheduler import parse_scheduler
from sim.speculation import Speculation
from sim.strategy import Strategy
from sim.topology import Topology
from sim.workload import Phase, Precision, Workload

T = TypeVar("T")
N = TypeVar("N", bound=Noun)
MOST_GPUS_BUILT = 1024
"""Larger machines are not built only to see whether they can be."""
LEAST_RATE, MOST_RATE = 1e6, 1e21
"""Bytes or FLOP a second of a GPU; beyond them times are no longer numbers."""
_KERNELS = Path(__file__).parent / "data" / "kernels"


class Parts:
    """The parts of a scenario that could be read, and every problem met on the way.

    Parameters
    ----------
    base
        Folder from which a relative path to a model starts.
    problems
        What was wrong with the file as YAML. A key that has a problem there gets no second one.
    """

    def __init__(self, base: Path | None, problems: Sequence[Problem] = ()):
        self.base = base
        self.problems = list(problems)
        self._reported = {p.key for p in problems if p.key}

    def note(self, problem: Problem) -> None:
        """Add a problem."""
        if problem.key not in self._reported:
            self.problems.append(problem)

    def part(self, key: str, value: Any, read: Callable[[Any], T]) -> T | None:
        """Read the value of one key; ``None`` if it is absent or wrong."""
        if value is None:
            return None
        try:
            return read(value)
        except InputError as error:
            for problem in error.problems:
                complete = problem.where or f"{problem.key}.".startswith(f"{key}.")
                path = ".".join(filter(None, (key, problem.key)))
                self.note(problem if complete else problem._replace(key=path))
        return None

    def read(self, data: dict[str, Any]) -> dict[str, Any]:
        """Return model, gpu, topology, workload, precision, layouts; ``None`` for what is absent or wrong."""
        model = self.part("model", data.get("model"), lambda v: noun(Model, v, lambda n: load_model(n, self.base)))
        gpu = self.part("gpu", data.get("gpu"), lambda v: noun(Gpu, v, load_gpu))
        for problem in _unusable(model, gpu):
            self.note(problem)
        wanted = data.get("topology")
        if wanted is None and gpu:
            wanted = default_topology(gpu)
        topology = self.part("topology", wanted, lambda v: parse_topology(v, self.base))
        said_of_machine = {key: data[key] for key in Conditions.model_fields if data.get(key) is not None}
        conditions = self.part("", said_of_machine, lambda v: noun(Conditions, v))
        self._machine(gpu, topology, conditions, data.get("granularity"))
        serving = self._serving(data)
        requests = serving["requests"]
        workload = self.part("workload", data.get("workload"), lambda v: noun(Workload, v))
        if data.get("workload") is None and requests:
            workload = typical(requests)
        speculation = self.part("speculation", data.get("speculation"), lambda v: _speculation(v, self.base))
        if workload and speculation:
            workload = self.part("workload", workload, lambda w: _with_drafts(w, speculation))
        said = data.get("precision")
        precision = self.part("precision", {} if said is None else said, lambda v: _precision(v, model))
        layouts = self._layouts(data.get("layouts"))
        pools = serving["disaggregation"]
        for problem in pools.prefill.check(model, "prefill") if pools and model else ():
            self.note(problem._replace(key=f"disaggregation.prefill.{problem.key}".rstrip(".")))
        phase = workload.phase if workload else "decode"
        for problem in layout_problems(layouts, model, phase, topology):
            self.note(_as_written(problem, data["layouts"]))
        return {
            "model": model,
            "gpu": gpu,
            "topology": topology,
            "precision": precision,
            "workload": workload,
            "speculation": speculation,
            "layouts": None if None in layouts else layouts,
            **(conditions.model_dump() if conditions else {}),
            **serving,
        }

    def _serving(self, data: dict[str, Any]) -> dict[str, Any]:
        """What a replay needs: requests, scheduler, SLO and pools."""
        return {
            "requests": self.part("requests", data.get("requests"), lambda v: _requests(v, self.base)),
            "scheduler": self.part("scheduler", data.get("scheduler"), parse_scheduler),
            "plan": self.part("plan", data.get("plan"), lambda v: noun(PlanSettings, v)),
            "slo": self.part("slo", data.get("slo"), lambda v: noun(Slo, v)),
            "disaggregation": self.part(
                "disaggregation", data.get("disaggregation"), lambda v: noun(Disaggregation, v)
            ),
        }

    def _machine(
        self, gpu: Gpu | None, topology: Topology | None, conditions: Conditions | None, granularity: Any
    ) -> None:
        """Note why the machine cannot be built, or cannot be as its conditions say."""
        if conditions and topology:
            for problem in conditions.problems(topology.gpu_count):
                self.note(problem)
        if conditions and granularity != "flows":
            for problem in conditions.needs_flows():
                self.note(problem)
        if gpu and topology and topology.gpu_count <= MOST_GPUS_BUILT:
            fabric = self.part("topology", topology, lambda machine: _build(machine, gpu))
            if fabric and conditions and conditions.faults:
                self.part("", conditions, lambda said: assemble(gpu, fabric, said))

    def _layouts(self, value: Any) -> list[Strategy | None]:
        """Every layout that can be read, ``None`` for the others."""
        if value is None:
            return [None]
        if not isinstance(value, (list, tuple)) or not value:
            self.note(Problem(f"must be a list such as [{{strategy: tp, tp: 8}}], not {show(value)}", "layouts"))
            return [None]
        return [self.part(f"layouts.{i}", {} if item is None else item, _layout) for i, item in enumerate(value)]


def default_topology(gpu: Gpu) -> str:
    """Name the machine a GPU usually comes in: NVL72, an NVSwitch box, DGX-1, or a PCIe box."""
    if gpu.nvlink is None or gpu.nvlink.generation.endswith("-bridge"):
        return "pcie-8"
    if gpu.name.startswith("gb"):
        return "nvl72"
    return "dgx1" if gpu.nvlink.generation == "nvlink2" else "hgx-8"


def layout_problems(
    layouts: Sequence[Strategy | None], model: Model | None, phase: Phase, topology: Topology | None
) -> Iterator[Problem]:
    """Yield why layouts cannot exist for this model on this machine, or cannot be told apart.

    ``None`` stands for what could not be read; what depends on it is not checked.
    """
    seen: dict[str, int] = {}
    for i, layout in enumerate(layouts):
        if layout is None:
            continue
        key = f"layouts.{i}"
        found = layout.check(model, phase) if model else []
        for problem in found:
            known = problem.key in (*type(layout).model_fields, "strategy")
            yield problem._replace(key=f"{key}.{problem.key}" if known else key)
        if model and topology and not found:
            gpus, have = layout.gpus(model), topology.gpu_count
            if gpus > have:
                text = f"needs {gpus} GPUs, the topology ({topology.kind}) has {have}"
                yield Problem(f"{text}; choose smaller degrees or a larger topology", key)
            elif (last := _last_gpu(layout)) >= have:
                yield Problem(f"there is no GPU {last}: the topology has 0 to {have - 1}", f"{key}.rank_order")
        if not layout.label.isprintable() or layout.label.isspace():
            yield Problem("must be printable text on one line", f"{key}.tag")
        first = seen.setdefault(layout.label, i)
        if first != i:
            hint = f"give one of them a tag of its own, such as tag: {layout.label}-b"
            yield Problem(f"has the same tag {layout.label!r} as layouts.{first}; {hint}", key)


def _last_gpu(layout: Strategy) -> int:
    """The highest number in a list of GPUs; 0 where a layout has none."""
    order = layout.rank_order if isinstance(layout.rank_order, tuple) else ()
    return max((entry for entry in order if isinstance(entry, int)), default=0)


def noun(cls: type[N], value: Any, load: Callable[[str], N] | None = None) -> N:
    """Read a noun from its fields, or by name. Raises ``InputError``."""
    if isinstance(value, cls):
        return value
    if load and isinstance(value, str):
        return load(value)
    if not isinstance(value, dict):
        example = "a name" if load else f"keys such as {next(iter(cls.model_fields))}"
        raise InputError(f"must be {example}, not {show(value)}")
    return read(cls, value)


def _unusable(model: Model | None, gpu: Gpu | None) -> Iterator[Problem]:
    """Yield what names something that does not exist, or cannot be printed."""
    for key, noun_ in (("model", model), ("gpu", gpu)):
        if noun_ and not noun_.name.isprintable():
            yield Problem("must be printable text on one line", f"{key}.name")
    if model and model.quantisation not in (None, *FORMATS):
        text = f"{show(model.quantisation)} is not a number format; choose one of {', '.join(FORMATS)}"
        yield Problem(text, "model.quantisation")
    if gpu:
        peaks = {f"peak.{rate}": flops for rate, flops in gpu.peak.items()}
        for key, rate in {"bandwidth": gpu.bandwidth, "pcie_bandwidth": gpu.pcie_bandwidth, **peaks}.items():
            if not LEAST_RATE <= rate <= MOST_RATE:
                text = f"must be from {LEAST_RATE:g} to {MOST_RATE:g} a second, not {show(rate)}"
                yield Problem(text, f"gpu.{key}")
    fitted = sorted(path.stem for path in _KERNELS.glob("*.yaml"))
    if gpu and gpu.constants not in fitted:
        text = f"{show(gpu.constants)} has no fitted constants; {suggest(gpu.constants, fitted)}known: "
        yield Problem(text + ", ".join(fitted), "gpu.constants")


def _build(machine: Topology, gpu: Gpu) -> Fabric:
    """Build a machine, to see whether it can be built of this GPU. A plug-in may return anything."""
    fabric = machine.build(gpu)
    if not isinstance(fabric, Fabric):
        raise TypeError(f"build returned {fabric!r} instead of a Fabric")
    if len(fabric) != machine.gpu_count:
        raise TypeError(f"build connects {len(fabric)} GPUs, gpu_count says {machine.gpu_count}")
    return fabric


def _requests(value: Any, base: Path | None) -> Requests:
    """The requests; a trace is looked for beside the scenario."""
    requests = noun(Requests, value)
    if requests.trace and base:
        return requests.model_copy(update={"trace": str(base / requests.trace)})
    return requests


def _layout(value: Any) -> Strategy:
    return value if isinstance(value, Strategy) else parse_layout(value)


def _as_written(problem: Problem, layouts: Any) -> Problem:
    """Name the field of a layout as the user spelled it."""
    _, index, *name = problem.key.split(".")
    item = layouts[int(index)]
    if not name or not isinstance(item, dict):
        return problem
    known = spellings(type(parse_layout(item)))
    written = next((key for key in item if known.get(key) == name[0]), name[0])
    return problem._replace(key=f"layouts.{index}.{written}")


def _speculation(value: Any, base: Path | None) -> Speculation:
    """The draft model and its layout are read as those of the scenario."""
    if isinstance(value, dict):
        parts = Parts(base)
        model = parts.part("model", value.get("model"), lambda v: noun(Model, v, lambda n: load_model(n, base)))
        layout = parts.part("layout", value.get("layout"), _layout)
        if parts.problems:
            raise InputError(parts.problems)
        value = value | {k: v for k, v in (("model", model), ("layout", layout)) if v is not None}
    return noun(Speculation, value)


def _with_drafts(workload: Workload, speculation: Speculation) -> Workload:
    """The step that verifies the drafts. Raises ``InputError`` where the workload says otherwise."""
    tokens = 1 + speculation.draft_tokens
    if workload.phase == "prefill":
        raise InputError("speculation belongs to decode; a prefill has nothing to draft")
    if workload.query_tokens not in (1, tokens):
        text = f"{workload.query_tokens} differs from the {tokens} of speculation; leave it out"
        raise InputError([Problem(text, "query_tokens")])
    fields = {name: getattr(workload, name) for name in Workload.model_fields}
    return read(Workload, fields | {"query_tokens": tokens})


def _precision(value: Any, model: Model | None) -> Precision:
    """Weights that are not said are in the checkpoint's own format."""
    precision = noun(Precision, value)
    return precision.resolve(model) if model else precision
