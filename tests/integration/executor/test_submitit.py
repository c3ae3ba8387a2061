"""The adapter with the interface of submitit: a user changes one import."""

from __future__ import annotations

import sys

import pytest

import outlast
from outlast.executor import submitit
from tests.support.home import Home

cloudpickle = pytest.importorskip("cloudpickle", reason="the extra `executor` is not installed")
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def add(first: int, second: int = 1) -> int:
    return first + second


def test_jobs_of_submitit_run_on_machines(here: Home) -> None:
    executor = submitit.AutoExecutor(folder="logs")
    executor.update_parameters(timeout_min=5, slurm_partition="dev", slurm_array_parallelism=1, name="adapter")
    try:
        job = executor.submit(add, 5, second=7)
        with executor.batch():
            jobs = executor.map_array(add, [1, 2], [10, 20])
        assert job.result() == 12
        assert [one.result() for one in jobs] == [11, 22]
        assert job.results() == [12]
        assert (job.done(), job.state, job.exception()) == (True, "COMPLETED", None)
        with pytest.raises(outlast.UsageError, match="machines exist already"):
            executor.update_parameters(name="other")
    finally:
        executor.shutdown()
    assert here.workspace.runs() == ["adapter-1"]


def test_settings_without_a_counterpart_are_refused() -> None:
    executor = submitit.AutoExecutor()
    with pytest.raises(outlast.UsageError, match="nodes: a job has one machine"):
        executor.update_parameters(nodes=2)
    with pytest.raises(outlast.UsageError, match="gpus_per_node: name the kind of GPU"):
        executor.update_parameters(gpus_per_node=1)
    executor.update_parameters(cpus_per_task=4, mem_gb=15.5)
    assert executor._options == {"cpus": "4+", "memory": "16GB+"}
