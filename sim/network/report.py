"""What a machine can do: which links join its GPUs, its figures, and what each collective costs on all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import combinations, pairwise, product

from sim.errors import TopologyError
from sim.fabric import Fabric
from sim.hardware import Gpu
from sim.network.algorithms import EXCHANGES
from sim.network.collectives import KINDS, Collectives
from sim.network.constants import load_fabric_constants
from sim.network.routes import tier
from sim.noun import Noun

SIZES = (2**16, 2**20, 2**26, 2**30)
MOST_DRAWN = 16
"""GPUs of the largest machine whose matrix is shown."""
MOST_PAIRED = 128
"""GPUs of the largest machine of which every pair is looked at; of larger ones the pairs of two servers are."""
MOST_PRICED = 256
"""GPUs of the largest machine on which everything is priced: exchanges have as many flows as pairs of GPUs."""
MOST_REDUCED = 2048
"""GPUs of the largest machine of several servers on which all but exchanges are priced."""


class Pairs(Noun):
    """Pairs of GPUs that are joined alike: bytes/s when a pair has its links to itself, links on its route."""

    kind: str
    where: str
    pairs: int
    hops: int
    bytes_per_s: float


class Price(Noun):
    """One collective of one size on all GPUs. Sizes and bus bandwidth are counted as nccl-tests counts them."""

    bytes: int
    algorithm: str
    seconds: float
    bus_bytes_per_s: float


class TopologyReport(Noun):
    """Everything that ``show topology`` shows; bytes/s in one direction."""

    name: str
    description: str
    gpu: str
    gpus: int
    nodes: dict[str, int]
    servers: int
    egress_bytes_per_s: dict[str, float]
    degree: dict[str, int]
    diameter: int
    bisection_bytes_per_s: float
    labels: tuple[str, ...]
    matrix: tuple[tuple[str, ...], ...] | None
    pairs: tuple[Pairs, ...]
    all_pairs: bool
    """Whether ``pairs`` counts all of them, or those of two servers of many."""
    collectives: dict[str, tuple[Price, ...]]
    remarks: tuple[str, ...]


def report(fabric: Fabric, gpu: Gpu) -> TopologyReport:
    """Measure a fabric. GPUs that are not connected are reported, not refused."""
    gpus = fabric.gpus
    kinds: Counter[str] = Counter(kind for _, kind in fabric.graph.nodes(data="kind"))
    units = {fabric.unit(g) for g in gpus}
    whole = len(gpus) <= MOST_PAIRED
    seen = {pair: _pair(fabric, gpu, *pair) for pair in (combinations(range(len(gpus)), 2) if whole else _some(fabric))}
    found: Counter[tuple[str, str, int, float]] = Counter()
    for (a, b), (kind, hops, rate) in seen.items():
        found[kind, _where(fabric, a, b, len(units) > 1), hops, rate] += 1
    prices, remarks = _prices(fabric, gpu)
    return TopologyReport(
        name=fabric.name,
        description=fabric.description,
        gpu=gpu.name,
        gpus=len(gpus),
        nodes=dict(kinds),
        servers=len(units),
        egress_bytes_per_s={g: fabric.egress(g) for g in gpus},
        degree={g: len(fabric.graph.adj[g]) for g in gpus},
        diameter=fabric.diameter,
        bisection_bytes_per_s=fabric.bisection_bandwidth,
        labels=gpus,
        matrix=_matrix(seen, len(gpus)) if len(gpus) <= MOST_DRAWN else None,
        pairs=tuple(
            Pairs(kind=kind, where=where, pairs=n, hops=hops, bytes_per_s=rate)
            for (kind, where, hops, rate), n in sorted(found.items(), key=lambda item: (item[0][1], -item[0][3]))
        ),
        all_pairs=whole,
        collectives=prices,
        remarks=tuple(remarks),
    )


def _some(fabric: Fabric) -> Iterator[tuple[int, int]]:
    """Pairs inside the first server, and between the first two; servers are alike. Without servers: NVLink domains."""
    gpus = range(len(fabric))
    several = len({fabric.unit(g) for g in fabric.gpus}) > 1

    def group(rank: int) -> object:
        gpu = fabric.gpus[rank]
        return fabric.unit(gpu) if several else min(fabric.domain(gpu))

    first = [r for r in gpus if group(r) == group(0)][:MOST_PAIRED]
    others = [r for r in gpus if group(r) != group(0)]
    second = [r for r in others if group(r) == group(others[0])][:MOST_PAIRED]
    yield from combinations(first, 2)
    yield from product(first, second)


def _where(fabric: Fabric, a: int, b: int, several: bool) -> str:
    if not several:
        return ""
    same = fabric.unit(fabric.gpus[a]) == fabric.unit(fabric.gpus[b])
    return "inside a server" if same else "between servers"


def _pair(fabric: Fabric, gpu: Gpu, a: int, b: int) -> tuple[str, int, float]:
    """Kind as ``nvidia-smi`` calls it, links on the route, and bytes/s of a pair that has its links to itself."""
    try:
        part, loads, _ = fabric.load([(a, b, 1.0)], (a, b))
    except TopologyError:
        return "none", 0, 0.0
    rate = 1 / max(load / edge.bandwidth for load, edge in zip(loads, part.edges, strict=True) if load)
    nodes, _ = part.between(part.index[fabric.gpus[a]], part.index[fabric.gpus[b]])[0]
    links = [part.edges[part.edge_between[pair]].kind for pair in pairwise(nodes)]
    between = [part.kinds[node] for node in nodes[1:-1]]
    return _kind(links, between, rate, gpu), len(links), rate


def _kind(links: list[str], between: list[str], rate: float, gpu: Gpu) -> str:
    tiers = {tier(link) for link in links}
    if "network" in tiers:
        return "NET"
    if tiers == {"nvlink"}:
        if between not in ([], ["nvswitch"]):
            return "relay"
        if links[0].startswith("xgmi"):
            return "XGMI"
        count = rate / gpu.nvlink.link_bandwidth if gpu.nvlink else 0.0
        return f"NV{count:.0f}" if count >= 1 and abs(count - round(count)) < 1e-6 else "NV"
    if any(link.startswith("upi") for link in links):
        return "SYS"
    if roots := between.count("cpu"):
        return "PHB" if roots == 1 else "NODE"
    switches = between.count("pcie_switch")
    return "PIX" if switches == 1 else "PXB" if switches else "PCIE"


def _matrix(seen: dict[tuple[int, int], tuple[str, int, float]], size: int) -> tuple[tuple[str, ...], ...]:
    def cell(a: int, b: int) -> str:
        return "X" if a == b else seen[min(a, b), max(a, b)][0]

    return tuple(tuple(cell(a, b) for b in range(size)) for a in range(size))


def _prices(fabric: Fabric, gpu: Gpu) -> tuple[dict[str, tuple[Price, ...]], list[str]]:
    n = len(fabric)
    if n == 1:
        return {}, ["a single GPU has no collectives"]
    several = len({fabric.unit(g) for g in fabric.gpus}) > 1
    kinds = [kind for kind in KINDS if n <= MOST_PRICED or (several and n <= MOST_REDUCED and kind not in EXCHANGES)]
    left_out = [kind for kind in KINDS if kind not in kinds]
    remarks = [f"not priced on more than {MOST_PRICED} GPUs: {', '.join(left_out)}"] if left_out else []
    machine = Collectives(fabric, gpu, load_fabric_constants())
    prices: dict[str, tuple[Price, ...]] = {}
    failed: dict[str, list[str]] = {}
    for kind in kinds:
        try:
            prices[kind] = tuple(_price(machine, kind, size, n) for size in SIZES)
        except TopologyError as error:
            failed.setdefault(str(error), []).append(kind)
    return prices, [*remarks, *(f"no {', '.join(missing)}: {text}" for text, missing in failed.items())]


def _price(machine: Collectives, kind: str, size: int, n: int) -> Price:
    """Cost of ``size`` bytes as nccl-tests counts them: the buffer of a rank, gathered parts included."""
    part = (n - 1) / n
    message = {"all_gather": size / n, "gather": size / n}.get(kind, float(size))
    if kind in EXCHANGES:
        message = size * part
    factor = {"all_reduce": 2 * part, "broadcast": 1.0, "send": 1.0}.get(kind, part)
    cost = machine.cost(kind, (0, 1) if kind == "send" else tuple(range(n)))
    seconds = float(cost.seconds(message))
    return Price(
        bytes=size, algorithm=cost.algorithm_for(message), seconds=seconds, bus_bytes_per_s=factor * size / seconds
    )
