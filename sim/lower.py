"""From a strategy to the program of one step: every kind of layer is written and type-checked once."""

from __future__ import annotations

from functools import lru_cache

from sim.builder import Builder
from sim.cut import Cut
from sim.errors import ProgramError
from sim.model import Layer, Model
from sim.overlap import interleave
from sim.program import Alias, Op, Program, Segment, Value
from sim.strategy import Strategy
from sim.workload import Phase

CARRY = ("y", "residual")


@lru_cache(maxsize=1024)
def cut_of(strategy: Strategy, model: Model) -> Cut:
    """The strategy's cut of a model; kept, because placement and program must read the same one."""
    return strategy.cut(model)


@lru_cache(maxsize=256)
def lower(model: Model, strategy: Strategy, phase: Phase, pieces: int = 1) -> Program:
    """The program of one step.

    Parameters
    ----------
    pieces
        Into how many pieces the attention phase cuts the batch (HOP-B).

    Raises
    ------
    ProgramError
        If the strategy's program does not type-check.
    """
    cut = cut_of(strategy, model)

    def builder(layer: Layer | None) -> Builder:
        return Builder(model, cut, phase, layer, pieces)

    b = builder(None)
    with b.section("embedding"):
        h = strategy.begin(b)
        b.whole("begin", h)
        begin = b.segment((), (h, b.zeros(h)))
    carry = tuple(h._replace(name=name) for name in CARRY)
    layers = {layer: _layer(builder(layer), strategy, carry, strategy.two_batch_overlap) for layer in model.kinds}
    b = builder(None)
    with b.section("logits"):
        x, _ = b.add_norm(carry[0], carry[1], "final_norm")
        b.sample(strategy.end(b, b.last_tokens(x)))
        end = b.segment(carry, ())
    return Program(begin, layers, end)


def _layer(b: Builder, strategy: Strategy, carry: tuple[Value, ...], halves: bool) -> Segment:
    if not halves:
        exit_ = _blocks(b, strategy, carry)
        return b.segment(carry, exit_)
    written: list[list[Op]] = []
    exits: list[tuple[Value, ...]] = []
    for half in range(2):
        b.ops = []
        part = tuple(v._replace(chunk=((half, 2),)) for v in carry)
        exits.append(_blocks(b, strategy, part))
        written.append(b.ops)
    splits: list[Op] = [Alias("split", (v,), (v._replace(chunk=((half, 2),)),)) for v in carry for half in range(2)]
    b.ops = splits + interleave(*written)
    joined = tuple(b.concat(list(pair)) for pair in zip(*exits, strict=True))
    return b.segment(carry, joined)


def _blocks(b: Builder, strategy: Strategy, carry: tuple[Value, ...]) -> tuple[Value, ...]:
    y, residual = carry
    assert b.layer
    if b.layer.attention:
        with b.section("attention"):
            x, residual = b.add_norm(y, residual, "attn_norm")
            y = strategy.attention(b, x)
    if b.layer.linear:
        with b.section("attention"):
            x, residual = b.add_norm(y, residual, "attn_norm")
            y = strategy.recurrence(b, x)
    if b.layer.ffn:
        with b.section("ffn"):
            x, residual = b.add_norm(y, residual, "ffn_norm")
            y = strategy.ffn(b, x)
    for v in (y, residual):
        b.whole("layer", v)
        if (v.tokens, v.dims, v.only) != (carry[0].tokens, carry[0].dims, carry[0].only):
            raise ProgramError(f"the layer takes tokens split over {carry[0].tokens} and returns {v.tokens}")
    return y, residual
