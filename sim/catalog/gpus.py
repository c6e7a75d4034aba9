"""The GPUs that ship with the simulator: one data file each in ``sim/data/gpus``, validated into ``Gpu``."""

from __future__ import annotations

from pathlib import Path

from sim.errors import InputError
from sim.explain import show, suggest
from sim.hardware import Gpu

_FOLDER = Path(__file__).parent.parent / "data" / "gpus"


def gpu_names() -> list[str]:
    """Return the names that ``load_gpu`` knows, sorted."""
    return sorted(path.stem for path in _FOLDER.glob("*.yaml"))


def load_gpu(name: str) -> Gpu:
    """Read one GPU of the catalogue.

    Only its own file is opened. Upper case, blanks and underscores are forgiven.

    Raises
    ------
    InputError
        If no GPU has this name; says which ones exist and which come close.
    """
    key = name.strip().lower().replace(" ", "-").replace("_", "-")
    known = gpu_names()
    if key not in known:
        raise InputError(f"GPU {show(name)} is not in the catalogue; {suggest(key, known)}known: {', '.join(known)}")

    from ruamel.yaml import YAML  # not needed by whoever builds a Gpu in Python

    return Gpu.model_validate(YAML(typ="safe", pure=True).load(_FOLDER / f"{key}.yaml"))
