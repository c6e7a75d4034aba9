"""The models that ship with the package, and how to load one by name or from a file.

``load_model`` opens only the file it was asked for. A catalogue file is a short YAML whose keys are the
fields of :class:`sim.model.Model`.
"""

from __future__ import annotations

import re
from pathlib import Path

from sim.documents import Kind, read_file
from sim.errors import ModelError, Problem, ScenarioError
from sim.explain import read, show, suggest
from sim.huggingface.config import load_config
from sim.model import Model

_SUFFIXES = (".yaml", ".yml")
_FOLDER = Path(__file__).parent.parent / "data" / "models"
_MODEL_FILE = Kind("model", "name, hidden, vocab and pattern")


def model_names() -> list[str]:
    """Names of the models in the catalogue, sorted."""
    return sorted(path.stem for path in _FOLDER.glob("*.yaml"))


def load_model(name_or_path: str, base: Path | None = None) -> Model:
    """Load a model: a name of the catalogue, or a path.

    A path leads to a Hugging Face ``config.json``, to a folder that holds one, or to a YAML file in the form
    of the catalogue's; a relative one starts at ``base`` (the current folder when absent).

    Raises
    ------
    ModelError
        If no such model is known, or its file is wrong.
    """
    if _is_plain_name(name_or_path):
        entry = _FOLDER / f"{name_or_path.lower()}.yaml"
        if entry.is_file():
            return _from_yaml(entry)
    path = (base or Path()) / name_or_path
    try:
        if (path / "config.json").is_file():
            path = path / "config.json"
        exists = path.exists() and name_or_path != ""
    except (OSError, ValueError):
        exists = False
    if exists and path.suffix in _SUFFIXES:
        return _from_yaml(path)
    if exists or path.suffix == ".json" or path.suffix in _SUFFIXES:
        return load_config(path)
    raise ModelError(_unknown(name_or_path))


def _is_plain_name(name: str) -> bool:
    return re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name) is not None


def _unknown(name: str) -> Problem:
    hint = suggest(name.rsplit("/", 1)[-1], model_names())
    where_else = "a path to a Hugging Face config.json, or to a folder with one, works too"
    return Problem(f"model {show(name)} is not in the catalogue; {hint}{where_else}")


def _from_yaml(path: Path) -> Model:
    try:
        document = read_file(path, _MODEL_FILE)
    except ScenarioError as error:
        raise ModelError(error.problems) from None
    model, problems = None, document.problems
    known = {p.key for p in problems}
    try:
        model = read(Model, document.data, ModelError)
    except ModelError as error:
        problems = [*problems, *(document.place(p) for p in error.problems if p.key not in known)]
    if model is None or problems:
        raise ModelError(problems)
    return model
