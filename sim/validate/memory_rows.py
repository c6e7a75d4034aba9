"""Start-up logs of engines (``memory.csv``): bytes of one cached token on one rank, and weights per rank.

What an engine charges for a token is its allocator's policy (``sim.allocators``). A draft layer counts as one more
layer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from sim.allocators import Allocator, allocator_names, load_allocator
from sim.catalog.models import load_model
from sim.catalog.strategies import parse_layout
from sim.errors import InputError
from sim.lane import Lane
from sim.model import GroupedQueryAttention, LatentAttention, Layer, LayerRun, Model
from sim.placement import Placement
from sim.strategy import Strategy
from sim.validate.names import names
from sim.validate.result import Group, Outcome
from sim.workload import Precision, Sequences

TOKENS = 8192
"""Length of the sequence whose bytes are divided by its tokens; a multiple of every number of ranks that share it."""
GIB = 2**30
Row = dict[str, str]


def memory_groups(rows: Iterable[Row]) -> list[Group]:
    """KV bytes per token that agree with a closed form, the other KV figures, and weights per rank."""
    rows = list(rows)
    kv = [row for row in rows if row["observed_B_per_token_rank"]]
    agree = tuple(_kv(row) for row in kv if row["formula_verdict"] == "agree")
    other = tuple(_kv(row) for row in kv if row["formula_verdict"] != "agree")
    weights = tuple(_weights(row) for row in rows if row["weights_GiB_per_rank"])
    return [
        Group("memory: KV bytes per token and rank", agree),
        Group("memory: the same, figures that publishers derived or that do not add up", other),
        Group("memory: weights per rank", weights),
    ]


def _int(text: str) -> int:
    return int(float(text)) if text else 0


def shape(row: Row) -> Model:
    """The catalogue's model, or one whose cache has the layers and heads of the row. Raises ``InputError``."""
    known = names().models.get(row["model"])
    if known:
        model = load_model(known)
    elif row["model"] in names().caches:
        runs = [_cached(*run) for run in names().caches[row["model"]]]
        model = Model(name=row["model"], hidden=1024, vocab=1024, pattern=tuple(runs))
    elif row["kv_layers"]:
        size, heads = _int(row["head_dim_or_latent"]), _int(row["kv_heads"])
        latent = {"q_lora_rank": None, "kv_lora_rank": size - 64, "rope_dim": 64, "nope_dim": 128, "v_head_dim": 128}
        attention = (
            LatentAttention(query_heads=64, **latent)
            if row["attn"].startswith("MLA")
            else GroupedQueryAttention(query_heads=8 * heads, kv_heads=heads, head_dim=size, v_head_dim=size)
        )
        run = LayerRun(count=_int(row["kv_layers"]), layer=Layer(attention=attention))
        model = Model(name=row["model"], hidden=1024, vocab=1024, pattern=(run,))
        return model  # the row counts a draft layer among its own
    else:
        raise InputError("neither the catalogue nor the row says the shape of the model")
    if re.search(r"\+1 layer|MTP", row["spec_decode"]):
        fields = {name: getattr(model, name) for name in Model.model_fields}
        return Model(**{**fields, "tail": (*model.tail, LayerRun(count=1, layer=model.runs[-1][1]))})
    return model


def _cached(layers: int, heads: int, size: int, window: int | None = None) -> LayerRun:
    attention = GroupedQueryAttention(query_heads=heads, kv_heads=heads, head_dim=size, v_head_dim=size, window=window)
    return LayerRun(count=layers, layer=Layer(attention=attention))


def layout(row: Row) -> Strategy:
    """The layout of a row; of a launcher's ``tp`` the attention has tp / dp."""
    tp, dp, dcp, pp = (_int(row[k]) or 1 for k in ("tp", "dp_attn", "cp_dcp", "pp"))
    stages = {"pp": pp} if pp > 1 else {}
    if dp > 1:
        return parse_layout({"strategy": "attention_dp", "dp": dp, "tp": max(1, tp // dp), "ep": _int(row["ep"]) or 1})
    if dcp > 1:
        return parse_layout({"strategy": "dcp", "tp": tp, "dcp": dcp, **stages})
    return parse_layout({"strategy": "tp", "tp": tp, **stages})


def kv_bytes(model: Model, strategy: Strategy, precision: Precision, engine: str) -> float:
    """Bytes that one cached token takes on one rank under an engine's allocator."""
    placement = Placement(model, strategy, precision)
    lane = Lane(0, placement.cut, Sequences.even(1, TOKENS), precision)
    return max(allocator(engine).token_bytes(placement, stage, lane) for stage in range(strategy.pp))


def allocator(engine: str) -> Allocator:
    """The policy of the engine whose name a row's begins with, such as ``vLLM 0.28`` or ``SGLang-NPU``."""
    for policy in map(load_allocator, allocator_names()):
        if engine.startswith(policy.name):
            return policy
    raise InputError(f"the allocator of {engine} is not known")


def memory_precision(row: Row, model: Model) -> Precision:
    """Formats of a row's checkpoint and cache."""
    kv = row["kv_dtype"] or "bf16"
    words = row["weights_dtype"].partition(" ")[0]
    weights = {"int4": "int4_g32", "compressed-tensors": "int4", "bf16-loaded": "fp8"}.get(words, words)
    kept = names().unquantised.get(row["model"])
    experts = any(layer.ffn and layer.ffn.kind == "moe" for layer in model.kinds)
    if experts and weights == "nvfp4":
        kept = ("attention",)
    elif experts and weights == "int4_g32":
        kept = ("attention", "dense_ffn", "shared_experts")
    known = weights if weights in ("bf16", "fp8", "nvfp4", "mxfp4", "int4", "int4_g32") else None
    return Precision(weights=known, kv_cache=kv, unquantised=kept).resolve(model)


def _outcome(row: Row, what: str, measured: float, unit: str, predicted: float | None, why: str = "") -> Outcome:
    text = f"{row['model']} {row['engine']} tp{row['tp']} {what}"
    return Outcome(row["row_id"], text, row["source_url"], measured, predicted, unit, why)


def _kv(row: Row) -> Outcome:
    measured = float(row["observed_B_per_token_rank"])
    try:
        model = shape(row)
        found = kv_bytes(model, layout(row), memory_precision(row, model), row["engine"])
    except InputError as error:
        return _outcome(row, "KV", measured, "B", None, str(error))
    return _outcome(row, "KV", measured, "B", found)


def _weights(row: Row) -> Outcome:
    measured = float(row["weights_GiB_per_rank"]) * GIB
    if row["model"] not in names().models:
        return _outcome(row, "weights", measured, "B", None, "the catalogue does not have the model")
    if "offloaded" in row["weights_dtype"]:
        return _outcome(row, "weights", measured, "B", None, "experts are on the host")
    if not row["weights_dtype"] or not row["n_gpus"]:
        return _outcome(row, "weights", measured, "B", None, "the row does not say the format or the number of ranks")
    try:
        model = shape(row)
        placement = Placement(model, layout(row), memory_precision(row, model))
        found = max(sum(placement.weights(0, rank).values()) for rank in range(placement.cut.mesh.size))
    except InputError as error:
        return _outcome(row, "weights", measured, "B", None, str(error))
    return _outcome(row, "weights", measured, "B", found)
