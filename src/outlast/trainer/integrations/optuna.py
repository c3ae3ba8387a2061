"""Optuna: a study that survives, for one machine. It is saved whole after each trial, its sampler's dice with it.

A trial that dies with its machine was never saved: it is tried again with the very same parameters, so that the study
becomes what it would have become undisturbed. For many machines at once use a database of Optuna's own instead.
A study with its sampler is a Python object and can only be pickled: `optimize` needs `outlast.training(pickle=True)`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import optuna

from outlast.trainer.integrations.stopping import exit_if_left
from outlast.trainer.state import require_pickle
from outlast.trainer.training import Training


def optimize(
    run: Training, objective: Callable[[Any], Any], *, total: int, n_jobs: int = 1, catch: Any = (), **study: Any
) -> optuna.Study:
    """A study of `total` trials over all attempts; `study` is what `optuna.create_study` takes, without a storage.

    Leaves the process at the notice, after the trial at hand; one too long for that is tried again. The study is
    pickled whole: the run needs `pickle=True`.
    """
    require_pickle(run.pickle, "optimize saves a study with its sampler")
    made: optuna.Study = run.restore() or optuna.create_study(**study)
    _retry_unfinished(made)

    def save(study: optuna.Study, trial: Any) -> None:
        run.save(len(_finished(study)), study, wait=run.leaving)
        if trial.value is not None:
            run.log(len(_finished(study)), value=trial.value)
        if run.leaving:
            run.left = True
            study.stop()

    left = total - len(_finished(made))
    if left > 0:
        made.optimize(objective, n_trials=left, n_jobs=n_jobs, catch=catch, callbacks=[save])
    exit_if_left(run)
    return made


def _finished(study: optuna.Study) -> list[Any]:
    """Trials that have ended by themselves; those that were given up for their machine count for nothing."""
    trials = study.get_trials(deepcopy=False)
    return [trial for trial in trials if trial.state.is_finished() and "given_up" not in trial.user_attrs]


def _retry_unfinished(study: optuna.Study) -> None:
    """With `n_jobs`, other trials were under way when one of them was saved: they died, and are to be tried again."""
    for trial in study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.RUNNING,)):
        study._storage.set_trial_user_attr(trial._trial_id, "given_up", True)
        study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
        study.enqueue_trial(trial.params, user_attrs={"retry_of": trial.number})
