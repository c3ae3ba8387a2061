"""Optuna: a study on one machine that is saved after each trial, with the RNG state of its sampler.

A trial that dies with its machine is repeated with the same parameters, so that the study equals an undisturbed one.
For several machines use a database of Optuna instead. A study with its sampler is a Python object and can only be
pickled: `optimize` needs `outlast.training(pickle=True)`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import optuna

from outlast.trainer.integrations.stopping import exit_if_stopped
from outlast.trainer.state import require_pickle
from outlast.trainer.training import Training


def optimize(
    run: Training, objective: Callable[[Any], Any], *, total: int, n_jobs: int = 1, catch: Any = (), **study: Any
) -> optuna.Study:
    """Run a study of `total` trials over all attempts. `study`: arguments of `optuna.create_study`, without a storage.

    On a notice, exits the process after the current trial; a trial that takes too long is repeated. The study is
    pickled: the run needs `pickle=True`.
    """
    require_pickle(run.pickle, "optimize saves a study with its sampler")
    made: optuna.Study = run.restore() or optuna.create_study(**study)
    _retry_unfinished(made)

    def save(study: optuna.Study, trial: Any) -> None:
        run.save(len(_finished(study)), study, wait=run.stop_requested)
        if trial.value is not None:
            run.log(len(_finished(study)), value=trial.value)
        if run.stop_requested:
            run.stopped_early = True
            study.stop()

    left = total - len(_finished(made))
    if left > 0:
        made.optimize(objective, n_trials=left, n_jobs=n_jobs, catch=catch, callbacks=[save])
    exit_if_stopped(run)
    return made


def _finished(study: optuna.Study) -> list[Any]:
    """Return the trials that ended by themselves, without those that died with their machine."""
    trials = study.get_trials(deepcopy=False)
    return [trial for trial in trials if trial.state.is_finished() and "given_up" not in trial.user_attrs]


def _retry_unfinished(study: optuna.Study) -> None:
    """Fail and enqueue again the trials that were running at the last save, which happens with `n_jobs`."""
    for trial in study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.RUNNING,)):
        study._storage.set_trial_user_attr(trial._trial_id, "given_up", True)
        study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
        study.enqueue_trial(trial.params, user_attrs={"retry_of": trial.number})
