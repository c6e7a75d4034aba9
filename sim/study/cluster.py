"""Parts of a study on a Dask cluster.

The engine handles workers that join, die or are slow; a part whose worker died is priced again elsewhere. Rows come
back as the bytes of a part's file and are written by this process alone, so nothing is counted twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import Any

from sim.errors import InputError, not_installed

WAIT_SECONDS = 30
"""For a scheduler to answer."""


@contextmanager
def dask_executor(address: str) -> Iterator[tuple[Executor, Any]]:
    """Connect to a scheduler such as ``tcp://10.0.0.1:8786``; yields an executor and the client.

    Raises
    ------
    InputError
        If ``dask.distributed`` is not installed, or no scheduler answers.
    """
    try:
        from distributed import Client
    except ImportError:
        raise not_installed("a Dask cluster needs dask.distributed", "cluster") from None
    try:
        client: Any = Client(address, timeout=WAIT_SECONDS, set_as_default=False)  # type: ignore[no-untyped-call]
    except (OSError, ValueError) as error:
        raise InputError(f"--cluster {address}: no scheduler answers: {error}") from None
    with client, client.get_executor(pure=False, retries=3) as executor:
        yield executor, client


def threads(client: Any) -> int:
    """Threads of all workers that are there now, at least 1."""
    return max(1, sum(int(n) for n in client.nthreads().values()))
