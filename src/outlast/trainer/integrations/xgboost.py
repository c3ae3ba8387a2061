"""XGBoost: `train` like `xgboost.train`; a resumed training adds the remaining rounds only.

A resumed booster equals the undisturbed one, tree for tree. XGBoost restarts its generators in each call; so, if rows
or columns are sampled, the samples of a round are derived from the seed and the round. They differ from those of a
plain `xgboost.train`.
"""

from __future__ import annotations

from typing import Any

import xgboost

from outlast.trainer.integrations.stopping import exit_if_stopped, save_and_check_stop
from outlast.trainer.training import Training

# Parameters that enable sampling, with the value that disables it.
_SAMPLING = {"subsample": 1.0, "colsample_bytree": 1.0, "colsample_bylevel": 1.0, "colsample_bynode": 1.0}
_STOPPING = ("stopping_history", "best_scores", "current_rounds")


class XgboostSaves(xgboost.callback.TrainingCallback):
    """Saves the booster, the evaluation history and the state of early stopping."""

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
        return save_and_check_stop(self.run, rounds, lambda: self._state(model))

    def _state(self, model: Any) -> dict[str, Any]:
        stopping = {name: vars(self.stopping).get(name) for name in _STOPPING} if self.stopping is not None else {}
        return {"booster": bytes(model.save_raw("ubj")), "history": self.history, "stopping": stopping}


class XgboostSeeds(xgboost.callback.TrainingCallback):
    """Derives the samples of a round from the seed and the round only, also after a resume."""

    def __init__(self, seed: int, tree_method: str) -> None:
        super().__init__()
        self.seed = seed
        self.method = "hist" if tree_method == "auto" else tree_method
        self.other = "approx" if self.method == "hist" else "hist"

    def before_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        # The column sampler is seeded once per tree updater, with a draw that shifts the row samples. Switching the
        # method and back creates a new updater, in every round as in the first one after a resume.
        model.set_param({"tree_method": self.other})
        model.num_features()  # applies the parameters
        model.set_param({"tree_method": self.method, "seed": self.seed + model.num_boosted_rounds()})
        return False


def _seeding(params: dict[str, Any]) -> list[XgboostSeeds]:
    sampled = any(float(params.get(name) or off) != off for name, off in _SAMPLING.items())
    if params.get("booster") == "gblinear" or not (sampled or params.get("booster") == "dart"):
        return []
    seed = params.get("seed", params.get("random_state"))
    return [XgboostSeeds(int(seed or 0) * 1_000_003, str(params.get("tree_method") or "auto"))]


def restored(run: Training) -> xgboost.Booster | None:
    """Return the booster of the newest checkpoint; None without one."""
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
    """`xgboost.train`, with `num_boost_round` as the total over all attempts. Exits the process on a notice."""
    booster = restored(run)
    done = 0 if booster is None else booster.num_boosted_rounds()
    stopping = xgboost.callback.EarlyStopping(early_stopping_rounds) if early_stopping_rounds else None
    saving = XgboostSaves(run, stopping=stopping)
    # Early stopping runs first, so that its saved state includes the same rounds as the booster.
    callbacks = [*_seeding(params), *(rest.pop("callbacks", None) or ()), *([stopping] if stopping else ()), saving]
    left = max(0, num_boost_round - done)
    model = xgboost.train(params, dtrain, left, xgb_model=booster, callbacks=callbacks, **rest)
    exit_if_stopped(run)
    if evals_result is not None:
        evals_result.update(saving.history)
    return model
