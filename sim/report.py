"""What comes out: duplication, memory, step time and the reasons, per layout. Plain data, ready for JSON.

Bytes are bytes, times are seconds. Names without a unit are counts or ratios. Figures "per rank" are those of the
fullest rank; ``ranks`` lists the ranks that differ.
"""

from __future__ import annotations

from typing import Self

from pydantic import Field

from sim.noun import Noun


class KvReport(Noun):
    """The KV cache of one layout at the scenario's batch and context."""

    duplication: float
    """Bytes held over all ranks / bytes of one unique copy of every sequence."""
    unique_bytes: int
    held_bytes: int
    bytes_per_token_per_rank: int
    """What one cached token takes on a rank that holds it, all layers of the rank's stage together."""
    heads_per_rank: int
    tokens_per_rank: int
    """Cached tokens on the fullest rank, summed over its sequences."""
    allocator: str = ""
    """The engine whose policy the following two figures are, with its version."""
    reserved_bytes_per_rank: int = 0
    """What the engine sets aside on the fullest rank for these sequences, in its blocks and page sizes."""
    charged_bytes_per_token: float = 0.0
    """By what the engine divides its cache on a rank to say how many tokens fit."""


class WeightsReport(Noun):
    """The weights of one layout."""

    duplication: float
    unique_bytes: int
    held_bytes: int
    bytes_per_rank: int


class MemoryReport(Noun):
    """Memory of the fullest rank by part, against the GPU's capacity."""

    capacity_bytes: int
    weights_bytes: int
    attention_bytes: int
    dense_ffn_bytes: int
    routed_experts_bytes: int
    shared_experts_bytes: int
    embeddings_bytes: int
    kv_bytes: int
    activations_bytes: int
    communication_bytes: int
    reserve_bytes: int
    draft_bytes: int = 0
    """Weights and cache of what drafts tokens."""
    total_bytes: int
    max_batch: int
    """Largest batch of the whole layout that fits at this context; 0 if none does."""
    max_context: int
    """Longest context that fits at this batch; 0 if none does."""


class StepReport(Noun):
    """One step of the slowest rank."""

    seconds: float
    low_seconds: float
    high_seconds: float
    """A tenth of measured steps is expected below ``low_seconds`` and a tenth above ``high_seconds``, as far as the
    residuals of the fits tell."""
    floor_seconds: float
    """The same operations at data-sheet bandwidth and peak, without any launch or message latency."""
    breakdown: dict[str, float]
    """Seconds by operation on the critical rank; communication counts with the part that nothing hides."""
    causes: dict[str, float] = Field(default_factory=dict)
    """The same seconds by what bounds them: KV reads, weight reads, compute, kernel overhead, each collective."""
    exposed_communication_seconds: float
    bottleneck: str


class SpeculationReport(Noun):
    """A step with drafts, against one without."""

    draft_tokens: int
    tokens_per_step: float
    """Tokens that a sequence gains in a step, on average."""
    draft_seconds: float
    """Of all drafts of a step."""
    verify_seconds: float
    """Of the step in which the model sees them."""
    tpot_seconds: float
    """Per token of a sequence: both together, over the tokens of a step."""
    plain_seconds: float
    """Of a step without drafts, which yields one token."""
    speedup: float
    """Tokens per second against no drafts."""
    best_draft_tokens: int
    """Beyond these, more drafts make a token slower; 0 if none pay."""
    best_tpot_seconds: float
    by_draft_tokens: dict[int, float]
    """Seconds per token by number of draft tokens."""


class FirstTokenReport(Noun):
    """From a request to its first token, with nothing else on the machine."""

    seconds: float
    steps: int
    """Chunks that a prompt is computed in (times micro-batches in flight)."""
    new_tokens: int
    """Of the longest prompt, those that are computed."""
    cached_tokens: int
    """Of the same prompt, those that were there before."""
    first_step_seconds: float
    last_step_seconds: float
    overlapped_seconds: float
    """What steps that are in flight at the same time save."""
    attention_seconds: float
    """In attention itself, without its projections."""
    parts: dict[str, float]
    """What the steps are bound by, and the front end; with ``overlapped_seconds`` taken off they add up."""


class RankGroup(Noun):
    """Ranks of one pipeline stage that hold and do the same."""

    ranks: str
    """Numbers inside one replica, such as ``0-7`` or ``0,2,4``."""
    count: int
    stage: int
    sequences: int
    kv_heads: int
    kv_tokens: int
    kv_bytes: int
    weights_bytes: int
    total_bytes: int
    busy_seconds: float
    """Computing in one step (with pipeline stages: for one micro-batch)."""


class LinkReport(Noun):
    """One direction of a link in one step, at granularity ``flows``."""

    source: str
    target: str
    bytes: float
    busy_seconds: float
    peak_utilisation: float
    """Highest part of the bandwidth that the algorithms can reach on it."""


class Tagged(Noun):
    """What is said of one layout, or of one layout in one variant of a scenario."""

    tag: str
    """Of the layout, and of the variant where a scenario has several."""
    variant: str = ""

    def of_variant(self, variant: str, alone: bool) -> Self:
        """The same, named as this variant's; ``alone`` where it has no other layout."""
        if not variant:
            return self
        return self.model_copy(update={"tag": variant if alone else f"{self.tag} {variant}", "variant": variant})


class LayoutReport(Tagged):
    """Everything about one layout."""

    strategy: str
    gpus: int
    feasible: bool
    reasons: tuple[str, ...] = ()
    """Why it does not fit, if it does not."""
    engine_notes: tuple[str, ...] = ()
    """Rules of inference engines that this layout breaks although it can exist."""
    kv: KvReport
    weights: WeightsReport
    memory: MemoryReport
    step: StepReport
    """In prefill with chunks, the last one; with speculation, the step that verifies the drafts."""
    speculation: SpeculationReport | None = None
    first_token: FirstTokenReport | None = None
    """In prefill."""
    tokens_per_s_per_user: float
    """Generated tokens in decode, prompt tokens in prefill."""
    output_tokens_per_s_per_gpu: float
    ranks: tuple[RankGroup, ...]
    pieces: int = 1
    """Into how many pieces the attention phase cuts the batch (HOP-B)."""
    rank_order: tuple[str, ...] | tuple[int, ...] | None = None
    """Axes outermost first, or GPU numbers, where the layout says or asks for an order of ranks on GPUs."""
    collectives: dict[str, str] = Field(default_factory=dict)
    """Which algorithm each communication uses, and over which link."""
    links: tuple[LinkReport, ...] = ()
    """The busiest links first, at most 32 of them; filled at granularity ``flows``."""


class Report(Noun):
    """The answer to a scenario."""

    scenario: str
    version: str
    layouts: tuple[LayoutReport, ...]
    conditions: tuple[str, ...] = ()
    """Faults, traffic of others and forced algorithms, in words."""
    findings: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    """Rules of the trade that the model or a layout breaks."""
    not_modelled: tuple[str, ...] = ()
    assumptions: dict[str, str] = Field(default_factory=dict)
    """Every constant that is not arithmetic, with its source."""
    resolved: dict[str, object] = Field(default_factory=dict)
    """The scenario with every default written out."""
