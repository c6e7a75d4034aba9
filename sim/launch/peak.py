"""Bytes that a step of many tokens needs beside weights and cache, as an engine's profiling run measures them.

An upper bound per rank (spec section 11): hidden states, projections, the widest feed-forward block, workspaces of
attention kinds; or the sampler's copies of the logits, where these are more.
"""

from __future__ import annotations

from sim.lane import Lane
from sim.launch.policy import Shared
from sim.model import LatentAttention, Layer, Model, MoeFfn
from sim.placement import Placement
from sim.workload import Sequences

ELEMENT = 2
"""Bytes of one element of an activation."""


def step_peak(placement: Placement, tokens: int, sequences: int, length: int, shared: Shared) -> int:
    """Bytes on rank 0 of a step of ``tokens`` tokens of sequences of at most ``length``."""
    lane = Lane(0, placement.cut, Sequences.even(1, 1), placement.precision)
    model = placement.model
    layers = [_layer(model, layer, lane, tokens) for layer in model.kinds]
    workspace = max((_workspace(layer, lane, length, shared) for layer in model.kinds), default=0)
    sampler = sequences * model.vocab * shared.sampler_bytes
    return max(tokens * 2 * model.hidden * ELEMENT + max(layers), sampler) + workspace


def _layer(model: Model, layer: Layer, lane: Lane, tokens: int) -> int:
    """The larger of what the two blocks of a layer need."""
    mixer = feed_forward = 0
    if a := layer.attention:
        heads = lane.size(lane.cut.dim("q_heads", a.query_heads))
        mixer = heads * 2 * a.v_head_dim + 2 * lane.kv_heads(a) * a.v_head_dim
    if f := layer.ffn:
        if isinstance(f, MoeFfn):
            ranks = lane.cut.mesh.count(lane.cut.axes("experts")) * lane.cut.mesh.count(lane.cut.axes("expert_ffn"))
            shared = 3 * f.shared_width // lane.cut.mesh.count(lane.cut.axes("shared_ffn"))
            feed_forward = f.top_k * (model.hidden + 3 * f.width // ranks) + shared
        else:
            feed_forward = 3 * f.width // lane.cut.mesh.count(lane.cut.axes("ffn"))
    return tokens * max(mixer, feed_forward) * ELEMENT


def _workspace(layer: Layer, lane: Lane, length: int, shared: Shared) -> int:
    """Buffers that attention over a latent keeps: a chunk's up-projected heads, and keys gathered for an index."""
    a = layer.attention
    if not isinstance(a, LatentAttention):
        return 0
    heads = lane.size(lane.cut.dim("q_heads", a.query_heads))
    chunk = min(8 * length, shared.workspace_tokens)
    size = chunk * (a.cache_elements + heads * (a.nope_dim + a.v_head_dim)) * ELEMENT
    return size + (shared.index_gather_lengths * length * a.index_bytes if a.index_bytes else 0)
