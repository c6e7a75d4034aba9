"""A machine as text for a terminal: its figures, who is joined with whom, and what each collective costs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rich.console import RenderableType
from rich.text import Text

from sim.network.report import Price, TopologyReport
from sim.render.table import WIDEST, Column, bullets, table, to_text
from sim.units import format_bytes, format_seconds

WHAT = {
    "NV": "NVLink, direct or over one switch",
    "XGMI": "Infinity Fabric",
    "relay": "NVLink through other GPUs",
    "PCIE": "PCIe, direct",
    "PIX": "PCIe over one switch",
    "PXB": "PCIe over several switches",
    "PHB": "PCIe over one root complex",
    "NODE": "PCIe over two root complexes of a socket",
    "SYS": "PCIe over the link between sockets",
    "NET": "over the network",
    "none": "not connected",
}
NODES = {
    "gpu": ("GPU", "GPUs"),
    "nvswitch": ("NVSwitch chip", "NVSwitch chips"),
    "nic": ("NIC", "NICs"),
    "pcie_switch": ("PCIe switch", "PCIe switches"),
    "cpu": ("CPU or root complex", "CPUs or root complexes"),
    "ib_switch": ("network switch", "network switches"),
}
"""Kinds of nodes of a fabric, one and several."""


def render_topology(report: TopologyReport, width: int = WIDEST, color: bool = False) -> str:
    """Return figures, matrix, kinds of pairs and costs.

    Parameters
    ----------
    width
        Columns of the terminal; never more than 120 are used.
    color
        Whether to write ANSI escapes.
    """
    return to_text(_parts(report), width, color)


def _parts(report: TopologyReport) -> Iterable[RenderableType]:
    yield Text(report.name, style="bold")
    yield Text(report.description)
    yield Text()
    yield bullets(_figures(report))
    if report.matrix and report.gpus > 1:
        yield Text()
        yield _drawn(report)
    if report.pairs:
        yield Text()
        yield _pairs(report)
    if report.collectives:
        yield Text()
        yield Text(f"Collectives on all {report.gpus} GPUs: time, bus bandwidth, algorithm", style="bold")
        yield _costs(report.collectives)
        yield Text("Sizes and bus bandwidth as nccl-tests counts them; send is from rank 0 to rank 1.", style="dim")
    if report.remarks:
        yield Text()
        yield bullets(report.remarks)


def rate(bytes_per_s: float) -> str:
    """Bytes/s as GB/s."""
    amount = bytes_per_s / 1e9
    return f"{amount:,.0f} GB/s" if amount >= 100 or amount == round(amount) else f"{amount:.3g} GB/s"


def _figures(report: TopologyReport) -> list[str]:
    parts = [f"{count:,} {NODES[kind][count != 1]}" for kind, count in report.nodes.items()]
    servers = f" in {report.servers:,} servers" if report.servers > 1 else ""
    lines = [
        f"{report.gpu}: {', '.join(parts)}{servers}",
        f"egress per GPU, over its fastest links, one direction: {_spread(report.egress_bytes_per_s)}",
        f"degree per GPU, in neighbours: {_counts(report.degree)}",
    ]
    if report.gpus > 1:
        last = report.gpus // 2 - 1
        first = f"ranks 0 to {last}" if last else "rank 0"
        lines.append(f"diameter: {report.diameter} link{'s' * (report.diameter != 1)} on the longest route")
        lines.append(f"bisection: {rate(report.bisection_bytes_per_s)} from {first} to the others, one direction")
    return lines


def _spread(values: Mapping[str, float]) -> str:
    return _grouped({gpu: rate(value) for gpu, value in values.items()})


def _counts(values: Mapping[str, int]) -> str:
    return _grouped({gpu: f"{value:,}" for gpu, value in values.items()})


def _grouped(values: Mapping[str, str]) -> str:
    """One value if it is that of all, else each with the GPUs that have it."""
    groups: dict[str, list[str]] = {}
    for gpu, value in values.items():
        groups.setdefault(value, []).append(gpu)
    if len(groups) == 1:
        return next(iter(groups))
    few = ((value, g if len(g) <= 4 else [*g[:3], f"{len(g) - 3} more"]) for value, g in groups.items())
    return "; ".join(f"{value} ({', '.join(g)})" for value, g in few)


def _drawn(report: TopologyReport) -> RenderableType:
    """The matrix; rows carry the GPU's name, columns its rank."""
    assert report.matrix
    columns = [Column("rank"), Column("GPU", right=False), *(Column(str(i)) for i in range(report.gpus))]
    names = [name if len(name) <= 12 else f"{name[:11]}…" for name in report.labels]
    rows = [
        [Text(str(i)), Text(names[i]), *(Text(cell, style="dim" if cell == "X" else "") for cell in row)]
        for i, row in enumerate(report.matrix)
    ]
    return table(columns, rows)


def _pairs(report: TopologyReport) -> RenderableType:
    several = any(pair.where for pair in report.pairs)
    columns = [Column("link", right=False), *([Column("where", right=False)] if several else [])]
    counted = Column("pairs" if report.all_pairs else "pairs of\ntwo servers")
    columns += [counted, Column("one pair\nalone"), Column("links on\nroute"), Column("what", wraps=True, right=False)]
    rows = []
    for pair in report.pairs:
        name = pair.kind.rstrip("0123456789")
        cells = [pair.kind, *([pair.where] if several else []), f"{pair.pairs:,}"]
        figures = [rate(pair.bytes_per_s), str(pair.hops)] if pair.hops else ["–", "–"]
        rows.append([Text(cell) for cell in [*cells, *figures, WHAT.get(name, "")]])
    return table(columns, rows)


def _costs(collectives: Mapping[str, tuple[Price, ...]]) -> RenderableType:
    sizes = [price.bytes for price in next(iter(collectives.values()))]
    columns = [Column("collective", right=False), *(Column(format_bytes(s), wraps=True, right=False) for s in sizes)]
    rows = [[Text(kind), *map(_cost, prices)] for kind, prices in collectives.items()]
    return table(columns, rows)


def _cost(price: Price) -> Text:
    figures = f"{format_seconds(price.seconds)}  {rate(price.bus_bytes_per_s)}"
    return Text.assemble(figures, "\n", (price.algorithm, "dim"))
