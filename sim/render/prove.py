"""Proofs as text for a terminal: what was executed, what was counted, and the verdict of each layout."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import RenderableType
from rich.text import Text

from sim.proof.result import Proof
from sim.render.table import WIDEST, Column, bullets, table, to_text
from sim.run import Proofs

_COLUMNS = (
    Column("layout", right=False),
    Column("ranks"),
    Column("max\nerror"),
    Column("bytes held\ncounted"),
    Column("\nclaimed"),
    Column("bytes sent\ncounted"),
    Column("\nclaimed"),
    Column("KV copies\ncounted"),
    Column("\nclaimed"),
    Column("verdict", right=False),
)


def render_prove(proofs: Proofs, width: int = WIDEST, color: bool = False) -> str:
    """Return the table of proofs, the first difference of each that fails, and what was scaled down.

    Parameters
    ----------
    width
        Columns of the terminal.
    color
        Whether to write ANSI escapes.
    """
    return to_text(_parts(proofs), width, color)


def _parts(proofs: Proofs) -> Iterable[RenderableType]:
    yield Text(proofs.scenario, style="bold")
    steps = max((proof.steps for proof in proofs.layouts), default=0)
    yield Text(f"every layout executed with random numbers, up to {steps} steps, against one process without any cut")
    yield Text()
    yield table(_COLUMNS, [_row(proof) for proof in proofs.layouts])
    failed = [f"{p.tag}: {p.difference}" for p in proofs.layouts if not p.ok]
    if failed:
        yield Text()
        yield Text("Differences", style="bold")
        yield bullets(failed)
    yield Text()
    yield Text("Scaled down", style="bold")
    yield bullets(_scaling(proofs.layouts))


def _row(proof: Proof) -> list[Text]:
    verdict = Text("exact", style="green") if proof.ok else Text("DIFFERS", style="bold red")
    cells = [
        proof.tag,
        f"{proof.ranks}",
        f"{proof.max_relative_error:.0e}",
        f"{proof.held_bytes:,}",
        f"{proof.claimed_held_bytes:,}",
        f"{proof.sent_bytes:,}",
        f"{proof.claimed_sent_bytes:,}",
        f"{proof.duplication_counted:.2f}x",
        f"{proof.duplication_claimed:.2f}x",
    ]
    return [*map(Text, cells), verdict]


def _scaling(proofs: Iterable[Proof]) -> list[str]:
    """What was scaled, with the layouts it is the same for."""
    groups: dict[str, list[str]] = {}
    for proof in proofs:
        groups.setdefault(", ".join(f"{what} {how}" for what, how in proof.scaling.items()), []).append(proof.tag)
    lines = [f"{', '.join(tags)}: {text}" if len(groups) > 1 else text for text, tags in groups.items()]
    kept = "query heads, KV heads, experts and all degrees are the model's own; biases and attention sinks are left out"
    return [*lines, kept]
