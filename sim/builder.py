"""The whole builder: what a strategy is handed. The collectives are here, the compute operations in the base.

A collective over axes that do not exist (degree 1) is not issued at all, so a strategy is written once for all
degrees. Only collectives, merge and rescale pay what a value owes.
"""

from __future__ import annotations

from sim import ops_communication as comm
from sim.builder_compute import ComputeBuilder
from sim.cut import Dim
from sim.mesh import WORLD
from sim.model import MoeFfn
from sim.program import Alias, CommunicationOp, Value


def _split_further(dim: Dim, axes: tuple[str, ...]) -> Dim:
    return dim._replace(axes=(*dim.axes, *axes))


class Builder(ComputeBuilder):
    """Collects the operations of one segment; each method returns the value that a rank then holds."""

    def _issue(self, op: CommunicationOp) -> Value:
        self.ops.append(op)
        return op.outputs[0]

    def all_reduce(self, x: Value) -> Value:
        """Pays the sum that is owed, on every rank of the group."""
        if not x.partial:
            return x
        if x.shares or x.stacked:
            raise self.fail("all_reduce", f"{x.name} owes a softmax merge, which a sum does not pay")
        y = x._replace(name=f"{x.name}.sum", partial=())
        return self._issue(comm.AllReduce(self.named("all_reduce"), (x,), (y,), x.partial))

    def reduce_scatter(self, x: Value, axes: tuple[str, ...], over: str = "tokens") -> Value:
        """Pays the sum that is owed over ``axes`` and keeps a slice of the tokens or heads."""
        axes = self.cut.trim(axes)
        if not axes:
            return x
        owed = self.mesh.spread(x.partial, axes)
        if not set(axes) <= set(owed):
            raise self.fail("reduce_scatter", f"{x.name} owes no sum over {'·'.join(axes)}")
        left = self.mesh.real(tuple(a for a in owed if a not in axes))
        y = x._replace(name=f"{x.name}.scattered", partial=left)
        if over == "tokens":
            y = y._replace(tokens=(*x.tokens, *axes))
        else:
            y = y._replace(dims=(_split_further(x.dims[0], axes), *x.dims[1:]))
        return self._issue(comm.ReduceScatter(self.named("reduce_scatter"), (x,), (y,), self.mesh.real(axes)))

    def all_gather(self, x: Value, axes: tuple[str, ...], over: str = "tokens") -> Value:
        """The slices over ``axes`` of the tokens, or of the first feature dimension (heads, vocabulary)."""
        axes = self.cut.trim(axes)
        if not axes:
            return x
        split = x.tokens if over == "tokens" else x.dims[0].axes
        if split[-len(axes) :] != axes:
            raise self.fail("all_gather", f"the {over} of {x.name} are not split over {'·'.join(axes)} innermost")
        self.whole("all_gather", x)
        y = x._replace(name=f"{x.name}.gathered")
        if over == "tokens":
            y = y._replace(tokens=split[: -len(axes)])
        else:
            y = y._replace(dims=(x.dims[0]._replace(axes=split[: -len(axes)]), *x.dims[1:]))
        ids = 4 if x.dims[0].role == "id" else 0
        return self._issue(comm.AllGather(self.named("all_gather"), (x,), (y,), self.mesh.real(axes), ids))

    def slice_tokens(self, x: Value, axes: tuple[str, ...]) -> Value:
        """Each rank goes on with its own slice of tokens that it holds in full; no data moves."""
        axes = self.cut.trim(axes)
        self.whole("slice", x)
        if not axes or set(axes) & set(x.tokens):
            return x
        y = x._replace(name=f"{x.name}.slice", tokens=(*x.tokens, *axes))
        self.ops.append(Alias(self.named("slice"), (x,), (y,)))
        return y

    def exchange_heads(self, x: Value, statistics: int, width: int | None = None) -> Value:
        """All-to-all of softmax shares: heads split further, shares of all ranks side by side."""
        if not x.shares:
            return x
        axes = self.mesh.spread(x.shares, self.cut.kv_axes)
        y = x._replace(
            name=f"{x.name}.exchanged",
            dims=(_split_further(x.dims[0], axes), *x.dims[1:]),
            shares=(),
            stacked=x.shares,
        )
        op = comm.ExchangeShares(self.named("all_to_all"), (x,), (y,), x.shares, statistics, width)
        return self._issue(op)

    def gather_statistics(self, x: Value) -> Value | None:
        """Log-sum-exp of every share, on every rank of the group."""
        if not x.shares:
            return None
        y = x._replace(name=f"{x.name}.lse", dims=x.dims[:1], shares=(), stacked=x.shares)
        return self._issue(comm.AllGatherStatistics(self.named("all_gather_lse"), (x,), (y,), x.shares))

    def gather_candidates(self, x: Value) -> Value:
        """The tokens that each rank's part of an index picked, on every rank of the group."""
        if not x.shares:
            return x
        y = x._replace(name=f"{x.name}.gathered", shares=(), stacked=x.shares)
        return self._issue(comm.AllGatherCandidates(self.named("all_gather_index"), (x,), (y,), x.shares))

    def gather_shares(self, x: Value, statistics: int) -> Value:
        """Softmax shares of the group side by side on its first rank."""
        if not x.shares:
            return x
        axes = self.mesh.spread(x.shares, self.cut.kv_axes)
        root = tuple((a, 0) for a in axes)
        y = x._replace(name=f"{x.name}.gathered", shares=(), stacked=x.shares, only=(*x.only, *root))
        return self._issue(comm.GatherShares(self.named("gather"), (x,), (y,), x.shares, statistics))

    def broadcast(self, x: Value, axes: tuple[str, ...]) -> Value:
        """From the first rank of each group over ``axes`` to the others."""
        axes = self.cut.trim(axes)
        if not axes:
            return x
        self.whole("broadcast", x)
        y = x._replace(name=f"{x.name}.broadcast", only=tuple(o for o in x.only if o[0] not in axes))
        return self._issue(comm.Broadcast(self.named("broadcast"), (x,), (y,), self.mesh.real(axes)))

    def dispatch(self, x: Value, routing: Value, ffn: MoeFfn, per_expert: bool) -> Value:
        """Tokens to the ranks of their experts: afterwards a rank holds the rows routed to it."""
        self.whole("dispatch", x, routing)
        if self.mesh.size == 1:
            return x
        y = x._replace(name=f"{x.name}.dispatched", tokens=())
        return self._issue(comm.Dispatch(self.named("dispatch"), (x, routing), (y,), WORLD, ffn, per_expert))

    def combine(self, x: Value, like: Value, ffn: MoeFfn, per_expert: bool) -> Value:
        """Expert outputs back to the tokens' ranks, weighted and summed there."""
        if self.mesh.size == 1:
            return x
        if x.partial != WORLD:
            raise self.fail("combine", "the experts are not spread over all ranks")
        y = like._replace(name=f"{x.name}.combined")
        return self._issue(comm.Combine(self.named("combine"), (x,), (y,), WORLD, ffn, per_expert))
