"""Tables for the terminal, from made-up reports: exact text, widths, colours, and hostile names."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.render.layout import render_layout
from sim.render.table import gib, ms, rate, render, subject, tokens
from sim.report import KvReport, LayoutReport, MemoryReport, RankGroup, Report, StepReport, WeightsReport

GIB = 2**30


def layout(tag: str = "tp8", kv_gib: int = 94, copies: float = 2.0, **changes: object) -> LayoutReport:
    weights, reserve, capacity = 28 * GIB, 14 * GIB, 140 * GIB
    total = kv_gib * GIB + weights + reserve
    fits = total <= capacity
    fields = {
        "tag": tag,
        "strategy": "tp",
        "gpus": 8,
        "feasible": fits,
        "reasons": () if fits else ("needs more than there is",),
        "kv": KvReport(
            duplication=copies,
            unique_bytes=376 * GIB,
            held_bytes=round(376 * GIB * copies),
            bytes_per_token_per_rank=48128,
            heads_per_rank=1,
            tokens_per_rank=2**21,
        ),
        "weights": WeightsReport(
            duplication=1.0, unique_bytes=8 * weights, held_bytes=8 * weights, bytes_per_rank=weights
        ),
        "memory": MemoryReport(
            capacity_bytes=capacity,
            weights_bytes=weights,
            attention_bytes=GIB,
            dense_ffn_bytes=0,
            routed_experts_bytes=27 * GIB,
            shared_experts_bytes=0,
            embeddings_bytes=0,
            kv_bytes=kv_gib * GIB,
            activations_bytes=0,
            communication_bytes=0,
            reserve_bytes=reserve,
            total_bytes=total,
            max_batch=67,
            max_context=34394,
        ),
        "step": StepReport(
            seconds=0.0463,
            low_seconds=0.0421,
            high_seconds=0.0512,
            floor_seconds=0.0274,
            breakdown={"attention.core": 0.03, "ffn.all_reduce": 0.0163},
            exposed_communication_seconds=0.0163,
            bottleneck="KV reads (65 %)",
        ),
        "tokens_per_s_per_user": 21.6,
        "output_tokens_per_s_per_gpu": 172.7,
        "ranks": (
            RankGroup(
                ranks="0-7",
                count=8,
                stage=0,
                sequences=64,
                kv_heads=1,
                kv_tokens=2**21,
                kv_bytes=kv_gib * GIB,
                weights_bytes=weights,
                total_bytes=total,
                busy_seconds=0.03,
            ),
        ),
        "collectives": {"ffn.all_reduce": "ring over nvlink", "moe.send": "direct over ib"},
    }
    return LayoutReport.model_validate(fields | changes)


def report(*layouts: LayoutReport, **changes: object) -> Report:
    fields = {"scenario": "Four heads?", "version": "0", "layouts": layouts or (layout(),)}
    return Report.model_validate(fields | changes)


def widest(text: str) -> int:
    return max(map(len, text.split("\n")))


def test_the_comparison_reads_like_this():
    answer = report(
        layout(),
        layout("helix", 47, 1.0, engine_notes=("an engine refuses this",)),
        layout("big", 120),
        findings=("tp8: half of all KV bytes are copies",),
        not_modelled=("weather",),
    )
    limits, times = "     67   34,394", "  46.3   27.4   21.6    173"
    assert render(answer) == "\n".join(
        [
            "Four heads?",
            "",
            "                  KV  KV/GPU  weights  used/have    max      max  step  floor  tok/s  tok/s",
            "layout  GPUs  copies     GiB      GiB        GiB  batch  context    ms     ms  /user   /GPU  bottleneck",
            "─" * 113,
            f"tp8        8   2.00x    94.0     28.0    136/140{limits}{times}  KV reads (65 %)",
            f"helix      8   1.00x    47.0     28.0     89/140{limits}{times}  KV reads (65 %)",
            f"big        8   2.00x   120.0     28.0    162/140{limits}{times}  needs 162 of 140 GiB",
            "A layout that does not fit shows the time it would take if it did.",
            "",
            "Findings",
            "• tp8: half of all KV bytes are copies",
            "",
            "Rules of engines",
            "• helix: an engine refuses this",
            "",
            "Not modelled",
            "• weather",
            "",
        ]
    )


def test_a_narrow_terminal_gets_two_tables_and_loses_no_figure():
    wide, narrow = render(report()), render(report(), width=80)
    assert widest(narrow) <= 80
    for figure in ("2.00x", "94.0", "28.0", "136/140", "34,394", "46.3", "27.4", "21.6", "173", "KV reads (65 %)"):
        assert figure in wide
        assert figure in narrow
    assert narrow.count("layout") == 2


@settings(max_examples=25, deadline=None)
@given(
    st.integers(70, 200),
    st.text(st.characters(codec="utf-8", exclude_categories=["C"]), min_size=1, max_size=60),
    st.integers(0, 10**7),
)
def test_no_line_is_wider_than_the_terminal_or_than_120_columns(width, tag, kv_gib):
    from rich.cells import cell_len

    answer = report(layout(tag, kv_gib), layout("other"))
    for text in (render(answer, width), render_layout(answer, tag, width)):
        assert max(cell_len(line) for line in text.split("\n")) <= min(width, 120)


def test_names_that_look_like_markup_stay_as_they_are():
    assert "[red]x[/red] :smile:" in render(report(layout("[red]x[/red] :smile:")))


def test_colours_only_when_asked_for():
    answer = report(layout(), layout("big", 120))
    assert "\x1b[" not in render(answer)
    assert "\x1b[31m" in render(answer, color=True)


def test_a_layout_just_above_the_capacity_shows_digits_that_differ():
    total = 140 * GIB + 2**25
    memory = layout().memory.model_copy(update={"total_bytes": total})
    assert "needs 140.03 of 140.00 GiB" in render(report(layout(feasible=False, memory=memory)), 200)


def test_other_reasons_than_memory_are_shown():
    assert "no such kernel" in render(report(layout(feasible=False, reasons=("no such kernel",))), 200)


def test_nothing_that_fits_is_written_as_none():
    memory = layout().memory.model_copy(update={"max_batch": 0, "max_context": 0})
    assert render(report(layout(memory=memory))).count("none") == 2


def test_the_detail_of_a_layout_reads_like_this():
    answer = report(layout(pieces=4), assumptions={"h200 bandwidth": "data sheet"})
    text = render_layout(answer, "tp8")
    assert text == (
        "Four heads?\n"
        "\n"
        "tp8: tp on 8 GPUs\n"
        "• KV cache: 2.00 copies (752 GiB held, 376 GiB unique); per rank 1 KV head, 2,097,152 tokens, "
        "48,128 bytes a token\n"
        "• weights: 1.00 copies; 28 GiB on the fullest rank\n"
        "• fits: batch up to 67 at this context, context up to 34,394 at this batch\n"
        "• step: 46.3 ms (42.1 to 51.2), floor 27.4 ms; 21.6 tokens/s/user, 173 output tokens/s/GPU; "
        "bottleneck: KV reads (65 %)\n"
        "• the attention phase runs in 4 pieces, each one's exchange behind the next\n"
        "\n"
        "Memory of the fullest rank\n"
        "part                 GiB  of 140.0\n"
        "───────────────────────────────────────────────────────────\n"
        "attention weights   1.00     0.7 %\n"
        "routed experts      27.0    19.3 %  █████\n"
        "KV cache            94.0    67.1 %  ████████████████\n"
        "engine reserve      14.0    10.0 %  ██\n"
        "total              136.0    97.1 %  ███████████████████████\n"
        "\n"
        "Time of one step on the slowest rank\n"
        "operation           ms   share                    how\n"
        "──────────────────────────────────────────────────────────────────\n"
        "attention.core    30.0  64.8 %  ████████████████\n"
        "ffn.all_reduce    16.3  35.2 %  ████████          ring over nvlink\n"
        "moe.send        hidden                            direct over ib\n"
        "\n"
        "Ranks, equal ones together\n"
        "                                   KV         KV    KV  weights  total  busy\n"
        "ranks  count  stage  sequences  heads     tokens   GiB      GiB    GiB    ms\n"
        "────────────────────────────────────────────────────────────────────────────\n"
        "0-7        8      0         64      1  2,097,152  94.0     28.0  136.0  30.0\n"
        "\n"
        "Constants and their sources\n"
        "• h200 bandwidth: data sheet\n"
    )


def test_the_subject_names_model_machine_work_and_formats():
    resolved = {
        "model": "m",
        "gpu": {"name": "mine", "memory_bytes": 1},
        "topology": {"kind": "cluster", "nodes": 2},
        "workload": {"phase": "decode", "context": [1024, 4096]},
        "precision": {"weights": "fp8", "kv_cache": "bf16"},
    }
    assert subject(resolved) == ("m · mine on cluster-2 · decode of 2 × contexts 1k to 4k · weights fp8 · KV bf16")
    assert subject({}) == ""


@pytest.mark.parametrize(
    ("write", "value", "text"),
    [
        (gib, 5000 * GIB, "5,000"),
        (gib, 11.75 * GIB, "11.8"),
        (gib, 0.5 * GIB, "0.50"),
        (ms, 1.5, "1,500"),
        (ms, 0.0123, "12.3"),
        (ms, 0.00123, "1.23"),
        (rate, 1234.5, "1,234"),
        (rate, 12.34, "12.3"),
        (rate, 0.123, "0.12"),
        (tokens, 99_999, "99,999"),
        (tokens, 2**17 - 1, "127k"),
        (tokens, 2**22 - 1, "3.99M"),
        (tokens, 2**40 - 1, "1,048,575M"),
    ],
)
def test_figures_have_three_digits_and_lengths_are_never_rounded_up(write, value, text):
    assert write(value) == text
