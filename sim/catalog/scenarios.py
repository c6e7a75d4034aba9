"""The scenarios that ship with the simulator, by bare name: ``qwen3_235b_8xh200``."""

from __future__ import annotations

from os.path import isfile
from pathlib import Path

from sim.errors import Problem, ScenarioError
from sim.explain import suggest

_PACKAGED = Path(__file__).parent.parent / "data" / "scenarios"
_CHECKOUT = Path(__file__).parent.parent.parent / "scenarios"


def _folder() -> Path:
    """An installed package carries its scenarios as data; in a checkout they lie beside the package."""
    return _PACKAGED if _PACKAGED.is_dir() else _CHECKOUT


def scenario_names() -> list[str]:
    """Return the names of the shipped scenarios, sorted."""
    return sorted(path.stem for path in _folder().glob("*.yaml"))


def study_names() -> list[str]:
    """Return the names of the shipped studies, sorted."""
    return sorted(path.stem for path in (_folder() / "studies").glob("*.yaml"))


def find_scenario(name: str | Path) -> Path:
    """Return the file that ``name`` means: a path, or the bare name of a shipped scenario.

    A file of that name in the current folder wins over a shipped scenario.

    Raises
    ------
    ScenarioError
        If there is neither; lists the shipped scenarios.
    """
    return _find(name, _folder(), "scenario")


def find_study(name: str | Path) -> Path:
    """Return the file that ``name`` means, as ``find_scenario`` does, among the shipped studies.

    Raises
    ------
    ScenarioError
        If there is neither; lists the shipped studies.
    """
    return _find(name, _folder() / "studies", "study")


def _find(name: str | Path, folder: Path, noun: str) -> Path:
    path = Path(name)
    if path.suffix or len(path.parts) > 1 or isfile(path):
        return path
    known = sorted(file.stem for file in folder.glob("*.yaml"))
    if str(name) in known:
        return folder / f"{name}.yaml"
    text = f"is neither a file nor a shipped {noun}"
    raise ScenarioError(Problem(f"{text}; {suggest(name, known)}shipped: {', '.join(known)}", where=str(name) or "''"))
