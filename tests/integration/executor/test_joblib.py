"""The joblib backend: `Parallel` on machines. `tests/integration/frameworks/test_search.py` has scikit-learn."""

from __future__ import annotations

import sys

import pytest

import outlast
from tests.integration.executor.team import executor
from tests.support.home import Home

cloudpickle = pytest.importorskip("cloudpickle", reason="the extra `executor` is not installed")
joblib = pytest.importorskip("joblib", reason="joblib is not installed")
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def half(number: int) -> float:
    return number / 2


def test_parallel_calls_run_on_machines_and_errors_come_back(here: Home) -> None:
    outlast.register_joblib()
    with executor(max_workers=2) as pool, joblib.parallel_config("outlast", executor=pool):
        assert joblib.Parallel()(joblib.delayed(half)(n) for n in range(5)) == [0, 0.5, 1, 1.5, 2]
        with pytest.raises(TypeError):
            joblib.Parallel()(joblib.delayed(half)(text) for text in ("a", "b"))
        assert pool.workers
