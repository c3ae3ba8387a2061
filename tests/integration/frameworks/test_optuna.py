"""Optuna: a killed and resumed study has the trials of an undisturbed one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("optuna", reason="optuna is not installed: make frameworks")

SCRIPT = """
import optuna
from outlast.trainer.integrations.optuna import optimize

def objective(trial):
    x = trial.suggest_float("x", -10, 10)
    kind = trial.suggest_categorical("kind", ["a", "b"])
    hold(run, trial.number)
    return (x - 2) ** 2 + (kind == "b")

optuna.logging.set_verbosity(optuna.logging.WARNING)
run = outlast.training(pickle=True)
before = run.restore()
began(len(before.trials) if before else 0)
study = optimize(run, objective, total=30, sampler=optuna.samplers.TPESampler(seed=4, n_startup_trials=5))
result(run, trials=[[trial.number, trial.params, trial.value, trial.state.name] for trial in study.trials],
       best=study.best_params)
"""


def test_the_same_trials_are_tried(undisturbed: Any, disturbed: Any) -> None:
    expected = undisturbed(SCRIPT)
    got, trial = disturbed(SCRIPT, notice=9, kill=22)
    assert trial.resumed_at == [0, 10, 22]
    assert len(got["trials"]) == 30
    assert got == expected


def test_trials_that_were_running_at_the_last_save_are_repeated(tmp_path: Path) -> None:
    import optuna

    import outlast
    from outlast.trainer.integrations.optuna import optimize

    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    died = study.ask({"x": optuna.distributions.FloatDistribution(0, 1)})
    run = outlast.training(folder=str(tmp_path), pickle=True)
    run.save(1, study, wait=True)
    done = optimize(run, lambda trial: trial.suggest_float("x", 0, 1), total=3)
    run.close()
    assert done.trials[died.number].state is optuna.trial.TrialState.FAIL
    assert done.trials[died.number + 1].params == died.params
    complete = [trial for trial in done.trials if trial.state is optuna.trial.TrialState.COMPLETE]
    assert len(complete) == 3


def test_a_study_without_pickle_is_refused_before_the_first_trial(tmp_path: Path) -> None:
    import outlast
    from outlast.errors import UsageError
    from outlast.trainer.integrations.optuna import optimize

    run = outlast.training(folder=str(tmp_path))
    with pytest.raises(UsageError, match="which only pickle can save") as raised:
        optimize(run, lambda trial: pytest.fail("a trial began"), total=1)
    run.close()
    assert "pickle=True" in raised.value.hint
