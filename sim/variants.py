"""Variants of a scenario: a model architect's sweep over fields of the model, the workload or the formats.

``vary`` is a mapping from dotted paths to lists or ranges, of which every combination runs
(``model.attention.kv_heads: [8, 4]``), or a list of mappings, each one variant with its fields changed together. A path
that begins with ``model.attention``, ``model.linear`` or ``model.ffn`` changes every layer that has the field;
``group_size`` stands for as many KV heads as give each of them so many query heads, and ``model.layers`` for the length
of the repeated part.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sim.errors import InputError
from sim.explain import read, show, suggest
from sim.model import GroupedQueryAttention, Layer, LayerRun, Model
from sim.noun import Noun
from sim.variation import axes, is_range, product, size

BLOCKS = ("attention", "linear", "ffn")
PARTS = ("workload", "precision", "speculation")
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


def apply(data: Mapping[str, Any], model: Model, values: Mapping[str, Any]) -> dict[str, Any]:
    """The data of a scenario with one variant's values; ``model`` is the one that it names.

    Raises
    ------
    InputError
        If a path leads nowhere or a model cannot have a value.
    """
    found: dict[str, Any] = {key: value for key, value in data.items() if key != "vary"}
    for path, value in values.items():
        root, *rest = path.split(".")
        if root == "model" and rest:
            model = changed(model, rest, value)
            found["model"] = model
        elif root in PARTS and len(rest) == 1:
            part = found.get(root) or {}
            if not isinstance(part, Mapping):
                raise InputError(f"{root} must be keys, not {show(part)}, to be varied")
            found[root] = {**part, rest[0]: value}
        elif root in ("gpu", "topology", "usable_memory", "engine") and not rest:
            found[root] = value
        else:
            known = ["model.hidden", "model.layers", *(f"model.{b}" for b in BLOCKS), *(f"{p}." for p in PARTS)]
            hint = f"{suggest(path, known)}paths begin with {', '.join(known)}"
            raise InputError(f"{show(path)} cannot be varied; {hint}")
    return found


def changed(model: Model, path: list[str], value: Any) -> Model:
    """A model with one field changed. Raises ``InputError``."""
    if path == ["layers"]:
        return _deeper(model, value)
    if path[0] not in BLOCKS:
        if len(path) > 1 or path[0] not in Model.model_fields:
            raise InputError(f"a model has no {show('.'.join(path))} to vary")
        return read(Model, _fields(model) | {path[0]: value})
    if len(path) != 2:
        raise InputError(f"model.{'.'.join(path)}: write model.{path[0]} and one field of it")
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
