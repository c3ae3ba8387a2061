"""XGBoost: `train` as xgboost's own, but a resumed one trains the rounds that are left and never doubles them.

A resumed booster is the undisturbed one, tree for tree. XGBoost begins its generators anew in each call and cannot be
told where they were; so, where rows or columns are sampled, each round's samples follow from the seed and the number of
the round. They are other samples than those of a bare `xgboost.train`.
"""

from __future__ import annotations

from typing import Any

import xgboost

from outlast.trainer.integrations.stopping import exit_if_left, leave_after
from outlast.trainer.training import Training

# Parameters that make a round draw numbers, with the value at which it does not.
_SAMPLING = {"subsample": 1.0, "colsample_bytree": 1.0, "colsample_bylevel": 1.0, "colsample_bynode": 1.0}
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


class SeedRounds(xgboost.callback.TrainingCallback):
    """Each round's samples from the seed and the round alone, whoever trained the rounds before."""

    def __init__(self, seed: int, tree_method: str) -> None:
        super().__init__()
        self.seed = seed
        self.method = "hist" if tree_method == "auto" else tree_method
        self.other = "approx" if self.method == "hist" else "hist"

    def before_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        # The sampler of columns lives as long as the tree's maker and is seeded when it is made, with one draw that the
        # rows then miss. Another method and back makes a new one, in every round as in the first of a resume.
        model.set_param({"tree_method": self.other})
        model.num_features()  # parameters take effect when somebody asks
        model.set_param({"tree_method": self.method, "seed": self.seed + model.num_boosted_rounds()})
        return False


def _seeding(params: dict[str, Any]) -> list[SeedRounds]:
    sampled = any(float(params.get(name) or whole) != whole for name, whole in _SAMPLING.items())
    if params.get("booster") == "gblinear" or not (sampled or params.get("booster") == "dart"):
        return []
    seed = params.get("seed", params.get("random_state"))
    return [SeedRounds(int(seed or 0) * 1_000_003, str(params.get("tree_method") or "auto"))]


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
    # Early stopping decides first, so that what is saved has seen the same rounds as the booster.
    callbacks = [*_seeding(params), *(rest.pop("callbacks", None) or ()), *([stopping] if stopping else ()), saving]
    left = max(0, num_boost_round - done)
    model = xgboost.train(params, dtrain, left, xgb_model=booster, callbacks=callbacks, **rest)
    exit_if_left(run)
    if evals_result is not None:
        evals_result.update(saving.history)
    return model
