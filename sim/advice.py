"""Rules of the trade that a model or a layout breaks, each with the figure behind it: at most a line per rule.

A rule that several layouts break is said of the one where it weighs most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from sim.evaluate import Evaluation
from sim.lane import Lane
from sim.model import GroupedQueryAttention
from sim.noun import Noun
from sim.ops_compute import Attend, Experts, Project
from sim.program import ComputeOp
from sim.report import LayoutReport
from sim.shapes import Gemm, GroupedGemm
from sim.units import format_seconds

KV_READS, WEIGHT_READS = "KV reads", "weight reads"


class Rules(Noun):
    """Figures of ``data/rules.yaml``."""

    tile: int
    largest_head: int
    notable: float
    idle: float
    sources: dict[str, str]


@cache
def rules() -> Rules:
    """The rules that ship with the package."""
    from ruamel.yaml import YAML

    path = Path(__file__).parent / "data" / "rules.yaml"
    return Rules.model_validate(YAML(typ="safe", pure=True).load(path.read_text("utf-8")))


class Said(NamedTuple):
    """What a rule says of a layout, and how much it weighs."""

    weight: float
    text: str


def advice(evaluations: Sequence[Evaluation], reports: Sequence[LayoutReport]) -> tuple[str, ...]:
    """All advice on a comparison: first on the model, then on layouts."""
    attentions = {layer.attention for e in evaluations for layer in e.placement.model.kinds}
    lines = list(head_dimension(sorted({a.head_dim for a in attentions if isinstance(a, GroupedQueryAttention)})))
    found: dict[Rule, list[tuple[float, str, str]]] = {}
    for evaluation, report in zip(evaluations, reports, strict=True):
        seen = list(_seen(evaluation))
        for rule in (_multiples, _rows, _fixed, _cache):
            if said := rule(evaluation, seen, report):
                found.setdefault(rule, []).append((said.weight, report.tag, said.text))
    for several in found.values():
        _, tag, text = max(several, key=lambda one: one[0])
        others = f" (and {len(several) - 1} more)" if len(several) > 1 else ""
        lines.append(f"{tag}{others}: {text}")
    return tuple(lines)


def head_dimension(sizes: Sequence[int]) -> Iterator[str]:
    """Head dimensions that do not fill tiles, or are too large for them."""
    r = rules()
    for size in sizes:
        if size % r.tile:
            tiles = -(-size // r.tile) * r.tile
            yield f"Head dimension {size} pays for a tile of {tiles}: {100 * (1 - size / tiles):.0f} % of it is idle"
            return
        if size > r.largest_head:
            yield f"Head dimension {size} is above {r.largest_head}: accumulators leave little room for other tiles"
            return


class _Seen(NamedTuple):
    """A compute operation on the rank that ends last."""

    op: ComputeOp
    lane: Lane
    layers: int


Rule = Callable[[Evaluation, Sequence[_Seen], LayoutReport], Said | None]


def _seen(evaluation: Evaluation) -> Iterator[_Seen]:
    for stage, one in enumerate(evaluation.best.passes):
        model = evaluation.stage_model(stage, 0, evaluation.best.pieces, evaluation.best.order)
        lane = model.lane(one.classes.representatives[one.lanes.index(one.critical)])
        for count, pattern in model.patterns():
            yield from (_Seen(op, lane, count) for op in pattern.ops if isinstance(op, ComputeOp))


def _multiples(evaluation: Evaluation, seen: Sequence[_Seen], report: LayoutReport) -> Said | None:
    """The linear layer whose dimensions on a rank waste most of their tiles."""
    tile = rules().tile
    worst: tuple[float, str] = (0.0, "")
    for op, lane, _ in seen:
        if not isinstance(op, Project):
            continue
        shape = op.work(lane).shape
        assert isinstance(shape, Gemm)
        for letter, size in (("N", int(shape.columns)), ("K", int(shape.depth))):
            waste = 1 - size / (-(-size // tile) * tile)
            if size > tile and waste > worst[0]:
                worst = (waste, f"{op.name} has {letter} = {size:,} on a rank")
    waste, text = worst
    if waste < rules().idle:
        return None
    return Said(waste, f"{text}, no multiple of {tile}: {100 * waste:.1f} % of its tiles is idle")


def _rows(evaluation: Evaluation, seen: Sequence[_Seen], report: LayoutReport) -> Said | None:
    """Too few rows for the weights that are read."""
    share = report.step.causes.get(WEIGHT_READS, 0.0) / report.step.seconds
    rows: list[tuple[float, str]] = []
    for op, lane, _ in seen:
        if isinstance(op, (Project, Experts)):
            shape = op.work(lane).shape
            if isinstance(shape, GroupedGemm):
                rows.append((float(shape.rows / shape.held), "rows per expert"))
            elif isinstance(shape, Gemm):
                rows.append((float(shape.rows), "rows"))
    fewest, words = min(rows, default=(0.0, ""))
    if not 0 < fewest < rules().tile or share < rules().notable:
        return None
    text = (
        f"GEMM M is {fewest:.3g} {words}, below the tile of {rules().tile}: weight reads take {100 * share:.0f} % of "
        "the step and would serve a larger batch, or draft tokens, at little extra cost"
    )
    return Said(share, text)


def _fixed(evaluation: Evaluation, seen: Sequence[_Seen], report: LayoutReport) -> Said | None:
    """Attention that is mostly something else than reading the cache: larger groups, or a smaller cache, hardly pay."""
    whole = reading = 0.0
    kernels = evaluation.machine.kernels
    for op, lane, layers in seen:
        if isinstance(op, Attend) and not op.prefill:
            work = op.work(lane)
            whole += layers * kernels.cost(work).seconds
            reading += layers * work.kv_bytes / kernels.gpu.bandwidth
    if whole < rules().notable * report.step.seconds or reading > whole / 2:
        return None
    text = (
        f"attention reads its cache for only {100 * reading / whole:.0f} % of its time, the rest is fixed cost and "
        "arithmetic: a larger group size or a smaller cache would hardly make it faster"
    )
    return Said((whole - reading) / report.step.seconds, text)


def _cache(evaluation: Evaluation, seen: Sequence[_Seen], report: LayoutReport) -> Said | None:
    """What half of the KV reads would be worth."""
    seconds = report.step.causes.get(KV_READS, 0.0)
    if seconds < rules().notable * report.step.seconds:
        return None
    bits = evaluation.placement.precision.kv.bits
    kinds = evaluation.placement.model.kinds
    full = sum(n for layer, n in kinds.items() if layer.attention and not layer.attention.window)
    ways = ["an fp8 cache"] if bits > 9 else ["a 4-bit cache"] if bits > 5 else []
    ways += [f"a window in half of the {full} full layers"] if full > 1 else []
    if not ways:
        return None
    text = f"halving KV reads would save up to {format_seconds(seconds / 2)} a step: {' or '.join(ways)}"
    return Said(seconds / report.step.seconds, text)
