"""One attention group of an engine: its queue, its running requests and its KV blocks.

The state of running requests is kept in sums that one decode step moves by known amounts, so that many steps cost as
much as one: a request that joined when the group had done ``joined`` steps has ``cached + steps - joined`` tokens now,
it ends at the step ``joined + rounds``, and it needs a block whenever ``(cached - joined + steps) % block == 0``; how
many requests there are of each such remainder says how many blocks any number of steps needs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from heapq import heappop, heappush
from typing import NamedTuple

from sim.errors import ProgramError
from sim.replays.blocks import BlockPool
from sim.replays.request import Request
from sim.replays.scheduler import Scheduler


class Chunk(NamedTuple):
    """A piece of a prompt that a step prefills."""

    request: Request
    cached: int
    new: int


class Held(NamedTuple):
    """What a request holds in a group that it has left."""

    hashes: tuple[Hashable, ...]
    blocks: int
    final: int


class Lane:
    """An attention group.

    Parameters
    ----------
    rules
        Of the engine's scheduler.
    pool
        KV blocks of the group.
    grain
        Tokens of a prefix entry.
    growing
        Whether requests decode here; a prefill worker holds the prompt only.
    """

    def __init__(self, rules: Scheduler, pool: BlockPool, grain: int = 0, growing: bool = True):
        self.rules, self.pool, self.block, self.grain, self.growing = rules, pool, rules.block, grain, growing
        self.gain = rules.gain
        self.whole = rules.speculation is not None
        """Whether requests get the blocks of their whole answer at once."""
        self.low = int(rules.watermark * pool.total)
        self.waiting: deque[Request] = deque()
        self.filling: deque[Request] = deque()
        """Admitted, not yet prefilled to the end."""
        self.inbound: deque[Request] = deque()
        """Requests whose cache waits elsewhere for room here."""
        self.landing: dict[int, Request] = {}
        """Requests whose cache is on its way here, by number."""
        self.ready: list[Request] = []
        """Requests whose cache has come; they join at the next step."""
        self.leaving: dict[int, Held] = {}
        """Caches that stay here until they have been sent, by number of the request."""
        self.ends: list[tuple[int, int, Request]] = []
        self.order: list[tuple[int, Request]] = []
        """Running requests as they were admitted; the last one is preempted first."""
        self.count = 0
        """Requests that decode."""
        self.tokens: float = 0
        """Tokens in their caches."""
        self.steps = 0
        self.phases = [0] * rules.block
        self.held = self.final = 0
        """Blocks of admitted requests, now and at their ends."""
        self.serials = 0
        self.load = 0
        """Tokens that requests here still have to prefill or hold, for routers."""
        self.requests = 0
        """Requests here that are not answered, for routers."""
        self.peak = 0
        """Most blocks that were in use at once."""
        self.taken = 0
        """Blocks of the next decode step that have been taken already."""

    # -- coming and going --------------------------------------------------------------------------------------

    def send_off(self, request: Request) -> None:
        """A prefilled request leaves; its cache stays until ``sent``."""
        hashes = request.hashes[: request.entries]
        self.leaving[request.index] = Held(hashes, self.blocks_of(request.cached), request.final)
        request.serial = -1

    def sent(self, request: Request) -> None:
        """The cache of a request is elsewhere now."""
        held = self.leaving.pop(request.index)
        self._give_back(held)

    def _give_back(self, held: Held) -> None:
        self.pool.give(held.blocks - len(held.hashes) * self.pool.unit)
        if held.hashes:
            self.pool.release(held.hashes)
        self.held -= held.blocks
        self.final -= held.final

    def expect(self, request: Request) -> bool:
        """Make room for the cache of a request that is elsewhere; ``False`` if there is none yet."""
        if self.count + len(self.landing) + len(self.ready) >= self.rules.max_sequences:
            return False
        request.swapped = True
        if self.admit(request):
            request.swapped = False
            self.landing[request.index] = request
            return True
        request.swapped = False
        return False

    def land(self, request: Request) -> None:
        """The cache of a request has come."""
        self.ready.append(self.landing.pop(request.index))

    # -- blocks ------------------------------------------------------------------------------------------------

    def blocks_of(self, tokens: int) -> int:
        """Blocks that hold so many tokens."""
        return -(-tokens // self.block)

    def need(self, steps: int) -> int:
        """Blocks that the next ``steps`` decode steps of the running requests take."""
        if self.whole:
            return 0
        if steps == 1:
            return self.phases[-self.steps % self.block]
        cycles, rest = divmod(steps, self.block)
        found = cycles * self.count
        first = -self.steps % self.block
        if rest:
            phases, block = self.phases, self.block
            for i in range(first, first - rest, -1):
                found += phases[i % block]
        return found

    def steps_that_fit(self, most: int) -> int:
        """The most decode steps, up to ``most``, for which there are blocks, with those taken already."""
        room = self.pool.available + self.taken
        if (most // self.block + 1) * self.count <= room or self.need(most) <= room:
            return most
        low, high = 1, most
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.need(middle) <= room else (low, middle)
        return low

    def grow_to(self, steps: int) -> None:
        """Take the blocks of the next ``steps`` decode steps, as far as they are not taken yet."""
        more = self.need(steps) - self.taken
        if more > 0:
            self.pool.take(more)
            self.held += more
            self.taken += more

    def short(self) -> bool:
        """Whether the next decode step lacks blocks."""
        return self.need(1) > self.pool.available

    # -- admission ---------------------------------------------------------------------------------------------

    def fits_at_all(self, request: Request) -> bool:
        """Whether a request could run here alone."""
        last = request.prompt + (request.output - 1 if self.growing else 0)
        return self.blocks_of(max(last, request.prompt)) <= self.pool.total

    def admit(self, request: Request) -> bool:
        """Give a request its blocks; ``False`` if there are not enough."""
        pool = self.pool
        tokens = request.cached if request.swapped else request.target
        if self.whole and self.growing:
            tokens = max(tokens, request.prompt + request.output - 1)
        hits = 0
        if pool.unit and request.hashes and not request.swapped:
            hits = min(pool.match(request.hashes), (request.target - 1) // self.grain)
        now = self.blocks_of(tokens) - hits * pool.unit
        final = self.blocks_of(max(tokens, request.prompt + request.output - 1)) if self.growing else now
        shared = request.hashes[:hits]
        available = pool.available - (pool.unit * pool.idle_among(shared) if hits else 0)
        if now > available:
            return False
        if self.count or self.filling or self.landing or self.ready:
            to_come = self.final - self.held + final - now - hits * pool.unit
            if now + self.low + self.rules.reserve_output * to_come > available:
                return False
        pool.hold(shared)
        pool.take(now)
        self.serials += 1
        request.serial, request.entries, request.final = self.serials, hits, final
        request.blocks = now
        self.held += now + hits * pool.unit
        self.final += final
        if not request.swapped:
            request.cached = hits * self.grain
            if not request.preemptions:
                request.hit = request.cached
        self.order.append((request.serial, request))
        return True

    def schedule(self, budget: int, room: int) -> list[Chunk]:
        """Chunks of prompts for the next step: those begun first, then the queue, first come first served.

        Parameters
        ----------
        budget
            New tokens that the step may still take.
        room
            Requests that may still be admitted.
        """
        chunks: list[Chunk] = []
        for request in self.filling:
            if budget <= 0:
                return chunks
            new = min(budget, request.target - request.cached)
            chunks.append(Chunk(request, request.cached, new))
            budget -= new
        waiting = self.waiting
        while waiting and budget > 0 and room > 0:
            request = waiting[0]
            todo = 0 if request.swapped else request.target - request.cached
            if not self.rules.chunked and todo > budget and chunks:
                break  # a prompt longer than the budget runs alone, where the engine would refuse it
            if not self.admit(request):
                break
            waiting.popleft()
            room -= 1
            if request.swapped:
                chunks.append(Chunk(request, request.cached, 0))
                continue
            todo = request.target - request.cached
            new = min(budget, todo) if self.rules.chunked else todo
            chunks.append(Chunk(request, request.cached, new))
            self.filling.append(request)
            budget -= new
        return chunks

    # -- decoding ----------------------------------------------------------------------------------------------

    def join(self, request: Request) -> None:
        """Start to decode a request whose cache is complete."""
        request.joined = self.steps
        self.count += 1
        self.tokens += request.cached
        self.phases[(request.cached - self.steps) % self.block] += 1
        heappush(self.ends, (self.steps + request.rounds, request.serial, request))

    def rounds_left(self) -> int:
        """Decode steps until the next request ends."""
        ends = self.ends
        while ends[0][1] != ends[0][2].serial:
            heappop(ends)  # it has been preempted since
        return ends[0][0] - self.steps

    def advance(self, steps: int) -> None:
        """Decode ``steps`` times; the blocks of the first one are taken already."""
        self.grow_to(steps)
        self.taken = 0
        self.steps += steps
        self.tokens += steps * self.count * self.gain
        self.peak = max(self.peak, self.pool.used)

    def ended(self) -> list[Request]:
        """Requests whose last token has come; their blocks are given back."""
        found = []
        ends = self.ends
        while ends and (ends[0][0] <= self.steps or ends[0][1] != ends[0][2].serial):
            _, serial, request = heappop(ends)
            if serial == request.serial:
                self._stop(request)
                self.free(request)
                found.append(request)
        return found

    def _stop(self, request: Request) -> None:
        """No longer decode a request; its ``cached`` and ``generated`` become those of now."""
        done = self.steps - request.joined
        self.phases[(request.cached - request.joined) % self.block] -= 1
        request.generated += done
        request.rounds -= done
        request.joined = -1
        self.count -= 1
        tokens = request.cached + done * self.gain
        self.tokens = self.tokens - tokens if self.count else 0
        request.cached = int(tokens)

    def free(self, request: Request) -> None:
        """Give back all blocks of an admitted request that does not decode."""
        if self.whole and self.growing:
            request.cached = request.prompt + request.output - 1
        held = Held(request.hashes[: request.entries], self.blocks_of(request.cached), request.final)
        self._give_back(held)
        request.serial = -1

    def filled(self, request: Request) -> None:
        """A prefill is complete: its prefix may be shared."""
        pool = self.pool
        request.cached = request.target
        if pool.unit and request.hashes:
            whole = min(len(request.hashes), request.prompt // self.grain)
            if whole > request.entries:
                pool.share(request.hashes[request.entries : whole])
                request.entries = whole

    def preempt(self) -> Request:
        """Put the running request that was admitted last back to the front of the queue; returns it."""
        last = len(self.order) - 1
        while last >= 0:
            serial, request = self.order[last]
            if serial != request.serial:
                del self.order[last]
            elif request.joined >= 0:
                break
            last -= 1
        else:
            raise ProgramError("KV blocks are short and nobody is left to preempt")
        del self.order[last]
        self._stop(request)
        self.free(request)
        request.preemptions += 1
        if self.rules.preemption == "swap":
            request.swapped = True
        else:
            request.target = request.cached + 1  # the last token generated is not in the cache yet
            request.cached = 0
        self.waiting.appendleft(request)
        return request

    def tidy(self) -> None:
        """Forget requests that have left; called now and then."""
        if len(self.order) > 2 * (self.count + len(self.filling)) + 64:
            self.order = [(serial, r) for serial, r in self.order if serial == r.serial]

    def check(self) -> None:
        """Recount blocks and sums from the requests, between two steps. Raises ``ProgramError`` where they differ."""
        running = [r for _, serial, r in self.ends if serial == r.serial]
        tokens = [r.cached + self.steps - r.joined for r in running]
        partly = [*self.filling, *self.landing.values(), *self.ready]
        if self.whole and self.growing:
            blocks = sum(self.blocks_of(r.prompt + r.output - 1) for r in [*running, *partly])
            blocks += sum(held.blocks for held in self.leaving.values())
            if (len(running), blocks) != (self.count, self.held):
                raise ProgramError("the sums of a group differ from its requests")
            return
        found = [Held(r.hashes[: r.entries], self.blocks_of(t), 0) for r, t in zip(running, tokens, strict=True)]
        found += [Held(r.hashes[: r.entries], self.blocks_of(max(r.cached, r.target)), 0) for r in partly]
        found += self.leaving.values()
        blocks = sum(held.blocks for held in found)
        self.pool.check(blocks - self.pool.unit * sum(len(h.hashes) for h in found), [h.hashes for h in found])
        if (len(running), sum(tokens), blocks) != (self.count, self.tokens, self.held):
            raise ProgramError("the sums of a group differ from its requests")
