"""What people do: load a scenario, simulate one layout, compare all of them, prove them."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from sim.advice import advice
from sim.conditions import Conditions
from sim.errors import InputError, LayoutError, ScenarioError
from sim.evaluate import Evaluation
from sim.findings import findings, left_out, sweep_findings
from sim.hardware import Gpu
from sim.kernels import load_constants
from sim.machine import Machine, assemble
from sim.network.constants import load_fabric_constants
from sim.noun import Noun
from sim.placement import Placement
from sim.proof.result import Proof
from sim.report import LayoutReport, Report
from sim.roofline import RooflineReport, roofline
from sim.scenario import Scenario, load_scenario
from sim.strategy import Strategy
from sim.topology import Topology


def load(path: str | Path) -> Scenario:
    """Read and check a scenario file.

    Raises
    ------
    ScenarioError
        With every problem of the file, each with ``file:line:col``.
    """
    return load_scenario(path)


@lru_cache(maxsize=8)
def machine(gpu: Gpu, topology: Topology, conditions: Conditions | None = None) -> Machine:
    """Kernels and collectives of a GPU on a topology; kept, because many layouts run on one machine.

    Raises
    ------
    TopologyError
        If it cannot be built of this GPU, or a fault names what it does not have.
    """
    return assemble(gpu, topology.build(gpu), conditions or Conditions())


def evaluate(scenario: Scenario, layout: Strategy | str) -> Evaluation:
    """One layout of a scenario, by tag or as a strategy; its parts are computed when they are asked for.

    Raises
    ------
    ScenarioError
        If there is no layout with this tag.
    LayoutError
        If the layout cannot exist for this model or needs more GPUs than there are.
    """
    strategy = scenario.layout(layout) if isinstance(layout, str) else layout
    if scenario.granularity != "flows" and (problems := list(scenario.conditions.needs_flows())):
        raise ScenarioError(problems)
    if problems := strategy.check(scenario.model, scenario.workload.phase):
        raise LayoutError(problems)
    if (gpus := strategy.gpus(scenario.model)) > scenario.topology.gpu_count:
        text = f"{strategy.label} needs {gpus} GPUs, the topology ({scenario.topology.kind}) has"
        raise LayoutError(f"{text} {scenario.topology.gpu_count}")
    precision = scenario.precision.resolve(scenario.model)
    return Evaluation(
        Placement(scenario.model, strategy, precision),
        machine(scenario.gpu, scenario.topology, scenario.conditions),
        scenario.workload,
        scenario.usable_memory,
        scenario.granularity,
        speculation=scenario.speculation,
    )


def simulate(scenario: Scenario, layout: Strategy | str) -> LayoutReport:
    """Duplication, memory and step time of one layout. Raises as ``evaluate`` and ``Evaluation.step`` do."""
    return _report(evaluate(scenario, layout))


def compare(scenario: Scenario) -> Report:
    """All layouts of a scenario and of its variants, in its order, with findings and what is left out."""
    from sim import __version__

    evaluations: list[Evaluation] = []
    reports: list[LayoutReport] = []
    calm: list[float] = []
    for variant, one in scenario.each:
        found = [evaluate(one, layout) for layout in one.layouts]
        evaluations += found
        reports += [_report(evaluation).of_variant(variant, len(found) == 1) for evaluation in found]
        if one.faults or one.background:
            healthy = one.model_copy(update={"faults": (), "background": ()})
            calm += [evaluate(healthy, layout).best.seconds for layout in one.layouts]
    said = sweep_findings(evaluations, reports) if scenario.variants else findings(evaluations, reports, calm)
    return Report(
        scenario=scenario.name,
        version=__version__,
        layouts=tuple(reports),
        conditions=tuple(scenario.conditions.words()),
        findings=tuple(said),
        advice=advice(evaluations, reports),
        not_modelled=left_out(evaluations, scenario.model, scenario.workload),
        assumptions=assumptions(scenario),
        resolved=scenario.resolved(),
    )


def _report(evaluation: Evaluation) -> LayoutReport:
    """The report of a layout; what its messages cannot do on this machine is said with its tag."""
    try:
        return evaluation.report()
    except InputError as error:
        tag = evaluation.strategy.label
        raise type(error)([p._replace(message=f"{tag}: {p.message}") for p in error.problems]) from None


def rooflines(scenario: Scenario) -> RooflineReport:
    """FLOPs, bytes and the bound of every operation of every layout."""
    from sim import __version__

    found = tuple(
        roofline(evaluate(one, layout)).of_variant(variant, len(one.layouts) == 1)
        for variant, one in scenario.each
        for layout in one.layouts
    )
    return RooflineReport(scenario=scenario.name, version=__version__, layouts=found)


class Proofs(Noun):
    """The proof of every layout of a scenario."""

    scenario: str
    version: str
    layouts: tuple[Proof, ...]


def prove(scenario: Scenario, seed: int = 0) -> Proofs:
    """Execute every layout of a scenario on a small instance; see ``sim.proof``."""
    from sim import __version__
    from sim.proof import prove as prove_layout

    work = scenario.workload
    proofs = [prove_layout(scenario.model, s, scenario.precision, work.phase, seed) for s in scenario.layouts]
    return Proofs(scenario=scenario.name, version=__version__, layouts=tuple(proofs))


def assumptions(scenario: Scenario) -> dict[str, str]:
    """Where every figure that is not arithmetic comes from."""
    gpu = scenario.gpu
    found = {f"{gpu.name} {key}": source for key, source in gpu.sources.items()}
    found[f"kernel constants {gpu.constants}"] = load_constants(gpu.constants).source
    for name, source in load_fabric_constants().sources.items():
        found[f"collective constants {name}"] = source
    if scenario.model.source:
        found[f"model {scenario.model.name}"] = scenario.model.source
    precision = scenario.precision.resolve(scenario.model)
    attention = "fp8" if precision.kv.bits <= 8 else "bf16"
    found["attention arithmetic"] = f"at the {attention} rate, because the cache is {precision.kv_cache}"
    rate = precision.of("dense_ffn", True).rate
    if rate not in gpu.peak:
        found["matrix rate"] = f"{gpu.name} does not multiply {rate}: the next wider rate it has is taken"
    found["communication buffers"] = (
        "vLLM 0.33.0 custom all-reduce buffer of 8 MiB; DeepEP and TensorRT-LLM expert buffers"
    )
    found["usable memory"] = f"{scenario.usable_memory:g} of the capacity, from the scenario"
    return found
