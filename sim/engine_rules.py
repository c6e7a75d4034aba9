"""The rules by which engines refuse a layout or run it wrongly: one list for strategies and launch commands.

Each rule says whose it is. They were read in vLLM 0.33.0, SGLang 0.5.23, TensorRT-LLM 1.3.0 and the Helix paper. What
an engine refuses is still a layout that can exist.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple

from sim.model import Attention, DenseFfn, GroupedQueryAttention, LatentAttention, Model, MoeFfn

Effect = Literal["refuses", "unchecked", "advises"]
"""The engine stops; the engine runs and the result is wrong; a publisher advises against it."""
MERGED = (512, 1024, 2048)
"""Top-k for which vLLM 0.33.0 has a kernel that merges the candidates of a sharded index."""
BLOCK = 128
"""Side of the blocks of FP8 weights that share a scale (DeepSeek-V3 technical report)."""


class Case(NamedTuple):
    """What an engine is asked to run. Degrees of 1 are not used."""

    engine: str
    model: Model
    heads: int = 1
    """Ranks over which the query heads are split when they are projected."""
    dcp: int = 1
    sharded_index: bool = False
    """Whether ``dcp`` ranks share the keys of a sparse index."""
    kvp: int = 1
    pp: int = 1
    ep: int = 1
    slices: int = 1
    """Ranks over which each expert is sliced."""
    dense: int = 1
    """Ranks over which dense and shared feed-forward blocks are sliced."""
    slots: int = 0
    """Redundant experts."""
    weights: str = "bf16"
    block_size: int | None = None
    interleave: int | None = None
    max_length: int | None = None

    @property
    def attentions(self) -> list[Attention]:
        """The different kinds of attention with a cache."""
        return list(dict.fromkeys(layer.attention for layer in self.model.kinds if layer.attention))


class Broken(NamedTuple):
    """A rule that a case breaks."""

    rule: str
    engine: str
    effect: Effect
    text: str


class Rule(NamedTuple):
    """A named rule: whose it is, what happens, and what it says of a case."""

    name: str
    engines: tuple[str, ...]
    effect: Effect
    check: Callable[[Case], Iterable[str]]


def _heads(c: Case) -> Iterable[str]:
    for a in c.attentions:
        if a.query_heads % c.heads:
            yield f"{a.query_heads} attention heads are not divisible by tensor parallel size {c.heads}"


def _kv_heads(c: Case) -> Iterable[str]:
    for a in c.attentions:
        if isinstance(a, GroupedQueryAttention) and a.kv_heads % c.heads and c.heads % a.kv_heads:
            yield f"neither of {a.kv_heads} KV heads and tensor parallel size {c.heads} divides the other"


def _helix_heads(c: Case) -> Iterable[str]:
    for a in c.attentions:
        if c.kvp > 1 and a.query_heads % (c.heads * c.kvp):
            yield f"{a.query_heads} attention heads are not divisible by tp x cp = {c.heads * c.kvp}"


def _dcp_divides(c: Case) -> Iterable[str]:
    if c.heads % c.dcp:
        yield f"dcp {c.dcp} does not divide tensor parallel size {c.heads}"


def _dcp_heads(c: Case) -> Iterable[str]:
    for a in c.attentions if c.dcp > 1 else ():
        if isinstance(a, GroupedQueryAttention):
            limit = c.heads // a.kv_heads
            if limit < c.dcp or limit < 2 or (a.query_heads // a.kv_heads) % c.dcp or limit % c.dcp:
                most = f"at most {limit}" if limit > 1 else f"no dcp at tp {c.heads}"
                yield f"vLLM refuses dcp {c.dcp} here: {a.kv_heads} KV heads allow {most}; SGLang runs it"


def _dcp_index(c: Case) -> Iterable[str]:
    for a in c.attentions if c.dcp > 1 and c.sharded_index else ():
        if isinstance(a, LatentAttention) and a.index and a.index.top_k not in MERGED:
            few = ", ".join(map(str, MERGED))
            yield f"vLLM merges the candidates of a sharded index only for a top-k of {few}"


def _dcp_windows(c: Case) -> Iterable[str]:
    if c.dcp > 1 and any(a.window for a in c.attentions):
        yield "vLLM refuses dcp on sliding-window layers"


def _interleave(c: Case) -> Iterable[str]:
    block = c.block_size or 16
    if c.dcp > 1 and c.interleave and (c.interleave > block or block % c.interleave):
        yield f"interleave {c.interleave} must divide the block size {block}"


def _blocks(c: Case) -> Iterable[str]:
    if c.weights != "fp8_block":
        return
    seen = set()
    for layer in c.model.kinds:
        widths = []
        if isinstance(layer.ffn, MoeFfn):
            widths = [(layer.ffn.width, c.slices, "an expert"), (layer.ffn.shared_width, c.dense, "the shared expert")]
        elif isinstance(layer.ffn, DenseFfn):
            widths = [(layer.ffn.width, c.dense, "the dense FFN")]
        for width, ranks, what in widths:
            if width and (width % ranks or width // ranks % BLOCK) and (width, ranks) not in seen:
                seen.add((width, ranks))
                yield (
                    f"{width:,} columns of {what} over {ranks} ranks leave {width / ranks:g}, not a multiple of the "
                    f"FP8 block of {BLOCK}"
                )


def _experts(c: Case) -> Iterable[str]:
    for count in sorted({layer.ffn.experts for layer in c.model.kinds if isinstance(layer.ffn, MoeFfn)}):
        if (count + c.slots) % c.ep:
            more = -(count + c.slots) % c.ep + c.slots
            yield f"{count + c.slots} expert slots do not fill {c.ep} ranks evenly; {more} redundant experts would"


def _stages(c: Case) -> Iterable[str]:
    if c.pp > c.model.layers:
        yield f"{c.pp} stages are more than the {c.model.layers} layers"


def _length(c: Case) -> Iterable[str]:
    if c.max_length and c.model.max_context and c.max_length > c.model.max_context:
        yield (
            f"maximum length {c.max_length:,} is beyond the {c.model.max_context:,} of the model's config; it needs a "
            "rope scaling that says so"
        )


def _powers(c: Case) -> Iterable[str]:
    if c.kvp > 1 and any(n & (n - 1) for n in (c.heads, c.kvp)):
        yield "TensorRT-LLM moves KV to a Helix server only for tpa and kvp that are powers of two"


def _helix_duplicates(c: Case) -> Iterable[str]:
    heads = min((a.cached_heads for a in c.attentions), default=c.heads)
    if c.kvp >= 1 and c.heads > heads:
        yield f"the Helix paper keeps tpa at or below the {heads} KV heads: tpa {c.heads} duplicates KV"


RULES = (
    Rule("heads", ("vllm", "sglang", "trtllm"), "refuses", _heads),
    Rule("kv_heads", ("vllm", "sglang"), "refuses", _kv_heads),
    Rule("helix_heads", ("trtllm",), "refuses", _helix_heads),
    Rule("dcp_divides", ("vllm", "sglang"), "refuses", _dcp_divides),
    Rule("dcp_heads", ("vllm",), "refuses", _dcp_heads),
    Rule("dcp_index", ("vllm",), "refuses", _dcp_index),
    Rule("dcp_windows", ("vllm",), "refuses", _dcp_windows),
    Rule("interleave", ("vllm",), "refuses", _interleave),
    Rule("fp8_blocks", ("vllm", "sglang"), "refuses", _blocks),
    Rule("experts", ("sglang", "trtllm"), "refuses", _experts),
    Rule("stages", ("vllm", "sglang", "trtllm"), "refuses", _stages),
    Rule("length", ("vllm", "sglang", "trtllm"), "refuses", _length),
    Rule("helix_duplicates", ("paper",), "advises", _helix_duplicates),
    Rule("helix_powers", ("trtllm",), "advises", _powers),
)
"""Every rule, with the engines that have it."""


def broken(case: Case, only: Iterable[str] = ()) -> list[Broken]:
    """The rules of the case's engine that it breaks; ``only`` restricts them by name."""
    names = tuple(only)
    found = []
    for rule in RULES:
        if case.engine in rule.engines and (not names or rule.name in names):
            found += [Broken(rule.name, case.engine, rule.effect, text) for text in dict.fromkeys(rule.check(case))]
    return found
