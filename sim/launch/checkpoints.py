"""From the name of a checkpoint to the catalogue's model and the formats of its weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from sim.catalog.models import load_model, model_names
from sim.errors import InputError, ModelError, Problem
from sim.explain import show, suggest
from sim.launch.settings import Settings
from sim.launch.tables import names
from sim.model import Model
from sim.workload import Precision


class Checkpoint(NamedTuple):
    """A model, and what its name says of the formats (fields of ``Precision``)."""

    model: Model
    formats: dict[str, Any]
    notes: tuple[str, ...] = ()


def find_checkpoint(name: str | None, config: Path | None = None) -> Checkpoint:
    """The checkpoint of a name such as ``Qwen/Qwen3-235B-A22B-FP8``, whatever its organisation and case.

    Parameters
    ----------
    config
        A Hugging Face ``config.json``, or a model file; it wins over the catalogue.

    Raises
    ------
    ModelError
        If neither says the shape; the message says where to get it.
    """
    base = (name or "").rstrip("/").rsplit("/", 1)[-1].lower()
    shape, formats = _by_name(base)
    if config is not None:
        return Checkpoint(load_model(str(config)), formats)
    if name is None:
        raise ModelError("the command names no model; write its name after the engine's command, or give --config")
    if shape is None:
        raise ModelError(_unknown(name))
    model = load_model(shape)
    notes: tuple[str, ...] = ()
    if base not in (shape, model.hf_id.rsplit("/", 1)[-1].lower()):
        kept = f" with {formats['weights']} weights" if "weights" in formats else ""
        notes = (f"{name} is taken for the catalogue's {shape}{kept}, because of its name",)
    return Checkpoint(model, formats, notes)


def _by_name(base: str) -> tuple[str | None, dict[str, Any]]:
    """The catalogue's name, and what endings of the name say of the formats."""
    table, catalogue = names(), set(model_names())
    formats: dict[str, Any] = {}
    endings = sorted({*table.formats, *table.plain}, key=len, reverse=True)
    while True:
        known = table.checkpoints.get(base)
        if known:
            said = {k: v for k, v in known.items() if k != "shape"}
            return known["shape"], said | formats
        if base in catalogue:
            return base, formats
        ending = next((e for e in endings if base.endswith(f"-{e}")), None)
        if ending is None:
            return None, formats
        formats = table.formats.get(ending, {}) | formats
        base = base.removesuffix(f"-{ending}")


def _unknown(name: str) -> Problem:
    where = f"https://huggingface.co/{name}/resolve/main/config.json" if name.count("/") == 1 and name[0] != "/" else ""
    get = f"download {where}" if where else "take config.json from the checkpoint's folder"
    hint = suggest(name.rsplit("/", 1)[-1], model_names())
    return Problem(f"model {show(name)} is not in the catalogue; {hint}{get} and give it as --config config.json")


def find_precision(settings: Settings, checkpoint: Checkpoint) -> Precision:
    """Formats of weights, cache and activations: what the flags say, else the name, else the checkpoint.

    Raises
    ------
    InputError
        If a flag names a format that is not known.
    """
    table, formats, problems = names(), dict(checkpoint.formats), []
    model = checkpoint.model
    if said := settings.quantization:
        weights = table.weights.get(said)
        own = formats.get("weights") or model.quantisation
        if weights is None:
            known = ", ".join(table.weights)
            problems.append(Problem(f"quantization {show(said)} is not known; known: {known}", "quantization"))
        elif weights != own and f"{weights}_block" != own:  # vLLM says fp8 for blocks too
            formats = {"weights": weights} | ({"unquantised": ("attention",)} if weights == "nvfp4" else {})
    kv = table.kv.get(settings.kv_format or "auto")
    if kv is None:
        text = f"format {show(settings.kv_format)} of the cache is not known; known: {', '.join(table.kv)}"
        problems.append(Problem(text, "kv-cache-dtype"))
    if problems:
        raise InputError(problems)
    activations = {"float16": "fp16", "half": "fp16"}.get(settings.dtype or "", "bf16")
    return Precision(kv_cache=kv, activations=activations, **formats).resolve(model)
