"""One layout on one machine: placement, memory and step time put together into a ``LayoutReport``."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any

from sim.allocators import load_allocator
from sim.drafting import Drafting
from sim.errors import ProgramError
from sim.first_token import FRONT_END, first_token
from sim.lane import Lane
from sim.limits import largest
from sim.lower import lower
from sim.memory import CommunicationBuffers, engine_reserve
from sim.placement import PARTS
from sim.program import CommunicationOp, Program
from sim.rank_kinds import RankKind, ranges
from sim.report import (
    FirstTokenReport,
    KvReport,
    LayoutReport,
    LinkReport,
    MemoryReport,
    RankGroup,
    SpeculationReport,
    WeightsReport,
)
from sim.speculation import Speculation
from sim.timing import Timing
from sim.units import format_bytes
from sim.workload import Sequences

MOST_LINKS = 32


class Evaluation(Timing):
    """Everything that can be asked of one layout; see ``Timing`` for what it is made of.

    ``speculation`` says who drafts the query tokens of a decode step.
    """

    def __init__(self, *timing: Any, speculation: Speculation | None = None, **more: Any):
        super().__init__(*timing, **more)
        self.drafting = Drafting(speculation, self.placement, self.machine) if speculation else None

    # -- memory ----------------------------------------------------------------------------------------------

    def lane(self, rank: int, sequences: Sequences) -> Lane:
        """The figures of a rank with these sequences of a replica."""
        w = self.workload
        precision = self.placement.precision
        return Lane(rank, self.placement.cut, sequences, precision, w.generated)

    @cached_property
    def program(self) -> Program:
        """The program of a step, with the chosen number of pieces."""
        return lower(self.placement.model, self.strategy, self.workload.phase, self.best.pieces)

    @cached_property
    def buffers(self) -> CommunicationBuffers:
        """What the communication libraries register."""
        return CommunicationBuffers(self.program)

    @cached_property
    def reserve(self) -> int:
        """Bytes that the engine leaves alone."""
        return engine_reserve(self.machine.kernels.gpu.memory_bytes, self.usable_memory)

    def draft_bytes(self, stage: int, rank: int, sequences: Sequences) -> int:
        """Weights and cache of what drafts, on one rank."""
        return self.drafting.bytes(stage, rank, sequences, self.workload.generated) if self.drafting else 0

    @cached_property
    def kinds(self) -> list[RankKind]:
        """Every class of ranks of every stage, with its memory: ranks that hold the same and compute the same."""
        found = []
        for stage, one in enumerate(self.best.passes):
            times = one.classes
            if self.micro_batches == 1:
                members: Iterable[tuple[int, ...]] = times.members
            else:
                holds = self.stage_model(stage, None, self.best.pieces, self.best.order).classes(self.granularity)
                both: dict[tuple[int, int], list[int]] = {}
                for rank, key in enumerate(zip(times.of, holds.of, strict=True)):
                    both.setdefault(key, []).append(rank)
                members = map(tuple, both.values())
            found += [RankKind(self, stage, ranks, one.lanes[times.of[ranks[0]]].busy) for ranks in members]
        return found

    @cached_property
    def fullest(self) -> RankKind:
        """The class of ranks that needs the most memory."""
        return max(self.kinds, key=lambda kind: kind.total(self.replica))

    @cached_property
    def _candidates(self) -> list[RankKind]:
        """Classes of ranks of which one is the fullest at any batch and context.

        Dealt tokens never give a rank more than the first one; runs of tokens and windows may, so there every
        holder counts.
        """
        cut = self.placement.cut
        windows = any(layer.attention and layer.attention.window for layer in self.placement.model.kinds)
        if cut.kv_ranks == 1 or (cut.ownership.rule != "contiguous" and not windows):
            return self.kinds
        found = []
        for kind in self.kinds:
            holders = {cut.mesh.index(rank, cut.kv_axes): rank for rank in reversed(kind.ranks)}
            found += [RankKind(self, kind.stage, (rank,), kind.busy) for rank in holders.values()]
        return found

    def _fits(self, sequences: Sequences) -> bool:
        capacity = self.machine.kernels.gpu.memory_bytes
        return all(kind.total(sequences) <= capacity for kind in self._candidates)

    def _limits(self) -> tuple[int, int]:
        """Largest batch (of the longest context given) and longest context (at this batch) that fit."""
        replicas = self.strategy.replicas
        mixed = self.workload.phase == "mixed"
        beside = tuple(g for g in self.replica.groups if mixed and g.prompt)
        counted = Sequences(tuple(g for g in self.replica.groups if g not in beside))
        longest, batch, kind = counted.longest, counted.count, self.fullest

        def alike(count: int, length: int) -> Sequences:
            """As the longest one, with at most as many new tokens as there are; prompts of a mixed step stay."""
            whole = longest.prompt and longest.new == longest.length
            new = length if whole else min(longest.new, length)
            return Sequences((longest._replace(count=count, length=length, new=new), *beside))

        none = kind.total(alike(0, longest.length))
        room = self.machine.kernels.gpu.memory_bytes - none
        used = kind.total(alike(batch, longest.length)) - none
        share = room / used if used > 0 else 1.0
        most = largest(lambda b: self._fits(alike(b, longest.length)), int(batch * share))
        reach = largest(lambda c: self._fits(alike(batch, c)), int(longest.length * share))
        return most * replicas, reach

    def memory(self) -> MemoryReport:
        """Memory of the fullest rank by part."""
        kind = self.fullest
        lane = self.lane(kind.ranks[0], self.replica)
        batch, context = self._limits()
        return MemoryReport(
            capacity_bytes=self.machine.kernels.gpu.memory_bytes,
            weights_bytes=kind.weight_bytes,
            **{f"{part}_bytes": kind.weights[part] for part in PARTS},
            kv_bytes=self.placement.kv_bytes(kind.stage, lane),
            activations_bytes=kind.activations(lane),
            communication_bytes=self.buffers.bytes(lane),
            reserve_bytes=self.reserve,
            draft_bytes=self.draft_bytes(kind.stage, kind.ranks[0], self.replica),
            total_bytes=kind.total(self.replica),
            max_batch=batch,
            max_context=context,
        )

    def kv(self) -> KvReport:
        """The cache over all ranks, and on the rank that holds most of it."""
        placement = self.placement
        unique = placement.unique_kv_bytes(self.workload.sequences)
        shares: dict[Sequences, int] = {}
        for index in range(self.strategy.replicas):
            share = self.workload.sequences.share(index, self.strategy.replicas)
            shares[share] = shares.get(share, 0) + 1
        held = sum(n * self._held_kv(share) for share, n in shares.items())
        if held < unique:
            raise ProgramError(
                f"{self.strategy.label}: all ranks together hold {held} bytes of KV, one copy is {unique}"
            )
        lanes = [(kind, self.lane(kind.ranks[0], self.replica)) for kind in self.kinds]
        attentions = [layer.attention for layer in placement.model.kinds if layer.attention]
        allocator = load_allocator(self.machine.kernels.library)
        return KvReport(
            allocator=f"{allocator.name} {allocator.version}",
            reserved_bytes_per_rank=max(allocator.reserved(placement, kind.stage, lane) for kind, lane in lanes),
            charged_bytes_per_token=max(allocator.token_bytes(placement, kind.stage, lane) for kind, lane in lanes),
            duplication=held / unique if unique else 1.0,
            unique_bytes=unique,
            held_bytes=held,
            bytes_per_token_per_rank=max(placement.kv_bytes_per_token(kind.stage, lane) for kind, lane in lanes),
            heads_per_rank=max((lane.kv_heads(a) for _, lane in lanes for a in attentions), default=0),
            tokens_per_rank=max(lane.kv_tokens(None) for _, lane in lanes),
        )

    def _held_kv(self, sequences: Sequences) -> int:
        """Bytes of cache on all ranks of one replica."""
        if sequences == self.replica:
            kinds = [(kind.stage, kind.ranks) for kind in self.kinds]
        else:
            size = self.placement.cut.mesh.size
            kinds = [(stage, (rank,)) for stage in range(self.strategy.pp) for rank in range(size)]
        return sum(
            len(ranks) * self.placement.kv_bytes(stage, self.lane(ranks[0], sequences)) for stage, ranks in kinds
        )

    def weights(self) -> WeightsReport:
        """The weights over all ranks, and on the fullest one."""
        held = sum(len(kind.ranks) * kind.weight_bytes for kind in self.kinds) * self.strategy.replicas
        unique = self.placement.unique_weight_bytes
        return WeightsReport(
            duplication=held / unique,
            unique_bytes=unique,
            held_bytes=held,
            bytes_per_rank=max(kind.weight_bytes for kind in self.kinds),
        )

    def ranks(self) -> tuple[RankGroup, ...]:
        """Ranks that differ, equal ones together however many of them were run."""
        found: dict[tuple[object, ...], tuple[RankGroup, list[int]]] = {}
        attentions = [layer.attention for layer in self.placement.model.kinds if layer.attention]
        for kind in self.kinds:
            lane = self.lane(kind.ranks[0], self.replica)
            group = RankGroup(
                ranks="",
                count=0,
                stage=kind.stage,
                sequences=lane.sequences().count,
                kv_heads=max((lane.kv_heads(a) for a in attentions), default=0),
                kv_tokens=lane.kv_tokens(None),
                kv_bytes=self.placement.kv_bytes(kind.stage, lane),
                weights_bytes=kind.weight_bytes,
                total_bytes=kind.total(self.replica),
                busy_seconds=kind.busy,
            )
            same = (*group.model_dump(exclude={"busy_seconds"}).values(), f"{kind.busy:.9e}")
            first = kind.stage * self.placement.cut.mesh.size
            found.setdefault(same, (group, []))[1].extend(first + rank for rank in kind.ranks)
        return tuple(
            group.model_copy(update={"ranks": ranges(numbers), "count": len(numbers)})
            for group, numbers in found.values()
        )

    def _collectives(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for stage in {0, self.strategy.pp - 1}:
            model = self.stage_model(stage, 0, self.best.pieces, self.best.order)
            for _, pattern in model.patterns():
                for op in pattern.ops:
                    if isinstance(op, CommunicationOp):
                        cost, _ = model.price(op, 0)
                        algorithm = cost.algorithm_for(op.message(model.lane(0)).size)
                        if algorithm != "none":
                            found[op.name] = f"{algorithm} over {cost.tier}"
        return found

    def _tokens_per_user(self) -> float:
        """Tokens that a sequence gains in a step: one in decode, its prompt (on average) in prefill."""
        every = Sequences(self.workload.each)
        return every.new_tokens / every.count if self.workload.phase == "prefill" else 1.0

    def _speculation(self) -> SpeculationReport | None:
        return self.drafting.report(self.workload, self.usable_memory) if self.drafting else None

    @cached_property
    def first_token(self) -> FirstTokenReport | None:
        """What a prompt's first token waits for, in prefill."""
        if self.workload.phase != "prefill":
            return None
        work = (self.workload, self.usable_memory, self.granularity)
        return first_token(self.placement, self.machine, *work)

    def _links(self) -> tuple[LinkReport, ...]:
        """The links that carried most in a pass over each stage, most bytes per second of bandwidth first."""
        used = [item for one in self.best.passes for item in one.links.items()]
        used.sort(key=lambda item: (-item[1].busy_seconds, -item[1].bytes, item[0]))
        return tuple(
            LinkReport(
                source=source,
                target=target,
                bytes=use.bytes,
                busy_seconds=use.busy_seconds,
                peak_utilisation=min(use.peak, 1.0),
            )
            for (source, target), use in used[:MOST_LINKS]
        )

    # -- together --------------------------------------------------------------------------------------------

    def report(self) -> LayoutReport:
        """The whole report of this layout."""
        step, memory = self.step(), self.memory()
        feasible = memory.total_bytes <= memory.capacity_bytes
        reasons: list[str] = []
        if not feasible:
            need = memory.total_bytes
            reasons.append(
                f"needs {format_bytes(need)} of {format_bytes(memory.capacity_bytes)}: weights "
                f"{format_bytes(memory.weights_bytes)}, KV {format_bytes(memory.kv_bytes)}, engine reserve "
                f"{format_bytes(memory.reserve_bytes)}"
            )
        batch = sum(g.count for g in self.workload.each)
        speculation = self._speculation()
        seconds = speculation.tpot_seconds if speculation else step.seconds
        if self.workload.chunk and self.first_token:
            seconds = self.first_token.seconds - self.first_token.parts[FRONT_END]
        return LayoutReport(
            tag=self.strategy.label,
            strategy=self.strategy.kind,
            gpus=self.gpus,
            feasible=feasible,
            reasons=tuple(reasons),
            engine_notes=tuple(self.strategy.engine_notes(self.placement.model)),
            kv=self.kv(),
            weights=self.weights(),
            memory=memory,
            step=step,
            speculation=speculation,
            first_token=self.first_token,
            tokens_per_s_per_user=self._tokens_per_user() / seconds,
            output_tokens_per_s_per_gpu=batch / seconds / self.gpus,
            ranks=self.ranks(),
            pieces=self.best.pieces,
            rank_order=self.best.order,
            collectives=self._collectives(),
            links=self._links(),
        )
