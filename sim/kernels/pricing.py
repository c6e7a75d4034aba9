"""Prices operations on one kind of GPU: finds the fit for each, asks its kernel model, and keeps the answer."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

from sim.formats import number_format
from sim.hardware import Gpu
from sim.kernels.constants import TABLES, EngineConstants, KernelConstants
from sim.kernels.cost import Cost, Device
from sim.kernels.decode_attention import decode_attention
from sim.kernels.experts import experts
from sim.kernels.fit import Fit
from sim.kernels.gemm import gemm, quantise
from sim.kernels.prefill_attention import prefill_attention
from sim.kernels.simple import elementwise, host
from sim.kernels.spread import EXACT, Spread
from sim.program import Work
from sim.shapes import Gemm, Host
from sim.workload import larger

LIBRARIES = ("trtllm", "vllm", "sglang")
"""Whose kernels serve, the first one that was measured."""
NEXT = {"trtllm": ("vllm", "sglang"), "vllm": ("sglang", "trtllm"), "sglang": ("vllm", "trtllm")}
"""Whose measurements stand in for those of a library: vLLM and SGLang call the same open kernels."""
MODELS: dict[str, Callable[[Work, Any, Device], Cost]] = {
    "gemm": gemm,
    "decode_attention": decode_attention,
    "mla_decode": decode_attention,
    "prefill_attention": prefill_attention,
    "mla_prefill": prefill_attention,
    "experts": experts,
    "elementwise": elementwise,
    "recurrence": elementwise,
    "index": elementwise,
}
IN_ENGINE = ("elementwise", "recurrence", "index")
"""Families that no table times; their constants are the engine's."""
READERS = ("decode_attention", "mla_decode")
"""Families that read a cache: another number format costs them its bytes, another library is another algorithm."""
ALIKE = {
    "fp32": ("bf16",),
    "fp16": ("bf16",),
    "fp8": ("fp8_block",),
    "fp8_block": ("fp8",),
    "fp8_group": ("fp8_block", "fp8"),
    "mxfp8": ("fp8_block", "fp8"),
    "int8": ("fp8",),
    "int4": ("mxfp4",),
    "int4_g32": ("int4", "mxfp4"),
    "nvfp4": ("mxfp4", "fp8"),
    "fp4": ("nvfp4", "mxfp4", "fp8"),
    "mxfp4": ("nvfp4", "fp8"),
}
"""Formats whose kernels are most like those of a format, the best first; bf16 stands at the end of every list."""
BESIDE = {"mxfp4": ("nvfp4",)}
"""Formats whose kernels an engine may take as well where the GPU multiplies them; the cheapest counts."""
EVERYWHERE = ("nvfp4",)
"""Formats whose kernels (CUTLASS, FlashInfer) are the same in every library, which takes the fastest of all tables."""
WIDENED = ("int4", "int4_g32", "mxfp4")
"""Weight-only formats, on a GPU that does not multiply them."""
WIDENING = ("vllm", "sglang")
"""Libraries that serve these with 16-bit kernels which widen the weights on the way (Marlin)."""
KEPT = 200_000
"""Answers that are kept before all are dropped."""
KEPT_FIGURES = 4_000_000
"""Figures of answers at many points that are kept before all are dropped."""


class Kernels:
    """Prices compute operations on one kind of GPU.

    Parameters
    ----------
    gpu, constants
        Data sheet and fits.
    engine
        What an engine makes of kernels; without it, they run alone as the tables time them.
    library
        Whose kernels run: ``trtllm``, ``vllm`` or ``sglang``. What it was not measured with comes from the others.
    warm
        Whether operands of the last run are still in the cache, as in the tables.
    """

    def __init__(
        self,
        gpu: Gpu,
        constants: KernelConstants,
        engine: EngineConstants = TABLES,
        library: str = LIBRARIES[0],
        warm: bool = False,
    ):
        self.gpu, self.constants = gpu, constants
        self.engine = engine
        self.library, self.warm = library, warm
        self._fits: dict[tuple[str, str], tuple[tuple[Fit, Device], ...]] = {}
        self._known: dict[tuple[type, Work], Cost] = {}
        self._known_arrays: dict[Hashable, Cost] = {}
        self._room = KEPT_FIGURES

    def cost(self, work: Work) -> Cost:
        """Seconds of one operation; also with arrays in ``work``."""
        if work.other:
            return _cheaper(self.cost(work._replace(other=None)), self.cost(work.other))
        try:
            found = self._known.get((type(work.shape), work))
        except TypeError:
            return self._swept(work)
        if found is None:
            if len(self._known) >= KEPT:
                self._known.clear()
            found = self._known[type(work.shape), work] = self._price(work)
        return found

    def _swept(self, work: Work) -> Cost:
        """Seconds of one operation at the points of a sweep; classes, pieces and layouts ask for the same again."""
        key = (type(work.shape), _content(work))
        found = self._known_arrays.get(key)
        if found is None:
            found = self._price(work)
            self._room -= max(np.size(figure) for figure in found) * len(found)
            if self._room < 0:
                self._known_arrays.clear()
                self._room = KEPT_FIGURES
            self._known_arrays[key] = found
        return found

    def notes(self) -> list[str]:
        """What stands in for measurements that this GPU does not have."""
        gpu, constants = self.gpu, self.constants
        if not gpu.name.startswith(gpu.constants):
            return [f"measurements of the {gpu.name}: its kernels reach the fractions measured on the {gpu.constants}"]
        if constants.borrowed:
            what = ", ".join(family.replace("_", " ") for family in constants.borrowed)
            return [f"some measurements of the {gpu.name}: {what} as on the {constants.nearest}"]
        return []

    def spread(self, work: Work) -> Spread:
        """How far measurements of this kind of kernel lie from the model."""
        if work.family in (*IN_ENGINE, "host"):
            return EXACT
        fit, _ = self._applicable(work)[0]
        name = " ".join((work.family, fit.library, fit.format, fit.kernel)).strip()
        return Spread(name, fit.residual.low, fit.residual.high) if fit.residual else Spread(name, 1.0, 1.0)

    def fits(self, family: str, number: str) -> tuple[tuple[Fit, Device], ...]:
        """The fits that price a family in a format, with the device as their format sees it; the cheapest counts."""
        key = (family, number)
        if key not in self._fits:
            ours = (getattr(self.engine, family),) if family in IN_ENGINE else self.constants.fits(family)
            self._fits[key] = tuple(
                (fit, self._device(number_format(fit.format).rate))
                for fit in self._like(ours, number, family in READERS)
            )
        return self._fits[key]

    def _applicable(self, work: Work) -> list[tuple[Fit, Device]]:
        found = self.fits(work.family, work.format)
        return [one for one in found if one[0].applies(work.shape)] or list(found)

    def _device(self, rate: str) -> Device:
        return Device(self.gpu.matrix_rate(rate), self.gpu.bandwidth, self.gpu.multiprocessors, self.warm)

    def _like(self, fits: tuple[Fit, ...], number: str, reads: bool) -> list[Fit]:
        """Those of the library, or of the next one, for a format, or for the one most like it that the GPU computes."""
        alike = [n for n in ALIKE.get(number, ()) if number_format(n).rate in self.gpu.peak]
        own = number_format(number).rate in self.gpu.peak or self._measured_here(number, fits)
        formats = [number, *alike] if own else alike
        if self._widens(number) and not any((f.library, f.format) == (self.library, number) for f in fits):
            formats = []
        order = (self.library, *NEXT[self.library], "any")
        alike_first = [(wanted, library) for wanted in (*formats, "bf16") for library in order]
        if reads and self.library in WIDENING:  # what reads a cache converts it on the way
            alike_first.sort(key=lambda pair: pair[1] == "trtllm")
        for wanted, library in alike_first:
            if wanted in EVERYWHERE and (found := [fit for fit in fits if fit.format == wanted]):
                return found
            if found := [fit for fit in fits if (fit.library, fit.format) == (library, wanted)]:
                beside = [f for f in BESIDE.get(number, ()) if number_format(f).rate in self.gpu.peak]
                return found + [fit for fit in fits if fit.library == library and fit.format in beside]
        return list(fits[:1])

    def _widens(self, number: str) -> bool:
        """Whether the library multiplies a weight-only format in 16 bit."""
        rate = number_format(number).rate
        return self.library in WIDENING and number in WIDENED and (rate == "bf16" or rate not in self.gpu.peak)

    def _measured_here(self, number: str, fits: tuple[Fit, ...]) -> bool:
        """Whether a format without hardware was measured on this very GPU (weights that are widened on the way)."""
        own = self.gpu.name.startswith(self.gpu.constants)
        return own and any(fit.format == number and fit.library in LIBRARIES for fit in fits)

    def _price(self, work: Work) -> Cost:
        family, engine = work.family, self.engine
        work = engine.routing.apply(work)
        moved = work.weight_bytes + work.kv_bytes + work.io_bytes
        floor = larger(work.flops / self.gpu.matrix_rate(number_format(work.format).rate), moved / self.gpu.bandwidth)
        if isinstance(work.shape, Host):
            return host(work, engine.host)
        model = MODELS[family]
        cost = None
        for fit, device in self._applicable(work):
            one = self._in_engine(work, fit, device, model(work, fit, device))
            cost = one if cost is None else _cheaper(cost, one)
        assert cost
        if self.warm:  # operands that the cache delivers have no floor
            return cost._replace(floor=floor)
        beaten = larger(floor - cost.seconds, 0)  # a floor in another format than the fit's
        return cost._replace(seconds=cost.seconds + beaten, floor=floor, fixed=cost.fixed + beaten)

    def _in_engine(self, work: Work, fit: Fit, device: Device, cost: Cost) -> Cost:
        """The kernel's time as a step sees it."""
        engine, family = self.engine, work.family
        fixed = fit.launch * (engine.launch.get(family, 1.0) - 1)
        if isinstance(work.shape, Gemm) and number_format(fit.format).bits < 16:
            own = quantise(work.shape, fit, device) if engine.quantise is None else engine.quantise  # type: ignore[arg-type]
            fixed = fixed + own
        times = engine.time.get(family, 1.0)
        seconds, floor, own_fixed, compute, memory = cost
        return Cost((seconds + fixed) * times, floor, (own_fixed + fixed) * times, compute * times, memory * times)


def _content(value: object) -> Hashable:
    """Something to look up work by that holds arrays."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, tuple):
        return tuple(map(_content, value))
    assert isinstance(value, Hashable)
    return value


def _cheaper(a: Cost, b: Cost) -> Cost:
    """The one of two kernels that a library would take, at every point of a sweep."""
    if isinstance(a.seconds, float) and isinstance(b.seconds, float):
        return a if a.seconds <= b.seconds else b
    less = a.seconds <= b.seconds
    return Cost(*(np.where(less, x, y) for x, y in zip(a, b, strict=True)))
