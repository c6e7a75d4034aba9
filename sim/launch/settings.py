"""What a launch asks of an engine, in words that all engines share. ``None`` is what was not said."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from sim.noun import Noun

EngineKey = Literal["vllm", "sglang", "trtllm"]
Degree = Annotated[int, Field(ge=1, le=65536)]
Amount = Annotated[int, Field(ge=1, le=2**60)]
Text = Annotated[str, Field(min_length=1, max_length=500)]


class Settings(Noun):
    """One instance of an engine. Degrees carry the engine's own meaning: see ``sim.launch.layouts``."""

    engine: EngineKey
    model: Text | None = None
    role: str = ""
    """What this instance is among those of a deployment: ``prefill`` or ``decode``."""

    tp: Degree = 1
    pp: Degree = 1
    dp: Degree = 1
    dcp: Degree = 1
    pcp: Degree = 1
    """Ranks that share a prompt's tokens, and only these."""
    cp: Degree = 1
    """TensorRT-LLM's context parallel size, of kind ``cp_type``."""
    cp_type: Text | None = None
    ep: Degree | None = None
    moe_tp: Degree | None = None
    dense_tp: Degree | None = None
    expert_parallel: bool = False
    """vLLM's switch: experts over all ranks of tp x dp."""
    attention_dp: bool = False
    local_vocabulary: bool = False
    """Embedding and LM head over the ranks of one attention replica."""
    all_to_all: Text | None = None
    deepep: bool = False
    deepep_mode: Text | None = None
    redundant_experts: Annotated[int, Field(ge=0, le=65536)] = 0
    expert_placement: Text | None = None
    two_batch_overlap: bool = False
    interleave: Amount | None = None
    """Tokens in a row on one rank of those that share a sequence."""
    dcp_exchange: Text | None = None
    nodes: Degree = 1

    kv_format: Text | None = None
    quantization: Text | None = None
    dtype: Text | None = None
    max_length: Amount | None = None
    memory_fraction: Annotated[float, Field(gt=0, le=1)] | None = None
    cache_bytes: Amount | None = None
    max_tokens: Amount | None = None
    max_sequences: Amount | None = None
    batched_tokens: Amount | None = None
    block_size: Amount | None = None
    graph_batch: Amount | None = None
    eager: bool = False
    draft_tokens: Annotated[int, Field(ge=0, le=1023)] = 0
    draft_method: Text | None = None
    draft_model: Text | None = None

    ignored: tuple[str, ...] = ()
    """What was written and touches neither layout nor memory, or is not known to."""
