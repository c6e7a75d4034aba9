"""The engine's order of events as a max-plus recurrence: the same answer without events, for whole sweeps at once.

Streams are in order and collectives are rendezvous, so every time is a maximum of sums of earlier ones, and the order
of operations does not depend on the durations. Durations may therefore be arrays with one entry per point of a
sweep. Tests compare it with the engine to 1e-9 on every strategy.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from sim.schedule import Issue, Rendezvous, Run, Track
from sim.workload import Number, larger

State = tuple[Number, Number, tuple[Number, ...]]  # compute, communication, carried


def run(tracks: Sequence[Track], starts: Sequence[State]) -> list[State]:
    """Run one segment on every lane from the given states."""
    count = len(tracks)
    time: list[Number] = [s[0] for s in starts]
    free: list[Number] = [s[1] for s in starts]
    position = [0] * count
    queues: list[deque[tuple[Rendezvous, Number]]] = [deque() for _ in range(count)]
    done: list[dict[tuple[int, tuple[int, ...]], Number]] = [{} for _ in range(count)]
    heads: dict[tuple[int, tuple[int, ...]], set[int]] = {}
    todo = deque(range(count))

    def head(lane: int) -> None:
        """Note that a lane's next collective can start, and finish it if everybody is there."""
        while queues[lane]:
            key = queues[lane][0][0].key
            present = heads.setdefault(key, set())
            present.add(lane)
            if len(present) < queues[lane][0][0].members:
                return
            start: Any = 0.0
            seconds: Any = 0.0
            for member in present:
                view, issued = queues[member][0]
                start = larger(start, larger(issued, free[member]))
                seconds = larger(seconds, view.seconds)
            del heads[key]
            for member in present:
                queues[member].popleft()
                free[member] = done[member][key] = start + seconds
                if member != lane:
                    todo.append(member)
                    head(member)

    while todo:
        lane = todo.popleft()
        track = tracks[lane]
        while position[lane] < len(track.instructions):
            instruction = track.instructions[position[lane]]
            if isinstance(instruction, Run):
                time[lane] = time[lane] + instruction.seconds
            elif isinstance(instruction, Issue):
                queues[lane].append((track.meetings[instruction.slot], time[lane]))
                if len(queues[lane]) == 1:
                    head(lane)
            else:
                slot = instruction.slot
                if slot >= 0:
                    key = track.meetings[slot].key
                    if key not in done[lane]:
                        break
                    time[lane] = larger(time[lane], done[lane][key])
                else:
                    time[lane] = larger(time[lane], starts[lane][2][-1 - slot])
            position[lane] += 1
    states: list[State] = []
    for lane, track in enumerate(tracks):
        carried = tuple(
            time[lane] if e is None else (done[lane][track.meetings[e].key] if e >= 0 else starts[lane][2][-1 - e])
            for e in track.exits
        )
        states.append((time[lane], free[lane], carried))
    return states
