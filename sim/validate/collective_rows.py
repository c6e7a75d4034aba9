"""Published measurements of collectives as rows of one shape, and what the simulator says of each.

Columns are those of ``aiconfigurator-core``; sizes become messages by the conventions of ``sim.network.collectives``.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from sim.catalog.gpus import load_gpu
from sim.catalog.topologies import parse_topology
from sim.network.collectives import CollectiveCost, Collectives
from sim.network.constants import FabricConstants
from sim.ops_communication import distinct_ranks

PCIE_BOX = {"kind": "pcie", "gpus": 8, "gpus_per_switch": 2}
"""A board that fits what two, four and eight PCIe GPUs reach: pairs work at the speed of a slot, across pairs less
passes and across sockets less again. No publisher names one; the rates are what their long rings leave."""
MACHINES: dict[str, tuple[str, str | dict[str, Any]]] = {
    "a100_sxm": ("a100-sxm-80gb", "hgx-8"),
    "h100_sxm": ("h100-sxm", "hgx-8"),
    "h200_sxm": ("h200-sxm", "hgx-8"),
    "b200_sxm": ("b200-sxm", "hgx-8"),
    "gb200": ("gb200", "nvl72"),
    "gb300": ("gb300", "nvl72"),
    "l40s": ("l40s", {**PCIE_BOX, "uplink": "8 GB/s", "cpu_link": "1.9 GB/s"}),
    "rtx_pro_6000_server": ("rtx-pro-6000", {**PCIE_BOX, "uplink": "42 GB/s", "cpu_link": "42 GB/s"}),
}


class Row(NamedTuple):
    """One measurement: who ran what over how many ranks, bytes of the message, seconds; ``why`` it cannot be had.

    ``series`` is what it shares with rows of other sizes, ``campaign`` the run of software that measured it, ``chosen``
    what was set beside the message: multiprocessors, experts.
    """

    table: str
    system: str
    kind: str
    ranks: int
    message: float
    seconds: float
    library: str
    label: str
    engine: bool = False
    why: str = ""
    series: str = ""
    campaign: str = ""
    chosen: tuple[tuple[str, int], ...] = ()


# -- reading


def read(path: Path) -> Iterator[dict[str, str]]:
    """Rows of a CSV file by column; none where there is no file."""
    if path.exists():
        with path.open(newline="") as file:
            yield from csv.DictReader(file)


def nccl(path: Path) -> Iterator[Row]:
    """Rows of nccl-tests; 8-bit integers are not added in the switch."""
    for r in read(path):
        n, size, op = int(r["num_gpus"]), float(r["bytes"]), r["op_name"].replace("alltoall", "all_to_all")
        message = {"all_gather": size / n, "all_to_all": size * (n - 1) / n}.get(op, size)
        label = f"{r['lib_version']} {op} {r['nccl_dtype']} {n} GPUs {int(size)} B"
        switch = r["nccl_dtype"] == "half" or op != "all_reduce"  # which adds no 8-bit integers
        library = "nccl" if switch else "ring"
        seconds, series = float(r["latency_us"]) / 1e6, f"{r['lib_version']} {r['nccl_dtype']}"
        yield Row("nccl_collectives", r["system"], op, n, message, seconds, library, label, series=series)


UNTIL = {"vllm": "0.18", "sglang": "0.5.11"}
"""The last measured versions, or those before the next, of which these engines' rows show the older kernels."""


def engine_of(name: str, version: str) -> str:
    """The engine as ``sim/data/collectives.yaml`` knows it."""
    until = UNTIL.get(name)
    if until is None:
        return name
    last = _numbers(until)
    return f"{name}-{until}" if _numbers(version)[: len(last)] <= last else name


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]


def custom(path: Path) -> Iterator[Row]:
    """Rows of the engines' own all-reduces."""
    for r in read(path):
        n, size, source = int(r["num_gpus"]), float(r["bytes"]), r["kernel_source"]
        engine = "trtllm" if source.startswith("TRTLLM") else engine_of(r["backend_fw"], r["fw_version"])
        why = "launched eagerly: the host sets the time" if source.endswith("eager") else ""
        label = f"{r['backend_fw']} {r['fw_version']} {source} {n} GPUs {int(size)} B"
        seconds = float(r["latency_us"]) / 1e6
        run = f"{r['backend_fw']} {r['fw_version']}"
        series = f"{run} {source.partition('_MNNVL')[0]}"
        yield Row(
            "custom_allreduce", r["system"], "all_reduce", n, size, seconds, engine, label, True, why, series, run
        )


def payload(kind: str, dtype: str, hidden: int) -> float:
    """Bytes of one token on the links, scales included."""
    if dtype == "default":
        dtype = "fp8" if kind == "dispatch" else "bfloat16"
    if dtype in ("nvfp4", "fp4"):
        return hidden / 2 + hidden / 16
    return hidden + hidden / 32 if dtype == "fp8" else hidden * 2.0


def nvlink_a2a(path: Path) -> Iterator[Row]:
    """Rows of TensorRT-LLM's exchanges for experts over NVLink."""
    for r in read(path):
        n, tokens, hidden = int(r["moe_ep_size"]), int(r["num_tokens"]), int(r["hidden_size"])
        op, source = r["op_name"].removeprefix("alltoall_"), r["kernel_source"]
        kind = "combine" if op == "combine_low_precision" else op
        library = {"NVLinkOneSided": "one_sided", "NVLinkTwoSided": "two_sided"}[source]
        dtype = r["moe_dtype"] if op != "combine" else "bfloat16"
        if library == "two_sided" and dtype == "nvfp4":  # moves values and scales as two tensors
            library = "two_sided_fp4"
        why = "" if kind in ("dispatch", "combine") else f"{kind} is a kernel of its own and no collective"
        # balanced: the tokens' experts sit on as many ranks as there are
        size = tokens * min(int(r["topk"]), n) * (n - 1) / n * payload(kind, dtype, hidden)
        series = f"{source} {op} {r['moe_dtype']}"
        label = f"{series} {n} GPUs {tokens} tokens"
        kind = kind if not why else "dispatch"
        seconds = float(r["latency_us"]) / 1e6
        yield Row("alltoall_nvlink_trtllm", r["system"], kind, n, size, seconds, library, label, False, why, series)


def deepep(path: Path, table: str) -> Iterator[Row]:
    """Rows of DeepEP by itself, normal or low latency: a dispatch and a combine each."""
    for r in read(path):
        nodes, tokens, hidden = int(r["node_num"]), int(r.get("num_token") or r["num_tokens"]), int(r["hidden_size"])
        n = nodes * (4 if r["system"] == "gb200" else 8)
        experts, topk = int(r["num_experts"]), int(r["num_topk"])
        normal = table == "deepep_normal"
        copies = distinct_ranks(experts, n, topk) if normal else topk
        for kind in ("dispatch", "combine"):
            why = ""
            if normal:
                us = float(r[f"{kind}_transmit_us"]) + float(r[f"{kind}_notify_us"])
                if nodes > 1:
                    why = "one copy per node over the network: a message knows only bytes per rank"
            else:
                us = float(r[f"{kind}_avg_t_us"])
                if experts < 64:
                    why = "fewer experts than SMs: SMs are dealt to experts, of which a message knows nothing"
            size = tokens * copies * (n - 1) / n * payload(kind, "default", hidden)
            library = f"deepep_normal_{kind}" if normal else f"deepep_ll_{kind}"
            series = f"hidden {hidden} top {topk} of {experts} {r.get('dispatch_sms', '')}"
            label = f"{kind} {n} GPUs {series} {tokens} tokens"
            system = r["system"] if nodes == 1 else f"{r['system']} x{nodes}"
            chosen = (("sms", int(r[f"{kind}_sms"])),) if normal else (("experts", experts),)
            yield Row(table, system, kind, n, size, us / 1e6, library, label, False, why, series, chosen=chosen)


def engine_a2a(path: Path) -> Iterator[Row]:
    """Rows of DeepEP as engines call it, with what they do around it."""
    for r in read(path):
        n, hidden, topk = int(r["ep_size"]), int(r["hidden_size"]), int(r["topk"])
        kind, backend = r["phase"], r["comm_backend"]
        low = backend.endswith("_ll")
        copies = topk if low else distinct_ranks(int(r["num_experts"]), n, topk)
        dtype = "bfloat16" if kind == "combine" else r["comm_dtype"]  # of the dispatch: results come back in 16 bits
        size = int(r["num_tokens"]) * copies * (n - 1) / n * payload(kind, dtype, hidden)
        why = "DeepEP V2 is another library" if "_v2_" in backend else ""
        series = f"{backend} {kind} {r['comm_dtype']} hidden {hidden} top {topk} of {r['num_experts']} {r['sms']}"
        series = f"{r['backend_fw']} {r['fw_version']} {series}"
        label = f"{series} {r['num_tokens']}"
        library = f"{r['backend_fw']}_deepep_{'ll' if low else 'ht'}"
        seconds = float(r["latency_us"]) / 1e6
        yield Row("moe_a2a_deepep", r["system"], kind, n, size, seconds, library, label, False, why, series)


HARDWARE = {"H100": "h100_sxm", "H200": "h200_sxm", "B200": "b200_sxm", "GB200": "gb200", "GB300": "gb300"}
UNITS = {"B": 1, "KB": 1024, "MB": 1e6, "MiB": 2**20, "GiB": 2**30}


def single(path: Path) -> Iterator[Row]:
    """Single published figures of collectives."""
    for r in read(path):
        if r["kind"] not in ("collective", "moe-a2a", "p2p"):
            continue
        yield _single(r)


def _single(r: dict[str, str]) -> Row:
    what, machine, shape = r["operation"], r["hardware"].split(" ")[0], r["shape_or_size"]
    n = int(r["n_gpus"] or 0)
    system = HARDWARE.get(machine, {"RTX": "rtx_pro_6000_server", "H800": "h100_sxm"}.get(machine, machine))
    label = f"{r['row_id']} {what} {r['hardware']} {n} {shape} {r['metric']}"
    failed = Row("kernels", system, "all_reduce", n, 0.0, 0.0, "nccl", label, why="not understood")
    size = re.match(r"([\d.]+) (B|KB|MB|MiB|GiB)", shape)
    kind = next((k for k in ("all_reduce", "all_gather", "reduce_scatter", "alltoall") if k in what), "")
    kind = "all_reduce" if "all-reduce" in what else kind.replace("alltoall", "all_to_all")
    if "SHARP" in what or n > 72 or "racks" in r["topology"]:
        return failed._replace(why="over several racks or with reduction in the network's switches")
    if "DeepEP low-latency" in what or "NVLinkOneSided" in what:
        kind = "dispatch" if "dispatch" in what else "combine"
        sided = "OneSided" in what
        tokens = re.match(r"(\d+) tok", shape)
        assert tokens
        dtype = {"BF16": "bfloat16", "bf16": "bfloat16", "fp8": "fp8", "MXFP8": "fp8", "NVFP4": "nvfp4"}[r["dtype"]]
        copies = min(8, n) if sided else 8
        message = int(tokens[1]) * copies * (n - 1) / n * payload(kind, dtype, 7168)
        system = system if sided or n <= 8 else f"{system} x{n // 8}"
        why = "over RDMA only, inside the box too" if not sided and n == 8 else ""
        library = "one_sided" if sided else f"deepep_ll_{kind}"
        return Row("kernels", system, kind, n, message, float(r["value"]) / 1e6, library, label, why=why)
    if not size or not kind or "one-shot" in what or "FlashInfer" in what:
        return failed._replace(why="a library or a figure that is not modelled")
    total = float(size[1]) * UNITS[size[2]]
    message = {"all_gather": total / n, "all_to_all": total * (n - 1) / n}.get(kind, total)
    if "per GPU" in shape:
        message = total
    if r["metric"] == "busbw":
        factor = 2 * (n - 1) / n if kind == "all_reduce" else (n - 1) / n
        seconds = factor * total / float(r["value"]) / 1e9
    else:
        seconds = float(r["value"]) / 1e6
    ring = "Ring" in what
    library = "trtllm" if "custom" in what else "ring" if ring else "nccl"
    return Row("kernels", system, kind, n, message, seconds, library, label, engine=library == "trtllm")


def rows(data: Path) -> list[Row]:
    """All rows of a folder; those that cannot be predicted say why."""
    found = [*nccl(data / "nccl_collectives.csv"), *custom(data / "custom_allreduce.csv")]
    found += nvlink_a2a(data / "alltoall_nvlink_trtllm.csv")
    found += deepep(data / "deepep_ll.csv", "deepep_ll")
    found += deepep(data / "deepep_normal.csv", "deepep_normal")
    found += engine_a2a(data / "moe_a2a_deepep.csv")
    beside = [d / "kernels.csv" for d in (data, data.parent) if (d / "kernels.csv").exists()]
    found += single(beside[0]) if beside else ()
    known = [r if r.system.split(" ")[0] in MACHINES else r._replace(why=r.why or "no such GPU") for r in found]
    return [r if r.why or r.seconds > 0 else r._replace(why="no time") for r in known]


# -- predicting


@cache
def fabric(system: str) -> Any:
    """The fabric and the GPU of a system, ``h100_sxm`` or ``h100_sxm x4`` for four boxes."""
    name, _, nodes = system.partition(" x")
    gpu, spec = MACHINES[name]
    return parse_topology(f"cluster-{nodes}" if nodes else spec).build(load_gpu(gpu)), load_gpu(gpu)


def collectives(row: Row, constants: FabricConstants) -> Collectives:
    """The machine that a row was measured on, with its library."""
    built, gpu = fabric(row.system)
    constants = constants.with_chosen(**dict(row.chosen)) if row.chosen else constants
    if row.engine:
        return Collectives(built, gpu, constants, row.library)
    return Collectives(built, gpu, constants, forced={row.kind: row.library})


def predict(measured: Iterable[Row], constants: FabricConstants) -> dict[Row, float]:
    """Seconds of every row that can be predicted."""
    costs: dict[tuple[object, ...], CollectiveCost] = {}
    found = {}
    for r in measured:
        if r.why:
            continue
        key = (r.system, r.kind, r.ranks, r.library, r.engine, r.chosen)
        if key not in costs:
            costs[key] = collectives(r, constants).cost(r.kind, tuple(range(r.ranks)))
        found[r] = costs[key].seconds(r.message)
    return found
