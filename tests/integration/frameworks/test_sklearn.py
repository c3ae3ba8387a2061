"""scikit-learn: a killed and resumed search repeats only the interrupted candidate, and has the same result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import outlast
from outlast.errors import UsageError
from outlast.trainer.state import UnsavableState

pytest.importorskip("sklearn", reason="scikit-learn is not installed: make frameworks")

SEARCH = """
import numpy
from scipy.stats import uniform
from sklearn.datasets import make_classification
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import GridSearchCV, RandomizedSearchCV, StratifiedKFold
from outlast.trainer.integrations.sklearn import fit_search

class Slow(SGDClassifier):
    def fit(self, X, y):
        if len(y) < 200:
            with open("fits.txt", "a") as file:
                file.write("fit\\n")
            hold(run, len(open("fits.txt").readlines()))
        return super().fit(X, y)

X, y = make_classification(200, 8, random_state=1)
run = outlast.training()
began(len((run.restore() or {"blocks": []})["blocks"]))
search = RandomizedSearchCV(
    Slow(random_state=0), {"alpha": uniform(0.0001, 0.1), "penalty": ["l1", "l2"]}, n_iter=8, random_state=5,
    cv=StratifiedKFold(3, shuffle=True, random_state=2), return_train_score=True)
if PLAIN:
    search.fit(X, y)
else:
    search = fit_search(run, search, X, y)
columns = {name: [repr(one) for one in numpy.ma.getdata(values)] for name, values in search.cv_results_.items()
           if "time" not in name}
result(run, columns=columns, best=repr(search.best_params_), score=search.best_score_, index=int(search.best_index_),
       splits=int(search.n_splits_), own=search.score(X, y), model=digest(search.best_estimator_.coef_))
"""

PARTIAL = """
import numpy
from sklearn.linear_model import SGDClassifier
from outlast.trainer.integrations.sklearn import fit_partially

def batch(step):
    hold(run, step)
    rng = numpy.random.default_rng(step)
    x = rng.normal(size=(20, 5))
    return x, (x[:, 0] > 0).astype(int)

run = outlast.training(every_steps=5, pickle=True)
began((run.restore() or {"step": 0})["step"])
model = fit_partially(run, SGDClassifier(random_state=0), batch, total=60, classes=[0, 1])
result(run, model=digest(model.coef_, model.intercept_), steps=float(model.t_))
"""


def test_a_search_resumes_per_candidate_with_the_result_of_scikit_learn(undisturbed: Any, disturbed: Any) -> None:
    expected = undisturbed(SEARCH.replace("PLAIN", "True"))
    # Three fits per candidate: the notice comes in the third candidate, the kill in the sixth.
    got, trial = disturbed(SEARCH.replace("PLAIN", "False"), notice=8, kill=17)
    assert trial.resumed_at == [0, 3, 5]
    assert got == expected
    fits = len((trial.root / "fits.txt").read_text().split())
    assert fits == 8 * 3 + 2, "only the folds of the candidate that was killed are fitted again"


def test_a_model_with_partial_fit(undisturbed: Any, disturbed: Any) -> None:
    expected = undisturbed(PARTIAL)
    got, trial = disturbed(PARTIAL, notice=11, kill=48)
    assert trial.resumed_at[:2] == [0, 12]
    assert 12 < trial.resumed_at[2] <= 45
    assert got == expected


def test_models_and_candidates_that_only_pickle_can_save_are_reported_before_the_first_fit(tmp_path: Path) -> None:
    from sklearn.dummy import DummyClassifier
    from sklearn.linear_model import SGDClassifier
    from sklearn.model_selection import GridSearchCV
    from sklearn.pipeline import Pipeline

    from outlast.trainer.integrations.sklearn import fit_partially, fit_search

    run = outlast.training(folder=str(tmp_path))
    with pytest.raises(UsageError, match="saves a SGDClassifier object, which only pickle can save") as raised:
        fit_partially(run, SGDClassifier(), lambda step: ([[0.0]], [0]), total=1, classes=[0, 1])
    assert "pickle=True" in raised.value.hint
    search = GridSearchCV(
        Pipeline([("model", DummyClassifier())]), {"model": [DummyClassifier(), SGDClassifier()]}, cv=2
    )
    with pytest.raises(UnsavableState, match=r'state\["candidates"\]\[0\]\["model"\] cannot be saved without pickle'):
        fit_search(run, search, [[0.0]] * 8, [0, 1] * 4)
    run.close()
    trusting = outlast.training(folder=str(tmp_path), pickle=True)
    assert len(fit_search(trusting, search, [[0.0]] * 8, [0, 1] * 4).cv_results_["params"]) == 2
    trusting.close()
