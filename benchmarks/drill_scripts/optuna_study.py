"""Optuna: a study in SQLite with `load_if_exists=True`, or one in memory."""

import argparse
import time

import optuna

parser = argparse.ArgumentParser()
parser.add_argument("--storage")
args = parser.parse_args()


def objective(trial):
    x = trial.suggest_float("x", -10, 10)
    time.sleep(0.25)
    return (x - 2) ** 2


study = optuna.create_study(
    study_name="quadratic",
    storage=args.storage,
    load_if_exists=True,
    sampler=optuna.samplers.TPESampler(seed=1),
)
done = len([t for t in study.trials if t.state.is_finished()])
study.optimize(objective, n_trials=60 - done)
print("Number of finished trials:", len(study.trials))
print("Best value:", study.best_value)
