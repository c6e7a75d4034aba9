"""How many tokens an engine's cache will hold on a GPU: the line that it will log, with a range.

Capacity is that of one rank's memory: ranks of tensor parallelism hold copies or slices of the same tokens, so it is
never summed over them; replicas and attention data parallelism have one cache each.
"""

from __future__ import annotations

from sim.allocators import Allocator, load_allocator
from sim.errors import InputError
from sim.hardware import Gpu
from sim.lane import Lane
from sim.launch.launch import Launch
from sim.launch.peak import step_peak
from sim.launch.policy import Policy, load_policy, policies
from sim.launch.settings import Settings
from sim.noun import Noun
from sim.placement import Placement
from sim.workload import Sequences

MIB, GIB = 2**20, 2**30
LINES = {
    "vllm": "GPU KV cache size: {tokens:,} tokens",
    "sglang": "max_total_num_tokens={tokens}",
    "trtllm": "[MemUsageChange] Allocated {gib:.2f} GiB for max tokens in paged KV cache ({tokens})",
}


class Capacity(Noun):
    """The cache of one engine instance. Bytes are of the rank with the least room."""

    engine: str
    version: str
    capacity_bytes: int
    """What CUDA shows of the GPU."""
    fraction: float
    weights_bytes: int
    overhead_bytes: int
    """Libraries, communicators, the profiling step, graphs where they come out of the fraction."""
    cache_bytes: int
    """Left for the cache; negative if weights and overhead do not fit."""
    bytes_per_token: float
    """By which the engine divides it."""
    tokens: int
    low: int
    high: int
    pools: int = 1
    """Caches of this size: one per replica, or per replica of the attention."""
    length: int
    """Longest sequence that is allowed."""
    concurrency: float
    """Sequences of that length which fit into one cache."""
    line: str
    """What the engine will log."""

    @property
    def fits(self) -> bool:
        """Whether one sequence of the longest length fits, without which engines do not start or truncate it."""
        return self.tokens >= self.length


def capacity(launch: Launch, gpu: Gpu, version: str | None = None) -> Capacity:
    """Predict the cache of a launch.

    Parameters
    ----------
    version
        Of the memory policy; the newest one unless said.

    Raises
    ------
    InputError
        If the layout cannot exist, or no policy has that version.
    """
    s = launch.settings
    if launch.layout is None:
        raise InputError(f"the layout cannot exist: {'; '.join(launch.reasons)}")
    policy, allocator = load_policy(s.engine, version), load_allocator(s.engine)
    if s.block_size:
        allocator = allocator.model_copy(update={"block": s.block_size})
    placement = Placement(launch.loaded, launch.layout, launch.precision)
    length = s.max_length or launch.model.max_context or 2**17
    total = gpu.memory_bytes - policies().shared.driver
    stages = range(launch.layout.pp)
    weights = [max(sum(placement.weights(i, r).values()) for r in range(placement.cut.mesh.size)) for i in stages]
    overhead = _overhead(s, policy, placement, total, length)
    fraction = s.memory_fraction or policy.fraction or _static_fraction(launch, total)
    budget = [s.cache_bytes or _budget(policy, total, fraction, w, overhead) for w in weights]
    fits = [_tokens(allocator, placement, i, budget[i], length) for i in stages]
    tightest = min(stages, key=lambda i: fits[i][0])
    tokens, per_token = fits[tightest]
    if s.max_tokens:
        tokens = min(tokens, s.max_tokens)
    spread = 0.0 if s.cache_bytes or tokens == s.max_tokens else policy.spread
    tokens = max(tokens, 0)
    pools = launch.layout.replicas * placement.cut.sequence_groups
    return Capacity(
        engine=s.engine,
        version=policy.version,
        capacity_bytes=total,
        fraction=fraction,
        weights_bytes=weights[tightest],
        overhead_bytes=overhead,
        cache_bytes=budget[tightest],
        bytes_per_token=per_token,
        tokens=tokens,
        low=int(tokens * (1 - spread)),
        high=int(tokens * (1 + spread)),
        pools=pools,
        length=length,
        concurrency=tokens / length,
        line=LINES[s.engine].format(tokens=tokens, gib=budget[tightest] / GIB),
    )


def _tokens(allocator: Allocator, placement: Placement, stage: int, size: int, length: int) -> tuple[int, float]:
    """Tokens that fit into ``size`` bytes of cache on the ranks of a stage, and bytes of each.

    Where a sequence takes memory that does not grow with it (states, windows that are freed), engines say how many
    sequences of the longest length fit, times that length.
    """
    lane = Lane(0, placement.cut, Sequences.even(1, length), placement.precision)
    if any(layer.linear for _, layer in placement.stages[stage]):
        each = allocator.reserved(placement, stage, lane)
        return int(size / each * length), each / length
    per_token = allocator.token_bytes(placement, stage, lane)
    if per_token <= 0:
        return 2**40, 0.0  # a stage without a cache
    row = allocator.block * placement.cut.kv_ranks
    return max(int(size / per_token), 0) // row * row, per_token


def _budget(policy: Policy, total: int, fraction: float, weights: int, overhead: int) -> int:
    if policy.rule == "free":
        return int((total - weights - overhead) * fraction)
    return int(total * fraction) - weights - overhead


def _overhead(s: Settings, policy: Policy, placement: Placement, total: int, length: int) -> int:
    """Bytes beside weights and cache that the engine has counted when it sizes the cache."""
    shared = policies().shared
    size = shared.context + (shared.communicators if placement.cut.mesh.size > 1 else 0)
    large = total >= policy.large
    sequences = s.max_sequences or (policy.sequences.large if large else policy.sequences.small)
    if policy.profile == "max_length":
        chunked = policy.chunked_from is not None and length > policy.chunked_from
        size += step_peak(placement, policy.chunk if chunked else length, sequences, length, shared)
    elif policy.batched_tokens:
        tokens = policy.batched_tokens.large if large else policy.batched_tokens.small
        size += step_peak(placement, s.batched_tokens or tokens, sequences, length, shared)
    if policy.graphs == "inside" and not s.eager:
        size += shared.graphs
    return size


def _static_fraction(launch: Launch, total: int) -> float:
    """SGLang's default of ``mem_fraction_static`` (spec section 11)."""
    s, r = launch.settings, policies().sglang
    by_memory = next(d for d in r.by_memory if total / GIB < d.below)
    batch = s.graph_batch or (by_memory.batch_tp4 if s.tp >= 4 else by_memory.batch)
    attention_dp = s.dp if s.attention_dp else 1
    chunk = (s.batched_tokens or by_memory.chunk) // attention_dp
    latent = any(layer.attention and layer.attention.kind == "mla" for layer in launch.model.kinds)
    size = r.base + r.per_token * max(chunk, r.least_tokens) + s.tp * s.pp / 8 * r.per_8_ranks
    if not s.eager:
        size += r.graph_per_sequence * batch
        size += r.graph_per_sequence_attention_dp * batch * attention_dp if s.attention_dp else 0
        size += r.prefill_graphs_latent if latent else 0
    if total > r.floor_from:
        size = max(size, r.floor / MIB)
    size += r.deepep if s.all_to_all or s.deepep else 0
    return max(round((total - size * MIB) / total, 3), 0.05)
