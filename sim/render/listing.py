"""What a scenario can name, as tables: models, GPUs, topologies, strategies, shipped scenarios."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from pydantic import BaseModel
from rich.text import Text

from sim.model import Model
from sim.render.table import Column, table, to_text

Row = dict[str, Any]


def listing(what: str, width: int, color: bool) -> str:
    """Return a table of one row each. ``what``: models, gpus, topologies, strategies or scenarios."""
    rows = list(_ROWS[what]())
    columns = [
        Column(name.replace(" / ", "\n"), wraps=name in _WRAPS, right=isinstance(value, (int, float)))
        for name, value in rows[0].items()
    ]
    cells = [[Text(_cell(value)) for value in row.values()] for row in rows]
    return to_text([table(columns, cells)], width, color)


def listing_json(what: str) -> str:
    """Return the rows of ``listing`` as JSON; units are part of the keys, as in ``memory_gib``."""
    rows = [{re.sub(r"\W+", "_", key).lower().strip("_"): v for key, v in row.items()} for row in _ROWS[what]()]
    return json.dumps(rows, indent=2, ensure_ascii=False) + "\n"


def compact(noun: BaseModel) -> dict[str, Any]:
    """Return the fields that differ from their defaults, and the kinds that tell unions apart."""
    found = {}
    for name, field in type(noun).model_fields.items():
        value = getattr(noun, name)
        if value != field.get_default() or name == "kind":
            found[name] = _plain(value)
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return compact(value)
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:,g}" if isinstance(value, float) else str(value)


def _models() -> Iterator[Row]:
    from sim.catalog.models import load_model, model_names

    for name in model_names():
        yield {"name": name, **_figures(load_model(name))}


def _figures(model: Model) -> Row:
    attentions = list(dict.fromkeys(layer.attention for layer in model.kinds if layer.attention))
    moe = next((layer.ffn for layer in model.kinds if layer.ffn and layer.ffn.kind == "moe"), None)
    windows = any(a.window and not a.chunked for a in attentions)
    labels = [a.label for a in attentions] + ["linear" for layer in model.kinds if layer.linear]
    extras = ", window" * windows + ", chunks" * any(a.chunked for a in attentions)
    extras += ", index" * any(a.index_bytes for a in attentions)
    return {
        "billion / parameters": round(model.parameters / 1e9, 1),
        "layers": model.layers,
        "attention": "+".join(dict.fromkeys(labels)) + extras,
        "query / heads": max((a.query_heads for a in attentions), default=0),
        "KV / heads": "/".join(str(n) for n in dict.fromkeys(a.cached_heads for a in attentions)),
        "experts": f"{moe.top_k} of {moe.experts}" if moe else None,
        "hidden": model.hidden,
        "max / context": model.max_context,
        "weights": model.quantisation or "bf16",
    }


def _gpus() -> Iterator[Row]:
    from sim.catalog.gpus import gpu_names, load_gpu

    for name in gpu_names():
        gpu = load_gpu(name)
        peaks = {rate: gpu.peak.get(rate) for rate in ("bf16", "fp8", "fp4")}
        yield {
            "name": name,
            "memory / GiB": round(gpu.memory_bytes / 2**30, 1),
            "bandwidth / GB/s": round(gpu.bandwidth / 1e9),
            **{f"{rate} / TFLOP/s": round(peak / 1e12) if peak else None for rate, peak in peaks.items()},
            "NVLink / GB/s": round(gpu.nvlink.bandwidth / 1e9) if gpu.nvlink else None,
            "PCIe / GB/s": round(gpu.pcie_bandwidth / 1e9),
            "kernel / constants": gpu.constants,
        }


def _topologies() -> Iterator[Row]:
    from sim.catalog.topologies import topology_class, topology_names

    for name in topology_names():
        cls = topology_class(name)
        yield {"kind": name, "fields": _fields(cls), "written": _sentence(cls)}


def _strategies() -> Iterator[Row]:
    from sim.catalog.strategies import load_strategy, strategy_names
    from sim.strategy import Strategy

    for name in strategy_names():
        cls = load_strategy(name)
        own = {n: f for n, f in cls.model_fields.items() if n not in Strategy.model_fields}
        degrees = ", ".join(n + "?" * (not f.is_required()) for n, f in own.items())
        yield {"kind": name, "fields": degrees, "phases": ", ".join(cls.phases), "what": _sentence(cls)}


def _fields(cls: type[BaseModel]) -> str:
    return ", ".join(n + "?" * (not f.is_required()) for n, f in cls.model_fields.items()) or "none"


def _sentence(cls: type) -> str:
    """First sentence of a class's docstring."""
    text = inspect.getdoc(cls) or ""
    return " ".join(text.split("\n\n")[0].split()).replace("``", "")


def _scenarios() -> Iterator[Row]:
    from sim.catalog.scenarios import find_scenario, scenario_names
    from sim.documents import read_file

    for name in scenario_names():
        data = read_file(find_scenario(name)).data
        yield {
            "name": name,
            "question": data.get("name", name),
            "model": str(data.get("model")),
            "gpu": str(data.get("gpu")),
            "layouts": len(data.get("layouts", ())),
        }


_WRAPS = ("question", "what", "written", "fields", "attention")
_ROWS: dict[str, Callable[[], Iterator[Row]]] = {
    "models": _models,
    "gpus": _gpus,
    "topologies": _topologies,
    "strategies": _strategies,
    "scenarios": _scenarios,
}
