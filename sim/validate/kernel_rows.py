"""Single kernels from many publishers (``kernels.csv``): the operation is taken out of a small model's program.

So a kernel is priced exactly as in a step: the operation says what it asks of a GPU, the kernels say how long it takes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from sim.catalog.gpus import load_gpu
from sim.catalog.strategies import parse_layout
from sim.engines import library
from sim.errors import InputError
from sim.hardware import Gpu
from sim.kernels import Kernels
from sim.kernels.pricing import LIBRARIES
from sim.lane import Lane
from sim.lower import lower
from sim.model import DenseFfn, GroupedQueryAttention, LatentAttention, Layer, LayerRun, Model
from sim.ops_compute import Attend, Project
from sim.placement import Placement
from sim.program import ComputeOp, Work
from sim.validate.collective_rows import MACHINES, predict, single
from sim.validate.collective_rows import Row as Message
from sim.validate.names import names
from sim.validate.result import Group, Outcome
from sim.workload import Phase, Precision, Sequences

Row = dict[str, str]
Price = Callable[[Gpu, Work], float]
GQA = re.compile(r"bs(\d+) ctx(\d+) q(\d+) kv(\d+) hd(\d+)")
MLA = re.compile(r"bs(\d+) ctx(\d+) heads/rank (\d+)")
GEMM = re.compile(r"(\d+)x(\d+)x(\d+)$|M(\d+) N(\d+) K(\d+)")


def kernel_groups(
    path: Path, rows: list[Row], kernels: Callable[[Gpu, str], Kernels], constants: object
) -> list[Group]:
    """Attention, GEMM and collectives of ``kernels.csv``."""
    compute = [row for row in rows if row["kind"] in ("attention", "gemm", "moe-gemm")]
    attention = tuple(_outcome(row, kernels) for row in compute if row["kind"] == "attention")
    gemm = tuple(_outcome(row, kernels) for row in compute if row["kind"] != "attention")
    return [
        Group("kernels: attention", attention),
        Group("kernels: GEMM", gemm),
        Group("kernels: collectives", collectives(path, {row["row_id"]: row["source_url"] for row in rows}, constants)),
    ]


def collectives(path: Path, sources: dict[str, str], constants: object) -> tuple[Outcome, ...]:
    """Collectives and exchanges of ``kernels.csv``."""
    measured = [r if r.why or known(r) else r._replace(why="the catalogue does not have the GPU") for r in single(path)]
    predicted = predict(measured, constants)  # type: ignore[arg-type]
    found = []
    for row in measured:
        name = row.label.split(" ")[0]
        seconds = predicted.get(row)
        us = 1e6 * row.seconds
        text = row.label.removeprefix(f"{name} ")
        found.append(
            Outcome(name, text, sources[name], us, None if seconds is None else 1e6 * float(seconds), "us", row.why)
        )
    return tuple(found)


def known(row: Message) -> bool:
    """Whether the catalogue has the machine."""
    return row.system.split(" ")[0] in MACHINES


def _outcome(row: Row, kernels: Callable[[Gpu, str], Kernels]) -> Outcome:
    text = f"{row['operation']} {row['hardware']} {row['shape_or_size']}"
    value = float(row["value"]) if re.fullmatch(r"[\d.]+", row["value"]) else 0.0
    why, predicted = "", None
    try:
        gpu = load_gpu(names().machine(row["hardware"])[0])
        work = _work(row)
        if isinstance(work, str):
            why = work
        else:
            seconds = float(kernels(gpu, _library(row["operation"])).cost(work).seconds)
            predicted = 1e6 * seconds if row["unit"] == "us" else work.flops / seconds / 1e12
    except InputError as error:
        why = str(error)
    unit = row["unit"] or row["metric"]
    return Outcome(row["row_id"], text, row["source_url"], value, predicted, unit, why)


def _library(operation: str) -> str:
    """Whose kernel a row timed, if it says so."""
    said = operation.lower().replace("trt-llm", "trtllm").replace("tensorrt-llm", "trtllm")
    return library(next((name for name in LIBRARIES if name in said), ""))


def _work(row: Row) -> Work | str:
    """What a row's kernel does, or why that cannot be told."""
    what, shape = row["operation"], row["shape_or_size"]
    kv = "fp8" if row["dtype"].startswith("fp8") else "bf16"
    if what.startswith("INVALID"):
        return "published figures that beat the data sheet"
    if found := GQA.match(shape):
        batch, context, q, heads, size = map(int, found.groups())
        attention = GroupedQueryAttention(query_heads=q, kv_heads=heads, head_dim=size, v_head_dim=size)
        return attend(attention, batch, context, kv)
    if found := MLA.match(shape):
        batch, context, heads = map(int, found.groups())
        return attend(latent(heads), batch, context, kv)
    if (found := GEMM.match(shape)) and row["kind"] == "gemm":
        m, n, k = (int(x) for x in found.groups() if x)
        return product(m, n, k, "fp8" if row["dtype"] == "fp8" else "bf16")
    if row["metric"] in ("peak", "achieved HBM bandwidth p95", "throughput", "bandwidth") or row["kind"] == "moe-gemm":
        return "a ceiling over many shapes, or a kernel that no step runs alone"
    return "the row does not say the whole shape"


@lru_cache(maxsize=256)
def latent(heads: int) -> LatentAttention:
    """DeepSeek-V3's attention with so many query heads."""
    return LatentAttention(
        query_heads=heads, q_lora_rank=1536, kv_lora_rank=512, rope_dim=64, nope_dim=128, v_head_dim=128
    )


def attend(attention: GroupedQueryAttention | LatentAttention, batch: int, context: int, kv: str) -> Work:
    """The attention core of one decode step."""
    model = Model(
        name="one layer", hidden=1024, vocab=1024, pattern=(LayerRun(count=1, layer=Layer(attention=attention)),)
    )
    return operation(model, Precision(kv_cache=kv), batch, context, "decode", Attend)


def product(m: int, n: int, k: int, weights: str) -> Work:
    """One product of m rows."""
    layer = Layer(ffn=DenseFfn(width=k, gated=False))
    model = Model(name="one product", hidden=n, vocab=1024, pattern=(LayerRun(count=1, layer=layer),))
    return operation(model, Precision(weights=weights), m, 1, "decode", Project, "ffn.down")


def operation(
    model: Model, precision: Precision, batch: int, context: int, phase: Phase, kind: type[ComputeOp], name: str = ""
) -> Work:
    """What an operation of a model's only layer asks of a single GPU."""
    strategy = parse_layout({"strategy": "tp", "tp": 1})
    program = lower(model, strategy, phase)
    (segment,) = program.layers.values()
    op = next(o for o in segment.ops if isinstance(o, kind) and name in o.name)
    assert isinstance(op, ComputeOp)
    placement = Placement(model, strategy, precision)
    prompt = phase == "prefill"
    sequences = Sequences.even(batch, context, context if prompt else 1, prompt)
    return op.work(Lane(0, placement.cut, sequences, precision))
