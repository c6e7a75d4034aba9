"""What the constants of every kernel model have in common."""

from __future__ import annotations

from pydantic import Field

from sim.kernels.cost import Device
from sim.noun import Noun
from sim.shapes import Shape
from sim.workload import Number


class Residual(Noun):
    """How far measurements lie from a fit: measured over predicted, and mean absolute percentage errors."""

    rows: int = Field(ge=1)
    low: float = Field(gt=0)
    """A tenth of the measurements are below this multiple of the prediction."""
    high: float = Field(gt=0)
    """A tenth are above this one."""
    error: float = Field(ge=0)
    """Mean absolute error of the rows that were fitted."""
    held_out: float = Field(ge=0)
    """The same for sizes that were left out of a fit, each once."""


class Fit(Noun):
    """Constants of one kind of kernel of one library, for one number format, on one GPU."""

    library: str = "any"
    """``trtllm``, ``vllm`` or ``sglang``; ``any`` where it makes no difference."""
    format: str = "bf16"
    """Number format of the weights, or of the KV cache."""
    kernel: str = ""
    """Which of several kernels that the library chooses from, as the table calls it."""
    launch: float = Field(ge=0)
    """Seconds of a call that has next to nothing to do."""
    cache_bytes: float = Field(0.0, ge=0)
    """What a benchmark that repeats one call finds in the cache of the GPU."""
    cache_time: float = Field(1.0, ge=0, le=1)
    """Seconds to read that, relative to the memory's data sheet."""
    cache_edge: float = Field(4.0, ge=0)
    """How sharply hits end where the operands no longer fit."""
    residual: Residual | None = None

    def applies(self, shape: Shape) -> bool:
        """Whether the library takes this kernel for a shape at all."""
        return True


def resident(moved: Number, fit: Fit, device: Device) -> Number:
    """Fraction of ``moved`` bytes that the cache delivers to a benchmark; in a step, other layers have emptied it."""
    if not device.warm or not fit.cache_bytes:
        return 0.0
    return 1 / (1 + (moved / fit.cache_bytes) ** fit.cache_edge)
