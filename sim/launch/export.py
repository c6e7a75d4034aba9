"""Write the launch command of a layout, with what the engine cannot do.

The command is read back: what comes out differently is what the engine cannot express, and is said in a note.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Any

from sim.errors import InputError, LayoutError
from sim.launch.command import parse
from sim.launch.gather import dashed
from sim.launch.layouts import layout_of
from sim.launch.settings import EngineKey
from sim.launch.tables import flag_table
from sim.model import Model
from sim.noun import Noun
from sim.strategy import Strategy, has_experts
from sim.workload import Precision

Fields = dict[str, Any]


class Exported(Noun):
    """A launch command."""

    engine: str
    command: str
    options: str = ""
    """YAML of further options, which the command names; empty where flags are enough."""
    notes: tuple[str, ...] = ()
    """What of the layout the engine does otherwise."""

    @property
    def exact(self) -> bool:
        """Whether the command means exactly the layout."""
        return not self.notes


def export_layout(
    layout: Strategy,
    model: Model,
    engine: EngineKey,
    precision: Precision | None = None,
    name: str | None = None,
    **limits: Any,
) -> Exported:
    """Return the command by which an engine runs a layout.

    Parameters
    ----------
    precision
        The format of the cache becomes a flag; weights are those of the checkpoint.
    name
        Of the checkpoint; that of the model unless said.
    limits
        Further fields of ``Settings``, such as ``max_length`` and ``memory_fraction``.

    Raises
    ------
    LayoutError
        If the engine has nothing like this layout.
    """
    writer = _WRITERS[engine].get(layout.kind)
    if writer is None:
        can = ", ".join(_WRITERS[engine])
        raise LayoutError(f"{engine} has no flags for {layout.kind}; it has them for {can}")
    fields = _plain(layout)
    said = writer(fields, has_experts(model)) | ({"pp": layout.pp} if layout.pp > 1 else {})
    if layout.two_batch_overlap:
        said["two_batch_overlap"] = True
    formats = {"fp8_ds_mla": "fp8", "nvfp4_ds_mla": "nvfp4", "bf16": None}
    kept = formats.get(precision.kv_cache, precision.kv_cache) if precision else None
    said |= {"kv_format": kept, **limits}
    said = {key: value for key, value in said.items() if value is not None and value is not False}
    name = name or model.hf_id or model.name
    command, options, lost = _options(name, said) if engine == "trtllm" else _command(engine, name, said)
    try:
        back = layout_of(parse(command, options=options), model)
    except InputError as error:
        raise LayoutError([f"{engine} cannot run {layout.label}: {p}" for p in error.problems]) from None
    notes = (*lost, *_differences(layout, back, engine))
    return Exported(engine=engine, command=command, options=options or "", notes=notes)


def _plain(layout: Strategy) -> Fields:
    return {name: getattr(layout, name) for name in type(layout).model_fields}


def _differences(wanted: Strategy, got: Strategy, engine: str) -> list[str]:
    """What the engine makes of a layout otherwise. Raises ``LayoutError`` where it is another layout."""
    if type(wanted) is not type(got):
        raise LayoutError(f"{engine} would run {got.label} instead of {wanted.label}")
    if wanted.model_copy(update={"tag": None}).degrees() != got.degrees() or wanted.pp != got.pp:
        raise LayoutError(f"{engine} would run {got.label} instead of {wanted.label}")
    mine, its = _plain(wanted), _plain(got)
    if mine["replicas"] != its["replicas"]:
        raise LayoutError(f"{engine} runs replicas as instances of their own; export the layout without replicas")
    return [
        f"{name}: {its[name]} in {engine} instead of {'its own choice' if mine[name] is None else mine[name]}"
        for name in mine
        if name != "tag" and mine[name] != its[name]
    ]


def _command(engine: str, model: str, said: Fields) -> tuple[str, None, list[str]]:
    """The command of these settings, and what no flag can say."""
    table = flag_table(engine)
    head = ["python", *table.commands[0]] if table.commands[0][0] == "-m" else list(table.commands[0])
    words = [*head, *(["--model-path", model] if engine == "sglang" else [model])]
    lost = []
    for name, value in said.items():
        flag = next((f for f in table.flags if f.sets == name), None)
        if flag is None:
            lost.append(f"{name}: {engine} has no flag for {value}")
        else:
            words += [dashed(flag.names[0])] if flag.type == "switch" else [dashed(flag.names[0]), str(value)]
    return shlex.join(words), None, lost


def _options(model: str, said: Fields) -> tuple[str, str, list[str]]:
    """The command of TensorRT-LLM, its YAML, and what neither can say."""
    table = flag_table("trtllm")
    found: Fields = {}
    lost = []
    for name, value in said.items():
        flag = next((f for f in table.flags if f.sets == name), None)
        key = next((k for k, sets in table.keys.items() if sets == name), None)
        if key is None and flag is not None:
            key = max(flag.names, key=len).strip("-").replace("-", "_")
        if key is None:
            lost.append(f"{name}: TensorRT-LLM has no option for {value}")
            continue
        group, dot, inner = key.partition(".")
        if dot:
            found.setdefault(group, {})[inner] = value
        else:
            found[group] = value
    lines = []
    for key, value in found.items():
        inner = ", ".join(f"{k}: {_yaml(v)}" for k, v in value.items()) if isinstance(value, dict) else ""
        lines.append(f"{key}: {{{inner}}}" if isinstance(value, dict) else f"{key}: {_yaml(value)}")
    options = "\n".join(lines) + "\n"
    return shlex.join(["trtllm-serve", model, "--extra_llm_api_options", "options.yaml"]), options, lost


def _yaml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _copies(f: Fields) -> Fields:
    return {"dp": f["replicas"]} if f["replicas"] > 1 else {}


def _shared_tokens(f: Fields) -> Fields:
    exchange = f["exchange"] if f["exchange"] != "ag_rs" else None
    return {
        "tp": f["tp"],
        "dcp": f["dcp"],
        "dcp_exchange": exchange,
        "interleave": f["block"] if f["block"] > 1 else None,
    }


def _vllm_tp(f: Fields, moe: bool) -> Fields:
    return {"tp": f["tp"], "expert_parallel": f["ep"] > 1, **({} if moe else _copies(f))}


def _vllm_dcp(f: Fields, moe: bool) -> Fields:
    return {**_shared_tokens(f), "expert_parallel": f["ep"] > 1, **({} if moe else _copies(f))}


def _vllm_dp(f: Fields, moe: bool) -> Fields:
    return {"tp": f["tp"], "dp": f["dp"], "expert_parallel": f["ep"] > 1}


def _vllm_wide(f: Fields, moe: bool) -> Fields:
    backend = "deepep_low_latency" if f["copies"] == "per_expert" else "deepep_high_throughput"
    placement = f["placement"] if f["placement"] != "linear" else None
    more = {"redundant_experts": f["redundant_experts"] or None, "expert_placement": placement}
    return {"tp": f["tp"], "dp": f["dp"], "expert_parallel": True, "all_to_all": backend, **more}


def _sglang_tp(f: Fields, moe: bool) -> Fields:
    return {"tp": f["tp"], "ep": f["ep"] if f["ep"] > 1 else None, **_copies(f)}


def _sglang_dcp(f: Fields, moe: bool) -> Fields:
    return {**_shared_tokens(f), "ep": f["ep"] if f["ep"] > 1 else None, **_copies(f)}


def _sglang_dp(f: Fields, moe: bool) -> Fields:
    dense, vocab = ("attention_tp",) * 2 if f["ep"] > 1 else ("world",) * 2
    more = {"dense_tp": f["tp"]} if (f["dense"] or dense) == "attention_tp" else {}
    local = (f["vocab"] or vocab) == "attention_tp"
    ep = {"ep": f["ep"] if f["ep"] > 1 else None}
    return {"tp": f["dp"] * f["tp"], "dp": f["dp"], "attention_dp": True, **ep, **more, "local_vocabulary": local}


def _sglang_wide(f: Fields, moe: bool) -> Fields:
    mode = "normal" if f["copies"] == "per_rank" else "low_latency"
    data = {"dp": f["dp"], "attention_dp": True} if f["dp"] > 1 else {}
    more = {"all_to_all": "deepep", "deepep_mode": mode, "redundant_experts": f["redundant_experts"] or None}
    return {"tp": f["dp"] * f["tp"], **data, **more}


def _trtllm_tp(f: Fields, moe: bool) -> Fields:
    return {"tp": f["tp"], "ep": f["ep"] if f["ep"] > 1 else None}


def _trtllm_dp(f: Fields, moe: bool) -> Fields:
    if f["tp"] > 1:
        raise LayoutError("TensorRT-LLM's attention data parallelism has no tensor parallelism inside; choose tp 1")
    return {"tp": f["dp"], "ep": f["ep"] if f["ep"] > 1 else None, "attention_dp": True}


def _trtllm_wide(f: Fields, moe: bool) -> Fields:
    return {**_trtllm_dp({**f, "ep": f["dp"]}, moe), "all_to_all": "WIDEEP"}


def _trtllm_helix(f: Fields, moe: bool) -> Fields:
    if f["dp"] > 1 and f["tpa"] > 1:
        raise LayoutError("TensorRT-LLM's attention data parallelism has no tensor parallelism inside; choose tpa 1")
    data = {"tp": f["dp"], "attention_dp": True} if f["dp"] > 1 else {"tp": f["tpa"]}
    ep = f["ep"] if f["ep"] > 1 else None
    return {**data, "cp": f["kvp"], "cp_type": "HELIX", "interleave": f["block"], "ep": ep}


_Writer = Callable[[Fields, bool], Fields]
_WRITERS: dict[str, dict[str, _Writer]] = {
    "vllm": {"tp": _vllm_tp, "dcp": _vllm_dcp, "attention_dp": _vllm_dp, "wide_ep": _vllm_wide},
    "sglang": {"tp": _sglang_tp, "dcp": _sglang_dcp, "attention_dp": _sglang_dp, "wide_ep": _sglang_wide},
    "trtllm": {"tp": _trtllm_tp, "helix": _trtllm_helix, "attention_dp": _trtllm_dp, "wide_ep": _trtllm_wide},
}
"""Settings of each kind of layout that an engine has."""
