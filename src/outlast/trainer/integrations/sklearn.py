"""scikit-learn: searches that resume per candidate, and models with `partial_fit` that resume per batch.

A search is saved as plain data. A model is a Python object and can only be pickled: `fit_partially` needs
`outlast.training(pickle=True)`, and so does a search whose candidates are objects (estimators, kernels).
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import numpy
import sklearn.base
import sklearn.model_selection as selection

from outlast.errors import UsageError
from outlast.trainer import state as states
from outlast.trainer.integrations.stopping import exit_if_stopped
from outlast.trainer.training import Training


def fit_search(run: Training, search: Any, X: Any, y: Any = None, *, at_once: int = 1, **fit_params: Any) -> Any:
    """`search.fit(X, y)` for GridSearchCV and RandomizedSearchCV, saved after every `at_once` candidates.

    Candidates and folds are drawn once and saved, so that all attempts share them even without a `random_state`.
    Raise `at_once` to use more cores than folds. Exits the process on a notice.
    """
    state = run.restore() or {"candidates": _candidates(search), "folds": _folds(search, X, y), "blocks": []}
    states.dump(state, pickle=run.pickle)  # a candidate that cannot be saved is reported before the first fit
    candidates, blocks = state["candidates"], state["blocks"]
    done = sum(len(block["params"]) for block in blocks)
    for at in run.steps(done, total=len(candidates)):
        tried = sum(len(block["params"]) for block in blocks)
        if at < tried:
            continue  # it belongs to the previous block
        grid = [{name: [value] for name, value in one.items()} for one in candidates[at : at + at_once]]
        part = _one_search(search, grid, state["folds"]).fit(X, y, **fit_params)
        blocks.append(_plain(part.cv_results_))
        run.save(at + len(grid), state)
        run.log(at + len(grid), best=_best_score(search, blocks))
    exit_if_stopped(run)
    search.n_splits_ = len(state["folds"])
    return _finish(search, blocks, X=X, y=y, fit_params=fit_params)


def _candidates(search: Any) -> list[dict[str, Any]]:
    if isinstance(search, selection.RandomizedSearchCV):
        return list(
            selection.ParameterSampler(search.param_distributions, search.n_iter, random_state=search.random_state)
        )
    if isinstance(search, selection.GridSearchCV):
        return list(selection.ParameterGrid(search.param_grid))
    raise UsageError(f"fit_search resumes GridSearchCV and RandomizedSearchCV, not {type(search).__name__}")


def _folds(search: Any, X: Any, y: Any) -> list[Any]:
    splitter = selection.check_cv(search.cv, y, classifier=sklearn.base.is_classifier(search.estimator))
    return list(splitter.split(X, y))


def _one_search(search: Any, grid: Any, folds: Any) -> Any:
    """Return the user's search over these candidates only, without the final fit on all data."""
    kept = ("scoring", "n_jobs", "verbose", "pre_dispatch", "error_score", "return_train_score")
    settings = {name: getattr(search, name) for name in kept}
    return selection.GridSearchCV(search.estimator, grid, cv=folds, refit=False, **settings)


def _plain(results: dict[str, Any]) -> dict[str, Any]:
    """Remove the columns of parameters: they are arrays of Python objects, and repeat `params`."""
    return {name: values for name, values in results.items() if not name.startswith("param_")}


def _joined(blocks: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the results of all candidates, ranked together."""
    results: dict[str, Any] = {}
    for name in dict.fromkeys(itertools.chain.from_iterable(blocks)):
        if name == "params":
            params = [one for block in blocks for one in block["params"]]
            for parameter in dict.fromkeys(itertools.chain.from_iterable(params)):
                results[f"param_{parameter}"] = _column(parameter, blocks)
            results[name] = params
        elif not name.startswith("rank_"):
            results[name] = numpy.concatenate([block[name] for block in blocks])
    for name in [name for name in results if name.startswith("mean_test_")]:
        results["rank_test_" + name.removeprefix("mean_test_")] = _ranks(results[name])
    return results


def _column(parameter: str, blocks: list[dict[str, Any]]) -> Any:
    """Return one parameter over all candidates; masked where a candidate does not have it."""
    values = [one.get(parameter) for block in blocks for one in block["params"]]
    missing = [parameter not in one for block in blocks for one in block["params"]]
    column: Any = numpy.empty(len(values), dtype=object)
    column[:] = values
    return numpy.ma.MaskedArray(column, mask=missing)


def _ranks(means: Any) -> Any:
    """Return the ranks: 1 is the best, equals share the better rank, failed candidates are last."""
    scores = numpy.where(numpy.isnan(means), -numpy.inf, means)
    return numpy.array([1 + int((scores > score).sum()) for score in scores], dtype=numpy.int32)


def _metric(search: Any) -> str:
    return search.refit if isinstance(search.refit, str) else "score"


def _best_score(search: Any, blocks: list[dict[str, Any]]) -> float:
    scores = [block.get(f"mean_test_{_metric(search)}", [numpy.nan]) for block in blocks]
    return float(numpy.nanmax(numpy.concatenate([*scores, [-numpy.inf]])))


def _finish(search: Any, blocks: list[dict[str, Any]], *, X: Any, y: Any, fit_params: Any) -> Any:
    """Set the attributes that the search's own `fit` would set."""
    results = search.cv_results_ = _joined(blocks)
    search.multimetric_ = "mean_test_score" not in results
    search.scorer_ = _scorer(search)
    if search.multimetric_ and not search.refit:
        return search
    ranks = results[f"rank_test_{_metric(search)}"]
    search.best_index_ = search.refit(results) if callable(search.refit) else int(ranks.argmin())
    search.best_params_ = results["params"][search.best_index_]
    if not callable(search.refit):
        search.best_score_ = results[f"mean_test_{_metric(search)}"][search.best_index_]
    if search.refit:
        began = time.time()
        best = sklearn.base.clone(search.estimator).set_params(**sklearn.base.clone(search.best_params_, safe=False))
        search.best_estimator_ = best.fit(X, **fit_params) if y is None else best.fit(X, y, **fit_params)
        search.refit_time_ = time.time() - began
    return search


def _scorer(search: Any) -> Any:
    from sklearn.metrics import check_scoring

    if callable(search.scoring):
        return search.scoring
    return check_scoring(search.estimator, search.scoring)


def fit_partially(
    run: Training, model: Any, batch: Callable[[int], tuple[Any, Any]], *, total: int, **fit_params: Any
) -> Any:
    """`model.partial_fit(*batch(step))` for `total` steps over all attempts. Exits the process on a notice.

    The model is pickled with its RNG state: the run needs `pickle=True`. The data of a step must depend on the step
    only.
    """
    states.require_pickle(run.pickle, f"fit_partially saves a {type(model).__name__} object")
    saved = run.restore() or {"step": 0, "model": model}
    model = saved["model"]
    for step in run.steps(saved["step"], total=total):
        model.partial_fit(*batch(step), **fit_params)
        run.save_if_due(step, lambda step=step: {"step": step + 1, "model": model})  # type: ignore[misc]
    exit_if_stopped(run)
    return model
