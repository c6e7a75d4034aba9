"""The models that ship with the package, and how to load one by name or from a file.

``load_model`` opens only the file it was asked for. A catalogue file is a short YAML whose keys are the
fields of :class:`sim.model.Model`.
"""

from __future__ import annotations

import difflib
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from sim.errors import ModelError, Problem
from sim.huggingface import load_config
from sim.model import Model

_SUFFIXES = (".yaml", ".yml")
_FOLDER = "data/models"


def model_names() -> list[str]:
    """Names of the models in the catalogue, sorted."""
    entries = files("sim").joinpath(_FOLDER).iterdir()
    return sorted(entry.name.removesuffix(".yaml") for entry in entries if entry.name.endswith(".yaml"))


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
        entry = files("sim").joinpath(_FOLDER, f"{name_or_path.lower()}.yaml")
        if entry.is_file():
            return _from_yaml(entry.read_text(encoding="utf-8"), entry.name)
    path = (base or Path()) / name_or_path
    try:
        if (path / "config.json").is_file():
            path = path / "config.json"
        exists = path.exists() and name_or_path != ""
    except (OSError, ValueError):
        exists = False
    if exists and path.suffix in _SUFFIXES:
        return _from_yaml(_read(path), str(path))
    if exists or path.suffix == ".json" or path.suffix in _SUFFIXES:
        return load_config(path)
    raise ModelError(_unknown(name_or_path))


def _is_plain_name(name: str) -> bool:
    return re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name) is not None


def _unknown(name: str) -> Problem:
    known = model_names()
    close = difflib.get_close_matches(name.rsplit("/", 1)[-1].lower(), known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    where_else = "A path to a Hugging Face config.json, or to a folder with one, works too"
    return Problem(f"model {name[:80]!r} is not in the catalogue; {hint}{where_else}")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ModelError(Problem(f"cannot be read: {error}", where=str(path))) from None


def _from_yaml(text: str, where: str) -> Model:
    try:
        fields: Any = YAML(typ="safe", pure=True).load(text)
    except (YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{where}:{mark.line + 1}:{mark.column + 1}" if mark else where
        message = getattr(error, "problem", None) or str(error).split("\n", 1)[0]
        raise ModelError(Problem(f"is not YAML: {message}", where=place)) from None
    if not isinstance(fields, dict):
        raise ModelError(Problem("must hold the fields of a model, one key each", where=where))
    try:
        return Model.model_validate(fields)
    except ValidationError as error:
        found = [Problem(e["msg"], ".".join(map(str, e["loc"])), where) for e in error.errors()]
        raise ModelError(found) from None
