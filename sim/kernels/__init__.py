"""Seconds of compute operations on one GPU: one small file per family of kernels, constants as data.

``Kernels(gpu, constants).cost(work)`` is all that the simulator asks. A kernel model is a pure function of the work,
a fit and a device; its constants are fitted by ``bench/calibrate.py`` and lie in ``sim/data/kernels``.
"""

from sim.kernels.constants import TABLES, EngineConstants, KernelConstants, constant_names, load_constants
from sim.kernels.cost import Cost, Device
from sim.kernels.pricing import Kernels
from sim.kernels.spread import Spread, interval

__all__ = [
    "TABLES",
    "Cost",
    "Device",
    "EngineConstants",
    "KernelConstants",
    "Kernels",
    "Spread",
    "constant_names",
    "interval",
    "load_constants",
]
