"""Variants of a scenario: other values in some of its fields, by dotted path.

``workload.batch`` is a field, ``layouts.0.kvp`` one of a list, ``layouts.*.rank_order`` the same one of every item. A
field inside a noun that the scenario names (``gpu.bandwidth`` where it says ``gpu: h200-sxm``) varies that noun. A path
that begins with ``model.attention``, ``model.linear`` or ``model.ffn`` changes every layer that has the field;
``group_size`` stands for as many KV heads as give each of them so many query heads, and ``model.layers`` for the length
of the repeated part.

``vary`` in a scenario is a mapping from paths to lists or ranges, of which every combination runs
(``model.attention.kv_heads: [8, 4]``), or a list of mappings, each one variant with its fields changed together.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sim.catalog.gpus import load_gpu
from sim.catalog.models import load_model
from sim.catalog.topologies import parse_topology
from sim.errors import InputError, Problem
from sim.explain import read, show
from sim.model import GroupedQueryAttention, Layer, LayerRun, Model
from sim.noun import Noun
from sim.variation import axes, is_range, product, size

BLOCKS = ("attention", "linear", "ffn")
MOST = 256
EXAMPLE = "vary: {model.attention.kv_heads: [8, 4, 2, 1]}"


def expand(vary: Any) -> list[dict[str, Any]]:
    """Every variant, as values by path. Raises ``InputError``."""
    if isinstance(vary, Mapping):
        said = {str(k): v if isinstance(v, (list, tuple)) or is_range(v) else [v] for k, v in vary.items()}
        grid = axes(said)
        _check_number(size(grid))
        found = [dict(change) for change in product(grid)]
    elif isinstance(vary, (list, tuple)) and all(isinstance(v, Mapping) for v in vary):
        found = [{str(k): v for k, v in one.items()} for one in vary]
    else:
        raise InputError(f"must be paths with lists of values, or a list of variants, for example {EXAMPLE}")
    if not found or not all(found):
        raise InputError(f"leaves nothing to run; write for example {EXAMPLE}")
    _check_number(len(found))
    return found


def _check_number(count: int) -> None:
    if count > MOST:
        raise InputError(f"{count:,} variants are more than {MOST}")


def label(values: Mapping[str, Any]) -> str:
    """A variant as its rows name it: ``kv_heads 8, context 128k``."""
    return ", ".join(f"{path.rpartition('.')[2]} {_word(value)}" for path, value in values.items())


def _word(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"of {len(value)}"
    return str(value) if not isinstance(value, Mapping) else show(value)


def apply(data: Mapping[str, Any], values: Mapping[str, Any], base: Path | None = None) -> dict[str, Any]:
    """The data of a scenario with other values at some paths; the data given stays as it is.

    Parameters
    ----------
    base
        Folder that relative paths of models and topologies start at.

    Raises
    ------
    InputError
        If a path leads to nothing that can be set, or a model cannot have a value.
    """
    found: Any = {key: value for key, value in data.items() if key != "vary"}
    for path, value in values.items():
        try:
            found = _with(found, path.split("."), value, base)
        except InputError as error:
            raise InputError([_at(path, p) for p in error.problems]) from None
    return dict(found)


def _at(path: str, problem: Problem) -> Problem:
    """A problem as one of a path; what the value breaks elsewhere is named."""
    elsewhere = problem.key and not f".{path}".endswith(f".{problem.key}")
    return Problem(f"{problem.key}: {problem.message}" if elsewhere else problem.message, path)


def _with(node: Any, keys: list[str], value: Any, base: Path | None) -> Any:
    """A node of a scenario's data with another value at a path inside it."""
    if not keys:
        return value
    key, rest = keys[0], keys[1:]
    if isinstance(node, Model):
        return changed(node, keys, value)
    if isinstance(node, (list, tuple)):
        if key != "*" and not (key.isdecimal() and int(key) < len(node)):
            raise InputError(f"{show(key)} is not one of the {len(node)} items; * stands for all")
        return [_with(x, rest, value, base) if key in ("*", str(i)) else x for i, x in enumerate(node)]
    if isinstance(node, Noun):
        node = node.model_dump(mode="json", exclude_none=True)
    if not isinstance(node, Mapping) or not key:
        raise InputError("leads into a value that has no parts")
    return {**node, key: _with(_inside(key, node.get(key), base) if rest else None, rest, value, base)}


def _inside(key: str, said: Any, base: Path | None) -> Any:
    """What a key says, open to changes inside it: a noun where it is named by one word."""
    if key == "model":
        return load_model(said, base) if isinstance(said, str) else read(Model, said)
    if key == "gpu" and isinstance(said, str):
        return load_gpu(said)
    if key == "topology" and isinstance(said, str):
        return parse_topology(said, base)
    return {} if said is None else said


def changed(model: Model, path: list[str], value: Any) -> Model:
    """A model with one field changed. Raises ``InputError``."""
    if path == ["layers"]:
        return _deeper(model, value)
    if path[0] not in BLOCKS:
        return read(Model, _with(_fields(model), path, value, None))
    if len(path) != 2:
        raise InputError(f"write model.{path[0]} and one field of it")
    block, field = path
    hit = [layer for layer in model.kinds if _has(layer, block, field)]
    if not hit:
        raise InputError(f"no layer of {model.name} has {block}.{field}")

    def runs(of: tuple[LayerRun, ...]) -> list[LayerRun]:
        return [run.changed(layer=_layer(run.layer, block, field, value)) for run in of]

    return model.changed(head=runs(model.head), pattern=runs(model.pattern), tail=runs(model.tail))


def _fields(noun: Noun) -> dict[str, Any]:
    return {name: getattr(noun, name) for name in type(noun).model_fields}


def _has(layer: Layer, block: str, field: str) -> bool:
    part = getattr(layer, block)
    if part is None:
        return False
    return field in type(part).model_fields or (field == "group_size" and isinstance(part, GroupedQueryAttention))


def _layer(layer: Layer, block: str, field: str, value: Any) -> Layer:
    if not _has(layer, block, field):
        return layer
    part = getattr(layer, block)
    changes = {field: value}
    if field == "group_size":
        if not isinstance(value, int) or value < 1 or part.query_heads % value:
            raise InputError(f"{part.query_heads} query heads cannot be shared out in groups of {show(value)}")
        changes = {"kv_heads": part.query_heads // value}
    if field == "head_dim" and part.v_head_dim == part.head_dim:
        changes["v_head_dim"] = value
    return layer.changed(**{block: read(type(part), _fields(part) | changes)})


def _deeper(model: Model, layers: Any) -> Model:
    """The pattern repeated, or its only run made longer, until there are ``layers``."""
    fixed = sum(run.count for run in (*model.head, *model.tail))
    if not isinstance(layers, int) or isinstance(layers, bool) or layers <= fixed:
        raise InputError(f"layers must be a whole number above {fixed}, not {show(layers)}")
    if len(model.pattern) == 1:
        return model.changed(pattern=[model.pattern[0].changed(count=layers - fixed)], period=1)
    each = sum(run.count for run in model.pattern)
    if (layers - fixed) % each:
        raise InputError(f"{layers} layers are not {fixed} and a multiple of the pattern's {each}")
    return model.changed(period=(layers - fixed) // each)
