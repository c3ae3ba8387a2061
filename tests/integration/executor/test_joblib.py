"""The joblib backend: `Parallel` and scikit-learn on machines, while one is preempted."""

from __future__ import annotations

import sys
import threading

import pytest

import outlast
from tests.integration.executor.team import executor, preempt_one
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


@pytest.mark.full
def test_a_randomized_search_on_preempted_machines_finds_the_same_parameters(here: Home) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    from sklearn.datasets import make_classification
    from sklearn.linear_model import SGDClassifier
    from sklearn.model_selection import RandomizedSearchCV

    features, labels = make_classification(n_samples=3000, n_features=20, random_state=0)
    space = {"alpha": [10.0**-n for n in range(1, 7)], "penalty": ["l2", "l1", "elasticnet"]}

    def search() -> RandomizedSearchCV:
        return RandomizedSearchCV(SGDClassifier(random_state=0), space, n_iter=8, cv=3, random_state=0)

    expected = search().fit(features, labels)
    outlast.register_joblib()
    stop = threading.Event()

    def preempt() -> None:
        while not stop.is_set() and not preempt_one(here.cloud, notice=True):
            stop.wait(0.05)

    thread = threading.Thread(target=preempt)
    with executor(max_workers=3) as pool, joblib.parallel_config("outlast", executor=pool):
        thread.start()
        try:
            found = search().fit(features, labels)
        finally:
            stop.set()
            thread.join()
    assert found.best_params_ == expected.best_params_
    assert found.best_score_ == expected.best_score_
