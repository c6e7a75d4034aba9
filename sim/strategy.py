"""The contract of a parallel strategy: degrees, a cut of the model, and what happens between the pieces.

A strategy is one file: a class with its degrees as fields, ``cut`` (which role is split over which axis), and
the communication between the pieces of ``sim.mixers``. Memory, duplication, timing and execution all follow from
these; nothing else in the simulator knows a strategy by name. The defaults below are those of plain tensor
parallelism, so a strategy overrides what it does differently.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AliasChoices, Field, StrictInt

from sim import mixers
from sim.builder import Builder
from sim.cut import Cut
from sim.errors import Problem
from sim.model import LatentAttention, Layer, Model, MoeFfn
from sim.noun import Noun
from sim.program import Value
from sim.rank_order import Order
from sim.rank_order import orders as every_order
from sim.rank_order import problems as order_problems
from sim.stages import Split, split_layers
from sim.workload import Phase

_DEGREE: dict[str, Any] = {"degree": True}


def degree(*names: str, default: Any = ...) -> Any:
    """A field for a degree of parallelism, with the engines' long names accepted beside the short one."""
    return Field(default, validation_alias=AliasChoices(*names), ge=1, le=65536, json_schema_extra=_DEGREE)


TENSOR = ("tp", "tensor_parallel_size", "tp_size")
DATA = ("dp", "data_parallel_size", "dp_size", "attn_dp_size")
EXPERT = ("ep", "expert_parallel_size", "ep_size", "moe_expert_parallel_size")


def divisors(number: int) -> str:
    """The divisors of a number as an error lists them."""
    found = [str(d) for d in range(1, min(number, 512) + 1) if number % d == 0]
    return f"{', '.join(found[:-1])} or {found[-1]}" if len(found) > 1 else found[0]


class Strategy(Noun):
    """Base class of all strategies. Fields are degrees and switches; constructors only store.

    ``pp`` pipeline stages and ``replicas`` whole copies of the instance extend any strategy: the GPUs of a layout
    are ranks x pp x replicas.
    """

    kind: ClassVar[str]
    phases: ClassVar[tuple[Phase, ...]] = ("decode", "prefill", "mixed")

    tag: str | None = Field(None, min_length=1, max_length=60)
    """A name of one's own for this layout."""
    pp: int = degree("pp", "pipeline_parallel_size", "pp_size", default=1)
    replicas: int = degree("replicas", default=1)
    stage_split: Split = "vllm"
    """Which engine's rule places a remainder of layers."""
    rank_order: Literal["best"] | tuple[str, ...] | tuple[StrictInt, ...] | None = None
    """Which GPU each rank runs on: axis names outermost first, a list of GPU numbers, or ``best``."""
    two_batch_overlap: bool = False
    """The batch runs as two halves whose computing hides each other's communication."""

    # -- what a strategy says of itself --------------------------------------------------------------------

    @abstractmethod
    def degrees(self) -> dict[str, int]:
        """Degrees in the order of the tag, for example ``{"tp": 8}``."""

    @abstractmethod
    def cut(self, model: Model) -> Cut:
        """The mesh and which role is split over which of its axes."""

    def reasons(self, model: Model) -> list[Problem]:
        """Why this layout cannot exist for this model, beyond the divisions that ``check`` finds by itself."""
        return []

    def engine_notes(self, model: Model) -> list[str]:
        """Rules of an engine that this layout breaks although it can exist."""
        return []

    def pieces(self, sequences: int) -> tuple[int, ...]:
        """Into how many pieces the attention phase may cut the batch; the fastest is taken."""
        return (1,)

    @classmethod
    def degree_fields(cls) -> dict[str, Any]:
        """The fields that are degrees of parallelism, with their defaults (``PydanticUndefined``: must be given)."""
        return {name: f.default for name, f in cls.model_fields.items() if f.json_schema_extra is _DEGREE}

    # -- what it does in a step ----------------------------------------------------------------------------

    def tokens(self) -> tuple[str, ...]:
        """Axes over which the hidden state's tokens are split between the blocks: those of the sequences."""
        return ()

    def begin(self, b: Builder) -> Value:
        """Token ids to hidden states."""
        split = tuple(a for a in b.cut.trim(self.tokens()) if a in b.cut.axes("vocab"))
        ids = b.all_gather(b.tokens(self.tokens()), split)
        return b.all_reduce(b.reduce_scatter(b.embed(ids), split))

    def attention(self, b: Builder, x: Value) -> Value:
        """The attention block on normed hidden states."""
        return b.all_reduce(mixers.output(b, mixers.attend(b, *mixers.projected(b, x))))

    def recurrence(self, b: Builder, x: Value) -> Value:
        """Linear attention on normed hidden states: it has no cache to share, so its heads are all that is split."""
        return b.all_reduce(mixers.recurrent(b, x))

    def ffn(self, b: Builder, x: Value) -> Value:
        """The feed-forward block on normed hidden states."""
        return b.all_reduce(mixers.feed_forward(b, x))

    def end(self, b: Builder, x: Value) -> Value:
        """Normed hidden states to logits, in full where they are sampled."""
        split = tuple(a for a in b.cut.trim(x.tokens) if a in b.cut.axes("vocab"))
        x = b.all_gather(x, split)
        (logits,) = b.project(x, ["lm_head" if "lm_head" in b.tensors else "embedding"], "lm_head")
        return b.all_gather(logits, b.cut.axes("vocab"), over="vocab")

    # -- derived -------------------------------------------------------------------------------------------

    @property
    def label(self) -> str:
        """The layout's tag: the user's own, or the degrees, such as ``tp8-dcp2-pp4``."""
        if self.tag:
            return self.tag
        parts = [f"{name}{size}" for name, size in self.degrees().items()]
        parts += [f"pp{self.pp}"] * (self.pp > 1) + ["tbo"] * self.two_batch_overlap
        order = self.rank_order
        placed = ".".join(map(str, order)) if isinstance(order, tuple) and len(order) <= 4 else "gpus"
        placed = placed if isinstance(order, tuple) else order or ""
        parts[-1] += f"x{self.replicas}" * (self.replicas > 1) + f"@{placed}" * bool(placed)
        return "-".join(parts)

    def gpus(self, model: Model) -> int:
        """GPUs of the whole layout."""
        return self.cut(model).mesh.size * self.pp * self.replicas

    def stages(self, model: Model) -> list[list[tuple[int, Layer]]]:
        """Layers of each pipeline stage, as (count, layer) runs."""
        return split_layers(model.runs, self.pp, self.stage_split)

    def check(self, model: Model, phase: Phase = "decode") -> list[Problem]:
        """Every reason why this layout cannot exist for this model, each with what would work."""
        found = list(self.reasons(model))
        if phase not in self.phases:
            found.append(Problem(f"{self.kind} runs {' and '.join(self.phases)} only, not {phase}", "strategy"))
        if self.pp > model.layers:
            found.append(Problem(f"{self.pp} stages are more than the {model.layers} layers", "pp"))
        if not found:
            found += _picks(self, model)
        if not found and self.two_batch_overlap:
            cut = self.cut(model)
            if sliced := [a for a in cut.trim(self.tokens()) if a not in cut.sequence_axes]:
                text = f"a batch cannot run in halves where its tokens are sliced over {'·'.join(sliced)}; leave it out"
                found.append(Problem(text, "two_batch_overlap"))
        if not found:
            found += _divisions(self, model)
            if isinstance(self.rank_order, tuple):
                found += order_problems(self.cut(model).mesh, self.rank_order, self.gpus(model))
        return found

    def orders(self, model: Model) -> list[Order | None]:
        """The orders of ranks on GPUs to try; the one given, or all orders of the axes for ``best``."""
        if isinstance(self.rank_order, str):
            return [*every_order(self.cut(model).mesh)]
        return [self.rank_order]


_ROLES = {
    "q_heads": "query heads",
    "attention_heads": "query heads",
    "o_heads": "query heads",
    "state_heads": "value heads of linear attention",
    "ffn": "columns of the dense FFN",
    "expert_ffn": "columns of an expert",
    "shared_ffn": "columns of the shared expert",
}


def _picks(strategy: Strategy, model: Model) -> Iterator[Problem]:
    """A stage that begins with a layer that attends what a layer of the stage before has picked."""
    for number, runs in enumerate(strategy.stages(model)):
        a = next((layer.attention for _, layer in runs if layer.attention), None)
        if isinstance(a, LatentAttention) and a.index and a.index.shared:
            text = f"stage {number} begins with a layer that attends tokens which the stage before has picked"
            yield Problem(f"{text}, and these are not sent on; choose another pp or stage_split", "pp")


def _divisions(strategy: Strategy, model: Model) -> list[Problem]:
    """Dimensions that must divide evenly over their axes and do not."""
    cut = strategy.cut(model)
    found: dict[str, Problem] = {}
    for layer in model.kinds:
        sizes = {role: size for t in model.tensors(layer) for role, size in t.dims}
        if layer.attention:
            sizes["attention_heads"] = layer.attention.query_heads
        for role, words in _ROLES.items():
            axes = cut.axes(role)
            ranks = cut.mesh.count(axes)
            if role in sizes and sizes[role] % ranks:
                over = "·".join("ranks of one expert group" if a == "tpf" else a for a in axes)
                text = f"{ranks} ranks ({over}) do not divide the {sizes[role]:,} {words} of {model.name}"
                key = "ep" if axes[-1] == "tpf" else axes[-1]
                found.setdefault(text, Problem(f"{text}; choose {divisors(sizes[role])}", key))
        slots = cut.dim("experts", sizes["experts"]).size if "experts" in sizes else 0
        ranks = cut.mesh.count(cut.axes("experts"))
        if cut.redundant_experts and slots % ranks:
            text = f"{slots} expert slots do not fill {ranks} ranks evenly"
            fit = -slots % ranks + cut.redundant_experts
            found.setdefault(text, Problem(f"{text}; with {fit} redundant experts they do", "redundant_experts"))
        if 0 < slots < ranks:
            text = f"{ranks} expert-parallel ranks are more than the {slots} expert slots of {model.name}"
            found.setdefault(text, Problem(f"{text}; choose an ep of at most {slots}", "ep"))
    return list(found.values())


def has_experts(model: Model) -> bool:
    """Whether any layer routes tokens to experts."""
    return any(isinstance(layer.ffn, MoeFfn) for layer in model.kinds)


def expert_tensor_parallel(model: Model, ranks: int, ep: int) -> list[Problem]:
    """``ep`` must divide the ranks that the experts are spread over."""
    if ep > 1 and not has_experts(model):
        return [Problem(f"{model.name} has no experts to spread over {ep} ranks; leave ep out", "ep")]
    if ranks % ep:
        return [Problem(f"{ep} does not divide the {ranks} ranks of the layout; choose {divisors(ranks)}", "ep")]
    return []


Block = Annotated[int, Field(ge=1, le=2**20)]
DenseOver = Literal["world", "attention_tp"]
