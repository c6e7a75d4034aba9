"""From a measured run to what is simulated: model, machine, layout and formats, each by a rule."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import NamedTuple

from sim.catalog.gpus import load_gpu
from sim.catalog.models import load_model
from sim.catalog.strategies import parse_layout
from sim.catalog.topologies import parse_topology
from sim.engines import ANY, Engine, engine_names, load_engine
from sim.errors import InputError
from sim.hardware import Gpu
from sim.model import Model, MoeFfn
from sim.placement import Placement
from sim.strategy import Strategy
from sim.tensors import Part
from sim.topology import Topology
from sim.validate.names import names
from sim.validate.runs import Run
from sim.workload import Precision

FORMATS = {
    "bf16": "bf16",
    "mxfp4": "mxfp4",
    "fp8": "fp8",
    "fp8_block": "fp8_block",
    "nvfp4": "nvfp4",
    "int4_wo": "int4_g32",
}


def constants_of(engine: str) -> Engine:
    """Constants of the engine that a row names, or of all of them."""
    return load_engine(engine if engine in engine_names() else ANY)


class Case(NamedTuple):
    """What is simulated for all runs of one configuration."""

    engine: str
    gpu: Gpu
    topology: Topology
    model: Model
    strategy: Strategy
    precision: Precision

    @property
    def placement(self) -> Placement:
        """Who holds what."""
        return _placement(self.model, self.strategy, self.precision)


@lru_cache(maxsize=512)
def _placement(model: Model, strategy: Strategy, precision: Precision) -> Placement:
    return Placement(model, strategy, precision)


@cache
def _machine(system: str) -> tuple[Gpu, Topology]:
    gpu, topology = names().machine(system)
    return load_gpu(gpu), parse_topology(topology)


@cache
def catalogued(published: str) -> Model:
    """The model that a publisher names. Raises ``InputError``."""
    return load_model(names().model(published))


@lru_cache(maxsize=512)
def layout(tp: int, dp: int, ep: int, dcp: int) -> Strategy:
    """Tensor parallelism, with attention data parallelism around it where there is more than one replica."""
    optional = {"ep": ep} if ep > 1 else {}
    if dcp > 1:
        return parse_layout({"strategy": "dcp", "tp": tp, "dcp": dcp, **optional})
    if dp > 1:
        return parse_layout({"strategy": "attention_dp", "dp": dp, "tp": tp, **optional})
    return parse_layout({"strategy": "tp", "tp": tp, **optional})


@lru_cache(maxsize=256)
def precision(model: Model, weights: str, engine: str, architecture: str) -> Precision:
    """Formats of a checkpoint, by rules that hold for the published ones.

    A checkpoint that ships in a 4-bit format of its own (gpt-oss) has only that one. Four bits in a model with experts
    leave attention in 16 bit; weight-only int4 quantises routed experts only. TensorRT-LLM keeps the cache of a
    quantised checkpoint in fp8, and so do all engines on Blackwell.
    """
    own = model.quantisation if model.quantisation in ("mxfp4",) else None
    given = own or FORMATS[weights]
    experts = any(isinstance(layer.ffn, MoeFfn) for layer in model.kinds)
    kept: tuple[Part, ...] | None = None
    if experts and given == "nvfp4":
        kept = ("attention",)
    elif experts and given == "int4_g32":
        kept = ("attention", "dense_ffn", "shared_experts")
    small = weights not in ("bf16", "int4_wo") and own is None
    cache = "fp8" if (small or own) and (engine == "trtllm" or architecture == "blackwell") else "bf16"
    return Precision(weights=given, kv_cache=cache, unquantised=kept).resolve(model)


def case(run: Run) -> Case:
    """What to simulate for a run. Raises ``InputError`` if its layout or model cannot be had."""
    gpu, topology = _machine(run.system)
    model = catalogued(run.model)
    strategy = layout(run.tp, run.dp, run.moe_ep, run.dcp)
    if problems := strategy.check(model):
        raise InputError(problems)
    if strategy.gpus(model) > topology.gpu_count:
        raise InputError(f"{strategy.label} needs more GPUs than {topology.kind} has")
    formats = precision(model, run.weights, run.engine, gpu.architecture)
    if run.kv_cache:
        formats = formats.model_copy(update={"kv_cache": run.kv_cache})
    return Case(run.engine, gpu, topology, model, strategy, formats)
