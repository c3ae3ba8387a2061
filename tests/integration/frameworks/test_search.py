"""`RandomizedSearchCV` over the census data on three machines, of which one is preempted in the middle of a fit."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import outlast
from tests.conventions.sources import ROOT
from tests.integration.executor.team import executor, here
from tests.support.home import Home, home
from tests.support.waiting import eventually

cloudpickle = pytest.importorskip("cloudpickle", reason="the extra `executor` is not installed")
joblib = pytest.importorskip("joblib", reason="joblib is not installed")
pytest.importorskip("sklearn", reason="scikit-learn is not installed: make frameworks")
cloudpickle.register_pickle_by_value(sys.modules[__name__])

__all__ = ["here", "home"]

# The data of the UCI repository where they are, else people from the generator of the example.
REAL_DATA = ROOT.parent / "shared" / "data" / "census" / "adult.data"
ROWS = 1500


@pytest.fixture
def census() -> Iterator[Any]:
    sys.path.insert(0, str(ROOT / "examples" / "census"))
    import census

    yield census.parse(REAL_DATA.read_text(), rows=ROWS) if REAL_DATA.is_file() else census.synthetic(ROWS, seed=1)
    sys.path.pop(0)
    del sys.modules["census"]


def search(begun: str, gate: str) -> Any:
    """Return the search. Each fit reports that it has begun, and waits until the gate is open."""
    from sklearn.compose import make_column_transformer
    from sklearn.linear_model import SGDClassifier
    from sklearn.model_selection import RandomizedSearchCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    class Held(SGDClassifier):  # type: ignore[misc]
        def fit(self, X: Any, y: Any) -> Any:
            import tempfile
            import threading

            os.close(tempfile.mkstemp(dir=begun)[0])
            while not os.path.exists(gate):
                threading.Event().wait(0.05)
            return super().fit(X, y)

    columns = make_column_transformer(
        (StandardScaler(), list(range(6))), (OneHotEncoder(handle_unknown="ignore"), list(range(6, 14)))
    )
    space = {
        "held__alpha": [10.0**-n for n in range(1, 7)],
        "held__penalty": ["l2", "l1", "elasticnet"],
        "held__loss": ["log_loss", "hinge"],
    }
    return RandomizedSearchCV(
        make_pipeline(columns, Held(random_state=0)), space, n_iter=8, cv=3, random_state=0, scoring="roc_auc"
    )


def test_a_search_on_machines_of_which_one_is_preempted_finds_the_same_parameters(here: Home, census: Any) -> None:
    import numpy

    points, labels = numpy.array(census[0], dtype=object), numpy.array(census[1])
    folder = Path(here.environment["OUTLAST_WORKSPACE"], "tests")
    begun, gate = folder / "begun", folder / "gate"
    begun.mkdir(parents=True)
    gate.touch()
    expected = search(str(begun), str(gate)).fit(points, labels)
    gate.unlink()
    before = len(list(begun.iterdir()))
    outlast.register_joblib()

    def preempt() -> str:
        """Preempt a machine while all three hold a fit, and then let the fits go on."""
        eventually(lambda: len(list(begun.iterdir())) >= before + 3, within_s=120, what="a fit on each machine")
        chosen = min(one.name for one in here.cloud.machines() if one.status == "running")
        here.cloud.preempt(chosen, notice=False)
        gate.touch()
        return chosen

    # On the local cloud, machines have the packages of this interpreter.
    with (
        executor(max_workers=3, environment="host", env={"PYTHONPATH": os.environ.get("PYTHONPATH", "")}) as pool,
        joblib.parallel_config("outlast", executor=pool),
        ThreadPoolExecutor(1) as beside,
    ):
        preempted = beside.submit(preempt)
        found = search(str(begun), str(gate)).fit(points, labels)
        assert preempted.result()
    assert found.best_params_ == expected.best_params_
    assert found.best_score_ == expected.best_score_
    outcomes = [attempt.outcome for run in here.workspace.runs() for attempt in here.state(run).attempts]
    assert "preempted" in outcomes or "lost" in outcomes
