"""A study on a real Dask scheduler with worker processes on the loopback: workers die, the answer stays."""

from __future__ import annotations

import os
import warnings

import distributed
import pytest

from sim.errors import InputError
from sim.study import cluster
from sim.study.cluster import dask_executor, threads
from sim.study.definition import Study
from sim.study.execute import run
from sim.study.layouts import AllLayouts

STUDY = Study(
    base={
        "model": "qwen3-32b",
        "gpu": "h100-sxm",
        "topology": "hgx-8",
        "workload": {"phase": "decode", "batch": 8, "context": "8k"},
    },
    vary={"workload.batch": [1, 8], "usable_memory": [0.7, 0.72, 0.75, 0.78, 0.8, 0.82, 0.85, 0.88, 0.9, 0.95]},
    all_layouts=AllLayouts(up_to=8, strategies=("tp",), degrees={"pp": (1, 2)}),
)


def content(folder):
    return {p.relative_to(folder): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.filterwarnings("ignore")
def test_a_worker_that_is_killed_loses_and_doubles_nothing(tmp_path):
    run(STUDY, tmp_path / "here", workers=1)
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address=None, silence_logs=50
        ) as local,
        dask_executor(local.scheduler_address) as (executor, client),
    ):
        assert threads(client) == 2
        killed = []

        def kill(now):
            busy = [worker for worker, tasks in client.processing().items() if tasks]
            if busy and not killed:
                killed.append(client.run(os.getpid, workers=busy[:1])[busy[0]])
                os.kill(killed[0], 9)

        progress = []
        run(STUDY, tmp_path / "there", executor, report=lambda now: (kill(now), progress.append(now)), in_flight=4)
    assert killed
    assert progress[-1].points == STUDY.count()[2]
    assert content(tmp_path / "there") == content(tmp_path / "here")


def test_no_scheduler_is_said(monkeypatch):
    monkeypatch.setattr(cluster, "WAIT_SECONDS", 0.2)
    with (
        warnings.catch_warnings(action="ignore"),
        pytest.raises(InputError, match="no scheduler answers"),
        cluster.dask_executor("tcp://127.0.0.1:9"),
    ):
        pass
