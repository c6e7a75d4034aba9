"""The explanation of a launch as text."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap

from sim.launch.capacity import Capacity
from sim.launch.explain import Explanation
from sim.report import LayoutReport
from sim.units import format_bytes

GIB = 2**30


def render(found: Explanation, width: int = 120) -> str:
    """Return the text of an explanation."""
    return "\n".join(_lines(found, width)) + "\n"


def render_capacity(found: Capacity) -> str:
    """Return the line that the engine will log, with its range."""
    return (
        f"{found.line}\n{found.low:,} to {found.high:,} expected; {found.bytes_per_token:,.0f} bytes a token and rank, "
        f"{found.cache_bytes / GIB:.2f} GiB a rank ({found.engine} memory policy {found.version})\n"
        f"Maximum concurrency for {found.length:,} tokens per request: {found.concurrency:.2f}x\n"
        + (f"{found.pools} caches of this size: {found.tokens * found.pools:,} tokens\n" if found.pools > 1 else "")
    )


def _bullet(text: str, width: int) -> list[str]:
    return wrap(text, width, initial_indent="• ", subsequent_indent="  ", break_on_hyphens=False)


def _lines(found: Explanation, width: int) -> Iterator[str]:
    launch = found.launch
    s, layout = launch.settings, launch.layout
    name = layout.label if layout else "no layout"
    yield f"{launch.model.name} · {found.gpu} on {found.topology} · {s.engine} · {name} on {launch.gpus} GPUs"
    formats = launch.precision
    yield f"weights {formats.weights} · KV {formats.kv_cache} · activations {formats.activations}"
    for reason in launch.reasons:
        yield from _bullet(f"cannot exist: {reason}", width)
    for rule in launch.broken:
        effect = {"refuses": "refuses it", "unchecked": "does not notice", "advises": "advises against it"}[rule.effect]
        yield from _bullet(f"{rule.engine} {effect} ({rule.rule}): {rule.text}", width)
    if found.report:
        yield ""
        yield "Layout"
        for text in _layout(found.report):
            yield from _bullet(text, width)
    if found.capacity:
        yield ""
        yield "Memory of the rank with the least room"
        for text in _memory(found.capacity):
            yield from _bullet(text, width)
        yield ""
        yield "The engine will log"
        yield from render_capacity(found.capacity).splitlines()
    if found.report:
        step = found.report.step
        yield ""
        yield f"One decode step of {found.batch} sequences of {found.context:,} tokens"
        yield from _bullet(
            f"{1000 * step.seconds:.1f} ms ({1000 * step.low_seconds:.1f} to {1000 * step.high_seconds:.1f}), floor "
            f"{1000 * step.floor_seconds:.1f} ms; most goes to {step.bottleneck}",
            width,
        )
    if found.better:
        yield ""
        yield "Other layouts of the same GPUs"
        for better in found.better:
            text = f"{better.tag}: {better.why} ({better.tokens:,} tokens, {1000 * better.seconds:.1f} ms)"
            yield from _bullet(text, width)
            yield f"  {better.command}"
            yield from (f"    {line}" for line in better.options.splitlines())
    remarks = [*launch.notes, *(f"not used: {', '.join(s.ignored)}" for _ in [0] if s.ignored)]
    if remarks:
        yield ""
        yield "Notes"
        for text in remarks:
            yield from _bullet(text, width)


def _layout(report: LayoutReport) -> Iterator[str]:
    kv = report.kv
    yield (
        f"KV cache: {kv.duplication:.2f} copies; {kv.heads_per_rank} KV head{'s' * (kv.heads_per_rank != 1)} on a "
        f"rank, {kv.bytes_per_token_per_rank:,} bytes of a token that it holds"
    )
    yield f"weights: {report.weights.duplication:.2f} copies, {format_bytes(report.weights.bytes_per_rank)} on a rank"
    yield from report.reasons


def _memory(found: Capacity) -> Iterator[str]:
    usable = found.capacity_bytes / GIB
    yield f"{usable:.2f} GiB that CUDA shows, of which the engine takes {found.fraction:.3f}"
    weights, overhead = found.weights_bytes / GIB, found.overhead_bytes / GIB
    yield f"weights {weights:.2f} GiB, libraries, profiling step and graphs {overhead:.2f} GiB"
    left = found.cache_bytes / GIB
    yield f"left for the cache: {left:.2f} GiB" + ("; weights and overhead do not fit" if left <= 0 else "")
    if not found.fits and found.tokens:
        yield (
            f"one sequence of {found.length:,} tokens does not fit: {found.tokens:,} are the most; the engine refuses "
            "to start, or shortens what it accepts"
        )
