"""Run a study: parts on any ``concurrent.futures`` executor, a bounded number in flight, each kept when it arrives."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, CancelledError, Executor, Future, ProcessPoolExecutor, wait
from contextlib import ExitStack
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

from sim.errors import InputError, LostPartsError
from sim.study.definition import Part, Study
from sim.study.folder import StudyFolder, arrow, encode
from sim.study.price import price

LAYOUTS_IN_PROCESS = 100
"""Starting processes takes longer than pricing this many layouts."""
TRIES = 4
"""Of a part whose worker was lost."""


class Progress(NamedTuple):
    """How far a run is."""

    parts: int
    """Of this run, those that were there already included."""
    done: int
    points: int
    """Priced by this run."""
    retried: int


Report = Callable[[Progress], None]


def work(study: Study, part: Part) -> tuple[bytes, int]:
    """What a worker does: a part's file, and its number of rows."""
    rows = price(study, part)
    return encode(study, rows), len(next(iter(rows.values())))


class InProcess(Executor):
    """Runs everything at once in this process."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call, and return the finished future."""
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


def run(
    study: Study,
    folder: str | Path,
    executor: Executor | None = None,
    workers: int | None = None,
    shard: tuple[int, int] = (1, 1),
    report: Report = lambda progress: None,
    in_flight: int | None = None,
) -> StudyFolder:
    """Run what a folder does not hold yet, and return it.

    Parameters
    ----------
    executor
        Where parts are priced; left out, ``workers`` processes of this machine (all cores), or this process if there
        is little to do.
    shard
        ``(i, n)``: only every n-th part, from the i-th (from 1) on.
    report
        Called after every part.
    in_flight
        Parts that are submitted and not yet back, at most; memory grows with it.

    Raises
    ------
    InputError
        If the folder cannot be used, the shard does not exist, or pyarrow is missing here or where a part is priced.
    LostPartsError
        If workers were lost so often that parts are missing; running again continues.
    """
    index, of = shard
    if not 1 <= index <= of:
        raise InputError(f"--shard: {index}/{of} is not one of 1/{of} to {of}/{of}")
    arrow()
    into = StudyFolder(folder)
    into.begin(study)
    parts, layouts, _ = study.count()
    mine = range(index - 1, parts, of)
    there = sum(map(into.has, mine))
    todo = ((n, part) for n, part in islice(enumerate(study.parts()), index - 1, None, of) if not into.has(n))
    cores = workers or os.cpu_count() or 1
    with ExitStack() as stack:
        make: Callable[[], Executor]
        if executor is not None:
            make = lambda: executor  # noqa: E731
        elif cores == 1 or (workers is None and layouts <= LAYOUTS_IN_PROCESS):
            make = InProcess
        else:
            make = lambda: stack.enter_context(ProcessPoolExecutor(cores, get_context("spawn")))  # noqa: E731
        lost = _drain(study, into, todo, make, in_flight or 2 * cores + 2, (len(mine), there), report)
    if lost:
        raise LostPartsError(
            f"{len(lost)} parts were lost with their workers, {TRIES} times each; run again to continue. "
            f"The last one: {lost[-1]}"
        )
    if of == 1:
        into.finish()
    return into


def _drain(
    study: Study,
    into: StudyFolder,
    todo: Iterator[tuple[int, Part]],
    make: Callable[[], Executor],
    most: int,
    mine: tuple[int, int],
    report: Report,
) -> list[str]:
    """Keep ``most`` parts in flight until all are kept; return why those that are not could not be had."""
    executor = make()
    flying: dict[Future[tuple[bytes, int]], tuple[int, Part, int]] = {}
    again: list[tuple[int, Part, int]] = []
    lost: list[str] = []
    (parts, done), points, retried = mine, 0, 0
    seen = iter(todo)
    more = True
    while True:
        while len(flying) < most and (again or more):
            if again:
                number, part, tries = again.pop()
            else:
                number, part, tries = next(((n, p, 1) for n, p in seen), (-1, (), 0))
                if number < 0:
                    more = False
                    break
            try:
                flying[executor.submit(work, study, part)] = (number, part, tries)
            except RuntimeError:  # the pool broke, or was shut down
                again.append((number, part, tries))
                executor = make()
                if tries >= TRIES:
                    raise
                again[-1] = (number, part, tries + 1)
        if not flying:
            return lost
        for future in wait(flying, return_when=FIRST_COMPLETED).done:
            number, part, tries = flying.pop(future)
            try:
                content, rows = future.result()
            except InputError:  # what a worker lacks, it lacks at every try
                raise
            except (Exception, CancelledError) as error:  # a row's own errors never come here: the worker is gone
                retried += 1
                if tries < TRIES:
                    again.append((number, part, tries + 1))
                else:
                    lost.append(f"{type(error).__name__}: {error}")
                continue
            into.keep(number, content)
            done, points = done + 1, points + rows
            report(Progress(parts, done, points, retried))
