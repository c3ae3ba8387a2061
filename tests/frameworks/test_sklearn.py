"""scikit-learn: a search that was killed tries no candidate twice but the one it died in, and finds the same."""

from __future__ import annotations

from typing import Any

import pytest

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
    dice = numpy.random.default_rng(step)
    x = dice.normal(size=(20, 5))
    return x, (x[:, 0] > 0).astype(int)

run = outlast.training(every_steps=5)
began((run.restore() or {"step": 0})["step"])
model = fit_partially(run, SGDClassifier(random_state=0), batch, total=60, classes=[0, 1])
result(run, model=digest(model.coef_, model.intercept_), steps=float(model.t_))
"""


def test_a_search_resumes_per_candidate_and_finds_what_scikit_learn_finds(undisturbed: Any, disturbed: Any) -> None:
    expected = undisturbed(SEARCH.replace("PLAIN", "True"))
    # Three fits a candidate: the notice comes in the third candidate, the end without notice in the sixth.
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
