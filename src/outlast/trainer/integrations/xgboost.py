"""XGBoost: `train` as xgboost's own, but a resumed one trains the rounds that are left and never doubles them.

A resumed booster is the undisturbed one, tree for tree, unless rows or columns are sampled: XGBoost begins its
generators anew in each call and cannot be told where they were. Then the seed moves on with the rounds done, so
that the first rounds' samples are not drawn again: as good a booster, but not the same.
"""

from __future__ import annotations

from typing import Any

import xgboost

from outlast.trainer.integrations.leaving import exit_if_left, leave_after
from outlast.trainer.training import Training

_STOPPING = ("stopping_history", "best_scores", "current_rounds")


class SaveRounds(xgboost.callback.TrainingCallback):
    """Saves the booster, the history of the evaluation and the patience of early stopping."""

    def __init__(self, run: Training, *, stopping: xgboost.callback.EarlyStopping | None = None) -> None:
        super().__init__()
        self.run = run
        self.stopping = stopping
        self.history: dict[str, dict[str, list[float]]] = {}

    def before_training(self, model: Any) -> Any:
        saved = self.run.restore()
        if saved is not None:
            self.history = saved["history"]
            if self.stopping is not None:
                self.stopping.__dict__.update(saved["stopping"])
        return model

    def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        last = {}
        for data, metrics in evals_log.items():
            for metric, values in metrics.items():
                self.history.setdefault(data, {}).setdefault(metric, []).append(values[-1])
                last[f"{data}-{metric}"] = values[-1]
        rounds = model.num_boosted_rounds()
        if last:
            self.run.log(rounds, **last)
        return leave_after(self.run, rounds, lambda: self._state(model))

    def _state(self, model: Any) -> dict[str, Any]:
        stopping = {name: vars(self.stopping).get(name) for name in _STOPPING} if self.stopping is not None else {}
        return {"booster": bytes(model.save_raw("ubj")), "history": self.history, "stopping": stopping}


def restored(run: Training) -> xgboost.Booster | None:
    """The booster of the newest checkpoint; None if there is none."""
    saved = run.restore()
    return None if saved is None else xgboost.Booster(model_file=bytearray(saved["booster"]))


def train(
    run: Training,
    params: dict[str, Any],
    dtrain: xgboost.DMatrix,
    num_boost_round: int = 10,
    *,
    early_stopping_rounds: int | None = None,
    evals_result: dict[str, Any] | None = None,
    **rest: Any,
) -> xgboost.Booster:
    """`xgboost.train`, with `num_boost_round` as the total over all attempts. Leaves the process at the notice."""
    booster = restored(run)
    done = 0 if booster is None else booster.num_boosted_rounds()
    stopping = xgboost.callback.EarlyStopping(early_stopping_rounds) if early_stopping_rounds else None
    saving = SaveRounds(run, stopping=stopping)
    if done:
        params = {**params, "seed": int(params.get("seed", 0)) + done}
    # Early stopping decides first, so that what is saved has seen the same rounds as the booster.
    callbacks = [*(rest.pop("callbacks", None) or ()), *([stopping] if stopping else ()), saving]
    left = max(0, num_boost_round - done)
    model = xgboost.train(params, dtrain, left, xgb_model=booster, callbacks=callbacks, **rest)
    exit_if_left(run)
    if evals_result is not None:
        evals_result.update(saving.history)
    return model
