"""The layout that an engine makes of its degrees, as this project names layouts.

vLLM's ``tp`` and ``dp`` multiply, and experts lie over both; SGLang's attention data parallelism divides ``tp``;
TensorRT-LLM's ``enable_attention_dp`` turns all of ``tp`` into it.
"""

from __future__ import annotations

from typing import Any

from sim.catalog.strategies import parse_layout
from sim.engine_rules import Case
from sim.errors import LayoutError, Problem
from sim.explain import show
from sim.launch.settings import Settings
from sim.model import Model
from sim.strategy import Strategy, has_experts

PER_RANK = {"deepep_high_throughput", "deepep", "pplx", "naive_deepep", "mooncake", "flashinfer_all2allv", "WIDEEP"}
PER_EXPERT = {"deepep_low_latency"}
GATHERED = {"allgather_reducescatter", "naive", "none", "CUTLASS", "TRTLLM", "CUTEDSL", "DEEPGEMM", "TRITON", "VANILLA"}


def layout_of(settings: Settings, model: Model) -> Strategy:
    """The layout of one instance.

    Raises
    ------
    LayoutError
        If the engine's degrees contradict each other, or mean a layout that is not modelled.
    """
    if settings.pcp > 1:
        raise LayoutError("ranks that share only the prompt (prefill context parallelism) are not modelled")
    fields = {"vllm": _vllm, "sglang": _sglang, "trtllm": _trtllm}[settings.engine](settings, has_experts(model))
    if settings.dcp > 1:
        fields |= _shared_caches(settings, model)
    fields |= {"pp": settings.pp} if settings.pp > 1 else {}
    fields |= {"two_batch_overlap": True} if settings.two_batch_overlap else {}
    fields |= {"stage_split": "trtllm"} if settings.engine == "trtllm" and settings.pp > 1 else {}
    return parse_layout({key: value for key, value in fields.items() if value is not None})


def _vllm(s: Settings, moe: bool) -> dict[str, Any]:
    ranks = s.tp * s.dp
    if s.dcp > 1:
        if s.dp > 1 and moe:
            raise LayoutError("dcp together with data parallelism of experts is not modelled; leave one of them out")
        return {**_dcp(s), "ep": s.tp if s.expert_parallel and moe else None, **_copies(s.dp)}
    if s.dp == 1 or not moe:
        return {"strategy": "tp", "tp": s.tp, "ep": s.tp if s.expert_parallel and moe else None, **_copies(s.dp)}
    dispatch = _dispatch(s)
    if s.expert_parallel and dispatch:
        return _wide(s, s.dp, s.tp, dispatch)
    ep = ranks if s.expert_parallel else 1
    own = _unless_usual("attention_tp", ep)
    return {"strategy": "attention_dp", "dp": s.dp, "tp": s.tp, "ep": ep, "dense": own, "vocab": own}


def _sglang(s: Settings, moe: bool) -> dict[str, Any]:
    dispatch = _dispatch(s) or ("per_rank" if s.deepep else None)
    if dispatch and s.deepep_mode in (None, "auto", "low_latency"):
        dispatch = "per_expert"
    attention_dp = s.dp if s.attention_dp else 1
    copies = _copies(1 if s.attention_dp else s.dp)
    if s.tp % attention_dp:
        raise LayoutError(Problem(f"attention dp {attention_dp} does not divide tp {s.tp}", "dp"))
    attention_tp = s.tp // attention_dp
    if s.dcp > 1:
        if attention_dp > 1 or dispatch:
            raise LayoutError("dcp together with attention data parallelism or an all-to-all is not modelled")
        return {**_dcp(s), "ep": s.ep, **copies}
    if dispatch and moe:
        return {**_wide(s, attention_dp, attention_tp, dispatch), **copies}
    if attention_dp == 1:
        return {"strategy": "tp", "tp": s.tp, "ep": s.ep if moe else None, **copies}
    if s.dense_tp not in (None, attention_tp, s.tp):
        raise LayoutError(f"dense TP {s.dense_tp} inside attention TP {attention_tp} is not modelled")
    dense = "attention_tp" if s.dense_tp == attention_tp else "world"
    vocab = "attention_tp" if s.local_vocabulary else "world"
    ep = (s.ep if moe else None) or 1
    over = {"dense": _unless_usual(dense, ep), "vocab": _unless_usual(vocab, ep)}
    return {"strategy": "attention_dp", "dp": attention_dp, "tp": attention_tp, "ep": ep, **over}


def _trtllm(s: Settings, moe: bool) -> dict[str, Any]:
    ranks = s.tp * s.cp
    ep = s.ep if moe else None
    if s.moe_tp and s.ep and s.moe_tp * s.ep != ranks:
        text = f"moe tp {s.moe_tp} x moe ep {s.ep} must be the {ranks} ranks of tp x cp"
        raise LayoutError(Problem(text, "moe_tensor_parallel_size"))
    if s.moe_tp and not s.ep and moe:
        ep = max(ranks // s.moe_tp, 1)
    dp, tp = (s.tp, 1) if s.attention_dp else (1, s.tp)
    if s.cp > 1:
        if (s.cp_type or "").upper() != "HELIX":
            raise LayoutError(Problem("only HELIX context parallelism is modelled; write cp_type: HELIX", "cp_config"))
        dp_ = {"dp": dp} if dp > 1 else {}
        return {"strategy": "helix", "tpa": tp, "kvp": s.cp, **dp_, "ep": ep, "block": s.interleave or s.block_size}
    dispatch = _dispatch(s)
    if dispatch and moe:
        return _wide(s, dp, tp, dispatch)
    if s.attention_dp:
        return {"strategy": "attention_dp", "dp": dp, "ep": ep}
    return {"strategy": "tp", "tp": tp, "ep": ep}


def _shared_caches(s: Settings, model: Model) -> dict[str, str]:
    """What dcp ranks do with what is no plain cache: SGLang keeps an index whole, vLLM splits states."""
    indexed = any(layer.attention and layer.attention.index_bytes for layer in model.kinds)
    linear = any(layer.linear for layer in model.kinds)
    fields = {"index": "whole"} if indexed and s.engine == "sglang" else {}
    return fields | ({"linear_state": "sharded"} if linear and s.engine == "vllm" else {})


def _unless_usual(over: str, ep: int) -> str | None:
    """Leave out what ``attention_dp`` does by itself."""
    return None if over == ("attention_tp" if ep > 1 else "world") else over


def _copies(count: int) -> dict[str, int]:
    return {"replicas": count} if count > 1 else {}


def _dcp(s: Settings) -> dict[str, Any]:
    exchange = {"ag_rs": "ag_rs", "a2a": "a2a", None: None}
    if s.dcp_exchange not in exchange:
        raise LayoutError(Problem(f"must be ag_rs or a2a, not {show(s.dcp_exchange)}", "dcp-comm-backend"))
    return {"strategy": "dcp", "tp": s.tp, "dcp": s.dcp, "exchange": exchange[s.dcp_exchange], "block": s.interleave}


def _dispatch(s: Settings) -> str | None:
    """How tokens travel to experts; ``None`` where all of them are gathered. Raises ``LayoutError`` if not known."""
    name = s.all_to_all
    if name is None or name in GATHERED:
        return None
    if name in PER_EXPERT:
        return "per_expert"
    if name in PER_RANK:
        return "per_rank"
    known = ", ".join(sorted(GATHERED | PER_RANK | PER_EXPERT))
    raise LayoutError(Problem(f"all-to-all {show(name)} is not known; known: {known}", "all2all"))


def _wide(s: Settings, dp: int, tp: int, copies: str) -> dict[str, Any]:
    placement = s.expert_placement
    return {
        "strategy": "wide_ep",
        "dp": dp,
        "tp": tp,
        "copies": copies,
        "redundant_experts": s.redundant_experts,
        "placement": placement,
    }


def case_of(settings: Settings, model: Model, weights: str) -> Case:
    """What the engine's rules look at."""
    s = settings
    ranks = s.tp * s.cp * (s.dp if s.engine == "vllm" else 1)
    attention_dp = s.attention_dp and s.engine != "vllm"
    heads = (1 if s.engine == "trtllm" else max(s.tp // s.dp, 1)) if attention_dp else s.tp
    ep = ranks if s.expert_parallel else s.ep or 1
    spread = s.deepep or (s.engine == "sglang" and s.all_to_all not in (None, "none"))
    ep = ranks if spread else ep
    dense = {"vllm": s.tp, "sglang": s.dense_tp or s.tp, "trtllm": 1 if attention_dp else ranks}[s.engine]
    return Case(
        engine=s.engine,
        model=model,
        heads=heads,
        dcp=s.dcp,
        sharded_index=s.engine == "vllm",
        kvp=s.cp,
        pp=s.pp,
        ep=ep,
        slices=max(ranks // ep, 1),
        dense=dense,
        slots=s.redundant_experts,
        weights=weights,
        block_size=s.block_size,
        interleave=s.interleave,
        max_length=s.max_length,
    )
