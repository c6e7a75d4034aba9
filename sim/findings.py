"""Say why: one line per finding, each with the figure behind it, and what a result leaves out.

Findings are read off the placement and the report, never off a strategy's name, so that a third party's layout gets
the same sentences.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import groupby, zip_longest

from sim.evaluate import Evaluation
from sim.model import Attention, Model, MoeFfn
from sim.report import LayoutReport, StepReport
from sim.timing import BUBBLE, WAITING
from sim.uncertainty import distinct
from sim.units import format_bytes, format_count, format_seconds
from sim.workload import Workload

NOTABLE = 0.05  # parts of a step below this are not worth a sentence


def _fraction(copies: float) -> str:
    """The part of all bytes that are copies, in words."""
    part = Fraction(1 - 1 / copies).limit_denominator(64)
    words = {Fraction(1, 2): "half", Fraction(2, 3): "two thirds", Fraction(3, 4): "three quarters"}
    return words.get(part, f"{100 * (1 - 1 / copies):.0f} %")


def _heads(attention: Attention) -> str:
    if attention.kind == "mla":
        return "1 latent KV head"
    return f"{attention.cached_heads} KV head{'s' if attention.cached_heads > 1 else ''}"


def _beside_heads(evaluation: Evaluation) -> str:
    """What is cached beside the heads and may be on every rank that shares a sequence's tokens."""
    kinds, cut = evaluation.placement.model.kinds, evaluation.placement.cut
    index = cut.whole_index and any(k.attention and k.attention.index_bytes for k in kinds)
    state = any(k.linear for k in kinds)
    found = ["index keys"] * index + ["states of linear attention"] * state
    return " and ".join(found) or "KV heads that query heads of several ranks need"


def duplication(evaluation: Evaluation, report: LayoutReport) -> str | None:
    """Why KV bytes are held more than once, or how the layout avoids it where plain TP would not."""
    cut = evaluation.placement.cut
    attentions = [layer.attention for layer in evaluation.placement.model.kinds if layer.attention]
    if not attentions:
        return None
    fewest = min(attentions, key=lambda a: a.cached_heads)
    ranks = cut.mesh.count(cut.axes("attention_heads"))
    sharers = cut.kv_ranks
    each, copies = fewest.cached_heads, report.kv.duplication
    if copies > 1 + 1e-9 and ranks <= each:  # the heads are held once; something beside them repeats
        repeats = _beside_heads(evaluation)
        return f"{report.tag}: {repeats} repeat on ranks that share a sequence: {copies:.2f} copies of all cached bytes"
    if copies > 1 + 1e-9:
        on = ranks / each
        lives = f"each KV head lives on {on:.0f} ranks" if on == int(on) and each > 1 else f"it lives on {ranks} ranks"
        if ranks % each and each % ranks:
            lives = "some live on several ranks"
        stopped = ""
        if evaluation.workload.phase == "decode" and not ranks % each:
            stopped = f", and KV read time stopped falling at {each} ranks"
            if each == 1:
                stopped = ", and more ranks do not make KV reads any shorter"
        return (
            f"{report.tag}: {ranks} ranks share {_heads(fewest)}, so {lives}: {_fraction(copies)} of all KV bytes "
            f"are copies ({copies:.2f}x){stopped}"
        )
    if sharers > 1:
        return f"{report.tag}: every KV byte is held once; {sharers} ranks share each sequence's tokens"
    groups = cut.sequence_groups * evaluation.strategy.replicas
    if groups > 1:
        return f"{report.tag}: every KV byte is held once; each of {groups} groups keeps its own sequences"
    return None


def memory(report: LayoutReport, workload: Workload) -> str | None:
    """What would fit where the scenario does not."""
    if report.feasible:
        return None
    m = report.memory
    context = workload.sequences.longest.length
    fits = []
    if m.max_batch:
        fits.append(f"batch {m.max_batch:,} at this context fits")
    if m.max_context:
        fits.append(f"context {format_count(m.max_context)} at this batch fits")
    if not fits:
        rest = m.weights_bytes + m.reserve_bytes
        if rest > m.capacity_bytes:
            fits.append(f"the weights alone ({format_bytes(m.weights_bytes)} per GPU) leave no room")
        else:
            fits.append(f"not even one sequence of {format_count(context)} tokens fits")
    return f"{report.tag}: does not fit: {report.reasons[0]}; {', '.join(fits)}"


def range_of(step: StepReport) -> str:
    """The range of a step, in the unit of the step itself."""
    unit = format_seconds(step.seconds).split()[1]
    factor = {"s": 1.0, "ms": 1e3, "us": 1e6}.get(unit, 1e9)
    return f"{factor * step.low_seconds:.3g} to {factor * step.high_seconds:.3g}"


def time(report: LayoutReport) -> str:
    """What bounds the step, and how far it is from the floor."""
    step = report.step
    extra = ""
    for name in (WAITING, BUBBLE):
        if (share := step.breakdown.get(name, 0.0) / step.seconds) > NOTABLE:
            extra += f"; {name} takes {100 * share:.0f} %"
    if (share := step.exposed_communication_seconds / step.seconds) > NOTABLE:
        extra += f"; communication that nothing hides takes {100 * share:.0f} %"
    ratio = step.seconds / step.floor_seconds if step.floor_seconds else float("inf")
    return (
        f"{report.tag}: {format_seconds(step.seconds)} a step ({range_of(step)}), {ratio:.1f}x its floor; "
        f"most goes to {step.bottleneck}{extra}"
    )


def order(evaluation: Evaluation, report: LayoutReport) -> str | None:
    """Which order of ranks on GPUs was taken, and what it is worth."""
    if evaluation.strategy.rank_order != "best" or len(evaluation.strategy.orders(evaluation.placement.model)) < 2:
        return None
    slowest = max(choice.seconds for choice in evaluation.choices)
    own = min(c.seconds for c in evaluation.choices if c.order == evaluation.choices[0].order)
    names = " x ".join(map(str, report.rank_order or ()))
    worth = f"{100 * (own / report.step.seconds - 1):.1f} % faster than the default order"
    ratio = slowest / report.step.seconds
    return f"{report.tag}: best rank order is {names}, outermost first: {worth}; the slowest order takes {ratio:.2f}x"


def pieces(evaluation: Evaluation, report: LayoutReport) -> str | None:
    """Into how many pieces the attention phase is cut, where the layout may choose."""
    tried = {choice.pieces for choice in evaluation.choices}
    if len(tried) < 2:
        return None
    if report.pieces == 1:
        return f"{report.tag}: cutting the batch to hide the exchange (HOP-B) does not pay here: one piece is fastest"
    whole = min(c.seconds for c in evaluation.choices if c.pieces == 1)
    gain = 100 * (whole / report.step.seconds - 1)
    return (
        f"{report.tag}: the batch is cut into {report.pieces} pieces to hide the exchange (HOP-B): {gain:.1f} % faster"
    )


def links(report: LayoutReport) -> str | None:
    """The busiest link, where messages share links."""
    if not report.links:
        return None
    link = report.links[0]
    share = 100 * link.busy_seconds / report.step.seconds
    return (
        f"{report.tag}: busiest link {link.source} to {link.target}: {format_bytes(link.bytes)} a step, "
        f"busy {share:.0f} % of it, at most {100 * link.peak_utilisation:.0f} % full"
    )


def conditions(report: LayoutReport, calm: float | None) -> str | None:
    """What faults and other traffic cost, against the same machine without them."""
    if calm is None:
        return None
    extra = 100 * (report.step.seconds / calm - 1)
    costs = f"{extra:.1f} % on top of" if extra >= 0.05 else "nothing on top of"
    return f"{report.tag}: faults and other traffic cost {costs} the {format_seconds(calm)} of a machine without them"


def weights(report: LayoutReport) -> str | None:
    """Weights that are held more than once inside the layout."""
    copies = report.weights.duplication
    if copies < 1 + NOTABLE:
        return None
    extra = (report.weights.held_bytes - report.weights.unique_bytes) / report.gpus
    return f"{report.tag}: weights are held {copies:.2f}x, {format_bytes(extra)} of copies per GPU on average"


def speculation(report: LayoutReport) -> str | None:
    """What drafts make of a token, and where more of them do not pay."""
    s = report.speculation
    if s is None:
        return None
    pays = f"{s.best_draft_tokens} draft tokens are the most that pay"
    if s.best_draft_tokens == max(s.by_draft_tokens):
        pays = f"more than {s.best_draft_tokens} would pay, as far as acceptance is known"
    return (
        f"{report.tag}: {s.draft_tokens} drafts yield {s.tokens_per_step:.2f} tokens a step: "
        f"{format_seconds(s.tpot_seconds)} a token, {s.speedup:.2f}x as fast as without; drafting takes "
        f"{100 * s.draft_seconds / (s.draft_seconds + s.verify_seconds):.0f} %; {pays}"
    )


def first_token(report: LayoutReport) -> str | None:
    """What a prompt's first token waits for."""
    f = report.first_token
    if f is None:
        return None
    cached = f", {format_count(f.cached_tokens)} more were cached" if f.cached_tokens else ""
    steps = f" in {f.steps} steps" if f.steps > 1 else ""
    saved = f"; chunks in flight save {format_seconds(f.overlapped_seconds)}" if f.overlapped_seconds else ""
    share = 100 * f.attention_seconds / (f.seconds + f.overlapped_seconds)
    return (
        f"{report.tag}: first token after {format_seconds(f.seconds)}: {format_count(f.new_tokens)} tokens"
        f"{steps}{cached}; attention takes {share:.0f} %{saved}"
    )


def ranking(evaluations: Sequence[Evaluation], reports: Sequence[LayoutReport]) -> Iterator[str]:
    """Which layout is best at what, among those that fit, and which ones come too close to tell."""
    fit = [r for r in reports if r.feasible]
    if not fit:
        yield "No layout fits: see each one's largest batch and longest context"
        return
    if len(reports) == 1:
        return
    fast = min(fit, key=lambda r: r.step.seconds)
    busy = max(fit, key=lambda r: r.output_tokens_per_s_per_gpu)
    roomy = max(reports, key=lambda r: r.memory.max_batch / r.gpus)
    latency = f"{format_seconds(fast.step.seconds)} a step, {fast.tokens_per_s_per_user:.1f} tokens/s/user"
    of = dict(zip((r.tag for r in reports), evaluations, strict=True))
    close = [r.tag for r in fit if r is not fast and not distinct(of[fast.tag].shares, of[r.tag].shares)]
    call = f"; too close to call: {', '.join(close)}" if close else ""
    yield f"Lowest latency: {fast.tag} ({latency}){call}"
    yield f"Most work per GPU at this batch: {busy.tag} ({busy.output_tokens_per_s_per_gpu:,.1f} output tokens/s/GPU)"
    if roomy.memory.max_batch:
        yield f"Most room per GPU: {roomy.tag} (batch up to {roomy.memory.max_batch:,} on {roomy.gpus} GPUs)"


def findings(
    evaluations: Sequence[Evaluation], reports: Sequence[LayoutReport], calm: Sequence[float] = ()
) -> tuple[str, ...]:
    """All findings: the ranking first, then each layout's own. ``calm`` are the steps without faults and others."""
    lines = list(ranking(evaluations, reports))
    for evaluation, report, without in zip_longest(evaluations, reports, calm):
        found = [
            duplication(evaluation, report),
            memory(report, evaluation.workload),
            weights(report),
            order(evaluation, report),
            pieces(evaluation, report),
            conditions(report, without),
            links(report),
            first_token(report),
            speculation(report),
            time(report),
        ]
        lines += [line for line in found if line]
    return tuple(lines)


def sweep_findings(evaluations: Sequence[Evaluation], reports: Sequence[LayoutReport]) -> tuple[str, ...]:
    """What a sweep shows: the fastest layout of each variant, and what drafts and prompts make of each row."""
    if len({r.variant for r in reports}) == len(reports):
        lines = list(ranking(evaluations, reports))
    else:
        lines = []
        for variant, several in groupby(reports, key=lambda r: r.variant):
            fit = sorted((r for r in several if r.feasible), key=lambda r: r.step.seconds)
            times = [f"{r.tag.removesuffix(variant).strip()} ({format_seconds(r.step.seconds)})" for r in fit[:3]]
            lines.append(f"{variant}: fastest {', then '.join(times)}" if times else f"{variant}: no layout fits")
    return (*lines, *(line for r in reports for line in (first_token(r), speculation(r)) if line))


def left_out(evaluations: Sequence[Evaluation], model: Model, workload: Workload) -> tuple[str, ...]:
    """What the results of this scenario do not contain."""
    lines = []
    if workload.phase == "decode":
        lines.append("requests coming and going: a step has exactly this batch, no prefill runs beside it")
    if workload.phase != "prefill":
        lines.append("how batches are padded for CUDA graphs, and the last partly filled block of a paged cache")
    if workload.query_tokens > 1 and not evaluations[0].drafting:
        lines.append("acceptance and drafting: each step counts one token per sequence, whatever is accepted")
    if any(isinstance(layer.ffn, MoeFfn) for layer in model.kinds):
        even = evaluations[0].machine.kernels.engine.routing.even
        chosen = "tokens choose experts evenly" if even else "tokens choose as unevenly as in measured runs on average"
        lines.append(f"which experts a prompt prefers: {chosen}; the expected number of distinct experts is read")
    if any(e.strategy.two_batch_overlap or max(e.strategy.pieces(2)) > 1 for e in evaluations):
        lines.append("slower kernels while communication runs beside them on the same GPU")
    fabric = evaluations[0].machine.collectives.fabric
    kinds = {kind for _, kind in fabric.graph.nodes(data="kind")}
    if evaluations[0].granularity != "flows":
        lines.append("messages of several groups on one link at a time; --granularity flows lets them share it")
    if "ib_switch" in kinds:
        others = "" if evaluations[0].machine.background else "other traffic on the network, and "
        lines.append(f"{others}adaptive routing: messages take the shortest routes, split evenly")
    lines += evaluations[0].machine.kernels.notes()
    longest = workload.sequences.longest.length
    if model.max_context and longest > model.max_context:
        lines.append(f"what the model does beyond the {model.max_context:,} positions that its checkpoint states")
    return (*lines, *model.not_modelled)
