"""One layout in detail: memory by part, ranks that differ, time by operation, and where constants come from."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import RenderableType
from rich.text import Text

from sim.render.table import GIB, WIDEST, Column, bullets, gib, heading, ms, rate, remarks, table, to_text, tokens
from sim.report import LayoutReport, Report
from sim.units import format_bytes

_BAR = 24
_PARTS = {
    "attention_bytes": "attention weights",
    "dense_ffn_bytes": "dense FFN weights",
    "routed_experts_bytes": "routed experts",
    "shared_experts_bytes": "shared experts",
    "embeddings_bytes": "embeddings, LM head",
    "kv_bytes": "KV cache",
    "activations_bytes": "activations",
    "communication_bytes": "communication buffers",
    "reserve_bytes": "engine reserve",
    "draft_bytes": "draft weights and KV",
}


def render_layout(report: Report, tag: str, width: int = WIDEST, color: bool = False) -> str:
    """Return everything about one layout of a report.

    Raises
    ------
    StopIteration
        If the report has no layout with this tag.
    """
    layout = next(layout for layout in report.layouts if layout.tag == tag)
    return to_text(_detail(report, layout), width, color)


def _detail(report: Report, layout: LayoutReport) -> Iterable[RenderableType]:
    yield from heading(report)
    yield Text("")
    yield Text(f"{layout.tag}: {layout.strategy} on {layout.gpus} GPUs", style="bold")
    yield bullets(_summary(layout))
    yield from _section("Memory of the fullest rank", _memory(layout))
    yield from _section("Time of one step on the slowest rank", _time(layout))
    if layout.step.causes:
        yield from _section("What the step is bound by", _causes(layout))
    yield from _section("Ranks, equal ones together", _ranks(layout))
    if layout.links:
        yield from _section("Busiest links", _links(layout))
    yield from remarks(report)
    if report.assumptions:
        yield from _section("Constants and their sources", bullets(map(": ".join, report.assumptions.items())))


def _section(title: str, content: RenderableType) -> Iterable[RenderableType]:
    yield Text("")
    yield Text(title, style="bold")
    yield content


def _summary(layout: LayoutReport) -> Iterable[str]:
    kv, memory, step = layout.kv, layout.memory, layout.step
    for reason in layout.reasons:
        yield f"does not fit: {reason}"
    yield (
        f"KV cache: {kv.duplication:.2f} copies ({format_bytes(kv.held_bytes)} held, "
        f"{format_bytes(kv.unique_bytes)} unique); per rank {kv.heads_per_rank} KV "
        f"head{'s' * (kv.heads_per_rank != 1)}, {kv.tokens_per_rank:,} tokens, "
        f"{kv.bytes_per_token_per_rank:,} bytes a token"
    )
    if kv.allocator:
        yield (
            f"cache as {kv.allocator} sets it aside: {format_bytes(kv.reserved_bytes_per_rank)} on the fullest rank "
            f"where the model keeps {format_bytes(memory.kv_bytes)}; it counts {kv.charged_bytes_per_token:,.0f} bytes "
            "a token"
        )
    yield (
        f"weights: {layout.weights.duplication:.2f} copies; "
        f"{format_bytes(layout.weights.bytes_per_rank)} on the fullest rank"
    )
    batch, context = (memory.max_batch, memory.max_context)
    yield (
        f"fits: batch {f'up to {batch:,}' if batch else 'none'} at this context, "
        f"context {f'up to {tokens(context)}' if context else 'none'} at this batch"
    )
    yield (
        f"step: {ms(step.seconds)} ms ({ms(step.low_seconds)} to {ms(step.high_seconds)}), "
        f"floor {ms(step.floor_seconds)} ms; "
        f"{rate(layout.tokens_per_s_per_user)} tokens/s/user, "
        f"{rate(layout.output_tokens_per_s_per_gpu)} output tokens/s/GPU; bottleneck: {step.bottleneck}"
    )
    if layout.pieces > 1:
        yield f"the attention phase runs in {layout.pieces} pieces, each one's exchange behind the next"


def _memory(layout: LayoutReport) -> RenderableType:
    memory = layout.memory
    rows = []
    for field, words in _PARTS.items():
        if size := getattr(memory, field):
            rows.append(_row(words, gib(size), size / memory.capacity_bytes))
    rows.append(_row("total", gib(memory.total_bytes), memory.total_bytes / memory.capacity_bytes))
    capacity = f"of {memory.capacity_bytes / GIB:.1f}"
    return table((Column("part", right=False), Column("GiB"), Column(capacity), Column("", right=False)), rows)


def _row(words: str, amount: str, share: float) -> list[Text]:
    return [Text(words), Text(amount), Text(f"{100 * share:.1f} %"), _bar(share)]


def _bar(share: float) -> Text:
    return Text("█" * min(round(_BAR * share), _BAR), style="red" if share > 1 else "cyan")


def _causes(layout: LayoutReport) -> RenderableType:
    """The step once more, by what bounds it."""
    step = layout.step
    rows = [_row(name, ms(seconds), seconds / step.seconds) for name, seconds in step.causes.items()]
    return table((Column("bound by", right=False), Column("ms"), Column("share"), Column("", right=False)), rows)


def _time(layout: LayoutReport) -> RenderableType:
    step = layout.step
    rows = []
    for name, seconds in sorted(step.breakdown.items(), key=lambda item: (-item[1], item[0])):
        how = Text(layout.collectives.get(name, ""))
        rows.append([*_row(name, ms(seconds), seconds / step.seconds if step.seconds else 0.0), how])
    hidden = [name for name in layout.collectives if name not in step.breakdown]
    rows += [[Text(n), Text("hidden"), Text(""), Text(""), Text(layout.collectives[n])] for n in hidden]
    columns = [
        Column("operation", right=False, wraps=True),
        Column("ms"),
        Column("share"),
        Column("", right=False),
        Column("how", right=False, wraps=True),
    ]
    return table(columns, rows)


def _links(layout: LayoutReport) -> RenderableType:
    """Links that carried most; those that did the same on one line."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for link in layout.links:
        figures = (
            format_bytes(link.bytes),
            ms(link.busy_seconds),
            f"{100 * link.busy_seconds / layout.step.seconds:.0f} %",
            f"{100 * link.peak_utilisation:.0f} %",
        )
        alike.setdefault(figures, []).append(f"{link.source} → {link.target}")
    columns = (
        Column("link", right=False, wraps=True),
        Column("bytes each"),
        Column("busy\nms"),
        Column("of the\nstep"),
        Column("at most\nfull"),
    )
    rows = []
    for cells, names in alike.items():
        few = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        rows.append([Text(few), *map(Text, cells)])
    return table(columns, rows)


def _ranks(layout: LayoutReport) -> RenderableType:
    columns = (
        Column("ranks", right=False, wraps=True),
        Column("count"),
        Column("stage"),
        Column("sequences"),
        Column("KV\nheads"),
        Column("KV\ntokens"),
        Column("KV\nGiB"),
        Column("weights\nGiB"),
        Column("total\nGiB"),
        Column("busy\nms"),
    )
    rows = [
        [
            Text(group.ranks.replace(",", ", ")),
            *(Text(f"{n:,}") for n in (group.count, group.stage, group.sequences, group.kv_heads)),
            Text(f"{group.kv_tokens:,}"),
            *(Text(gib(n)) for n in (group.kv_bytes, group.weights_bytes, group.total_bytes)),
            Text(ms(group.busy_seconds)),
        ]
        for group in layout.ranks
    ]
    return table(columns, rows)
