"""Seconds of one compute operation on one GPU.

time = launch + per_unit·units + per_row·rows + max(FLOPs / (c·peak), bytes / (m·bandwidth)): a roofline whose ceilings
are the fractions c and m of the data sheet that kernels reach, plus what does not shrink with the work. The
constants are data (``sim/data/kernels``) with their source. The *floor* is the same without launch times and with
c = m = 1.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files
from typing import NamedTuple

from pydantic import Field

from sim.errors import InputError
from sim.hardware import Gpu
from sim.noun import Noun
from sim.program import Work
from sim.workload import Number, larger


class Family(Noun):
    """Constants of one kernel family. ``compute`` and ``memory`` are fractions of the data sheet, by matrix rate."""

    launch: float = Field(ge=0)
    """Seconds per kernel."""
    per_unit: float = Field(0.0, ge=0)
    """Seconds per unit of ``Work.units``."""
    per_row: float = Field(0.0, ge=0)
    """Seconds per routed row (grouped GEMM)."""
    quantise: float = Field(0.0, ge=0)
    """Seconds to quantise the activations of a product below 16 bit."""
    compute: dict[str, float] = Field({"bf16": 1.0})
    memory: dict[str, float] = Field({"bf16": 1.0})


class KernelConstants(Noun):
    """Constants of all families on one GPU."""

    source: str
    gemm: Family
    decode_attention: Family
    prefill_attention: Family
    mla_decode: Family
    experts: Family
    elementwise: Family
    host: Family


@lru_cache(maxsize=16)
def load_constants(name: str) -> KernelConstants:
    """Constants by name. Raises ``InputError`` for a name without a file."""
    from ruamel.yaml import YAML

    path = files("sim") / "data" / "kernels" / f"{name}.yaml"
    if not path.is_file():
        raise InputError(f"there are no kernel constants called {name!r}")
    return KernelConstants.model_validate(YAML(typ="safe", pure=True).load(path.read_text("utf-8")))


ALIKE = {"recurrence": "elementwise", "index": "mla_decode"}
"""Families without constants of their own, and those that they are priced like."""


class Cost(NamedTuple):
    """Seconds of one operation and what they are made of; ``floor`` is at data-sheet figures."""

    seconds: Number
    floor: Number
    fixed: Number
    compute: Number
    memory: Number


class Kernels:
    """Prices compute operations on one kind of GPU."""

    def __init__(self, gpu: Gpu, constants: KernelConstants):
        self.gpu = gpu
        self._rooflines: dict[tuple[str, str], tuple[float, float, float, float, Family]] = {}
        self._constants = constants

    def _roofline(self, family: str, rate: str) -> tuple[float, float, float, float, Family]:
        key = (family, rate)
        found = self._rooflines.get(key)
        if found is None:
            constants: Family = getattr(self._constants, ALIKE.get(family, family))
            peak, bandwidth = self.gpu.matrix_rate(rate), self.gpu.bandwidth
            c = constants.compute.get(rate, constants.compute["bf16"])
            m = constants.memory.get(rate, constants.memory["bf16"])
            launch = constants.launch + (constants.quantise if rate != "bf16" else 0.0)
            found = self._rooflines[key] = (1 / (c * peak), 1 / (m * bandwidth), 1 / peak, launch, constants)
        return found

    def cost(self, work: Work) -> Cost:
        """Seconds of one operation; also with arrays in ``work``."""
        per_flop, per_byte, per_flop_floor, launch, constants = self._roofline(work.family, work.rate)
        moved = work.weight_bytes + work.kv_bytes + work.io_bytes
        fixed = launch + work.units * constants.per_unit + work.rows * constants.per_row
        compute, memory = work.flops * per_flop, moved * per_byte
        floor = larger(work.flops * per_flop_floor, moved / self.gpu.bandwidth)
        return Cost(fixed + larger(compute, memory), floor, fixed, compute, memory)
