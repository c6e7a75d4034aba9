"""What speculative decoding makes of a step: seconds and bytes of the draft, tokens a step, and where more do not pay.

The draft runs one token after the other, before the model verifies them all at once. What the host does between two
steps is done once. Left out: the projection that joins an MTP module's two inputs, and sampling of the drafts.
"""

from __future__ import annotations

from functools import cached_property

from sim.errors import LayoutError
from sim.lane import Lane
from sim.machine import Machine
from sim.model import Model
from sim.placement import Placement
from sim.report import SpeculationReport
from sim.speculation import Speculation
from sim.strategy import Strategy
from sim.timing import Timing
from sim.workload import Sequences, Workload


class Drafting:
    """The draft of one layout on one machine."""

    def __init__(self, speculation: Speculation, placement: Placement, machine: Machine):
        self.speculation, self.machine = speculation, machine
        self.placement = placement
        self.model = speculation.draft(placement.model)
        if self.model:
            self.strategy = self._layout(placement.strategy, self.model)

    def _layout(self, target: Strategy, model: Model) -> Strategy:
        """The draft's layout: its own, or the target's on the GPUs of one stage. Raises ``LayoutError``."""
        strategy = self.speculation.layout
        if strategy is None:
            by_number = isinstance(target.rank_order, tuple) and isinstance(target.rank_order[0], int)
            strategy = target.changed(pp=1, rank_order=None if by_number else target.rank_order)
        problems = strategy.check(model)
        if problems:
            hint = "; give the draft a layout of its own under speculation"
            raise LayoutError([p._replace(message=f"the draft cannot run so: {p.message}{hint}") for p in problems])
        return strategy

    @cached_property
    def _held(self) -> Placement | None:
        """All layers of the draft."""
        s, model = self.speculation, self.placement.model
        whole = s.draft(model, s.layers) if s.layers else self.model
        return Placement(whole, self.strategy, self.placement.precision.resolve(whole)) if whole else None

    def bytes(self, stage: int, rank: int, sequences: Sequences, generated: int) -> int:
        """Weights and cache of the draft on a rank of the last stage (TensorRT-LLM); none elsewhere."""
        held = self._held
        if held is None or stage != self.placement.strategy.pp - 1:
            return 0
        rank = rank if held.cut.mesh.size == self.placement.cut.mesh.size else 0
        parts = held.weights(0, rank)
        if self.speculation.layers:  # the model's own
            parts["embeddings"] = 0
        lane = Lane(rank, held.cut, sequences, held.precision, generated)
        return int(sum(parts.values()) + held.kv_bytes(0, lane))

    def seconds(self, workload: Workload) -> float:
        """Of one draft token for all sequences."""
        if not self.model:
            return 0.0
        placement = Placement(self.model, self.strategy, self.placement.precision.resolve(self.model))
        step = Timing(placement, self.machine, with_drafts(workload, 0)).step()
        return step.seconds - step.causes.get("host", 0.0)

    def report(self, workload: Workload, usable_memory: float) -> SpeculationReport:
        """What the drafts of a workload make of it."""
        s = self.speculation
        each = self.seconds(workload)
        lengths = workload.context if isinstance(workload.context, tuple) else (workload.context,)
        most = max(s.draft_tokens, min(s.known, min(lengths) - 1))
        steps = [
            Timing(self.placement, self.machine, with_drafts(workload, d), usable_memory).best.seconds
            for d in range(most + 1)
        ]
        tpot = [(step + d * each) / s.tokens_per_step(d) for d, step in enumerate(steps)]
        best = min(range(len(tpot)), key=tpot.__getitem__)
        d = s.draft_tokens
        return SpeculationReport(
            draft_tokens=d,
            tokens_per_step=s.tokens_per_step(d),
            draft_seconds=d * each,
            verify_seconds=steps[d],
            tpot_seconds=tpot[d],
            plain_seconds=steps[0],
            speedup=steps[0] / tpot[d],
            best_draft_tokens=best,
            best_tpot_seconds=tpot[best],
            by_draft_tokens=dict(enumerate(tpot)),
        )


def with_drafts(workload: Workload, drafted: int) -> Workload:
    """The same step with another number of draft tokens."""
    generated = max(workload.generated, drafted + 1) if workload.generated else 0
    return workload.changed(query_tokens=1 + drafted, generated=generated)
