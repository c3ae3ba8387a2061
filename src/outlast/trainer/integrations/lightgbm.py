"""LightGBM: `train` like `lightgbm.train`; a resumed training adds the remaining rounds only.

New trees continue from the scores of the restored ones. LightGBM restarts its generators in each call; so the samples
of a round (bagging, features, extra trees) are derived from the seed and the round. They differ from those of a plain
`lightgbm.train`. GOSS and DART depend on the earlier rounds of one call: resumed, their results are equally good, but
not the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import lightgbm

from outlast.trainer.integrations.stopping import exit_if_stopped, save_and_check_stop
from outlast.trainer.training import Training

_SEED = ("seed", "random_seed", "random_state")
_BAGGING_FREQ = ("bagging_freq", "subsample_freq")
_BAGGING = ("bagging_fraction", "sub_row", "subsample", "bagging")
_EARLY_STOPPING = ("early_stopping_round", "early_stopping_rounds", "early_stopping", "n_iter_no_change")
_STOPPING = ("best_score", "best_iter", "best_score_list")


class LightgbmSeeds:
    """Derives the samples of a round from the seed and the round only, also after a resume."""

    before_iteration = True
    order = 5

    def __init__(self, params: dict[str, Any]) -> None:
        self.seed = int(_first(params, _SEED) or 0) * 1_000_003 % (1 << 30)
        self.every = int(_first(params, _BAGGING_FREQ) or 0)
        self.fraction = float(_first(params, _BAGGING) or 1.0)

    def __call__(self, env: Any) -> None:
        changed: dict[str, Any] = dict.fromkeys(("feature_fraction_seed", "extra_seed"), self.seed + env.iteration)
        if self.every:
            # LightGBM applies a new bagging seed only with a new fraction: change it twice. Draw in every round:
            # LightGBM counts rounds from the start of this call.
            env.model.reset_parameter({"bagging_fraction": self.fraction / 2})
            changed |= {"bagging_fraction": self.fraction, "bagging_freq": 1}
            changed["bagging_seed"] = self.seed + env.iteration // self.every * self.every
        env.model.reset_parameter(changed)


class LightgbmSaves:
    """Saves the booster and the state of early stopping; on a notice, stops the training."""

    # After early stopping, which decides on the same round.
    order = 40

    def __init__(self, run: Training, *, stopping: Any = None) -> None:
        self.run = run
        self.stopping = stopping

    def __call__(self, env: Any) -> None:
        rounds = env.iteration + 1
        if env.evaluation_result_list:
            self.run.log(rounds, **{f"{one[0]}-{one[1]}": one[2] for one in env.evaluation_result_list})
        if save_and_check_stop(self.run, rounds, lambda: self._state(env.model)):
            raise lightgbm.callback.EarlyStopException(env.iteration, env.evaluation_result_list or [])

    def _state(self, model: Any) -> dict[str, Any]:
        kept = {name: getattr(self.stopping, name) for name in _STOPPING} if self.stopping is not None else {}
        if kept:
            # As plain tuples: LightGBM 4.7 has a class for them, which is not plain data.
            kept["best_score_list"] = [[tuple(one) for one in scores] for scores in kept["best_score_list"]]
        return {"model": model.model_to_string(num_iteration=-1), "stopping": kept}


def restored(run: Training) -> lightgbm.Booster | None:
    """Return the booster of the newest checkpoint; None without one."""
    saved = run.restore()
    return None if saved is None else lightgbm.Booster(model_str=saved["model"])


def train(
    run: Training, params: dict[str, Any], train_set: lightgbm.Dataset, num_boost_round: int = 100, **rest: Any
) -> lightgbm.Booster:
    """`lightgbm.train`, with `num_boost_round` as the total over all attempts. Exits the process on a notice."""
    saved = run.restore()
    booster = None if saved is None else lightgbm.Booster(model_str=saved["model"])
    done = 0 if booster is None else booster.current_iteration()
    if booster is not None and done >= num_boost_round:
        return booster
    callbacks = list(rest.pop("callbacks", None) or ())
    params = dict(params)
    stopping = _stopping(params, callbacks)
    if stopping is not None and saved is not None:
        _continue_stopping(stopping, saved["stopping"])
    callbacks += [LightgbmSeeds(params), LightgbmSaves(run, stopping=stopping)]
    left = num_boost_round - done
    model = lightgbm.train(params, train_set, left, init_model=booster, callbacks=callbacks, **rest)
    exit_if_stopped(run)
    return model


def _first(params: dict[str, Any], names: Iterable[str]) -> Any:
    return next((params[name] for name in names if params.get(name) is not None), None)


def _stopping(params: dict[str, Any], callbacks: list[Any]) -> Any:
    """Return the callback for early stopping; created here if it is set by a parameter, as in LightGBM."""
    rounds = _first(params, _EARLY_STOPPING)
    if rounds and int(rounds) > 0:
        for name in _EARLY_STOPPING:
            params.pop(name, None)
        first = bool(params.get("first_metric_only", False))
        callbacks.append(lightgbm.early_stopping(int(rounds), first_metric_only=first, verbose=False))
    return next((one for one in callbacks if isinstance(one, lightgbm.callback._EarlyStoppingCallback)), None)


def _continue_stopping(stopping: Any, kept: dict[str, Any]) -> None:
    """Restore the state of early stopping, which the callback resets at the start of a call."""
    initialize = stopping._init
    made = getattr(lightgbm, "EvalResult", None)
    if made is not None:
        kept = {**kept, "best_score_list": [[made(*one) for one in scores] for scores in kept["best_score_list"]]}

    def initialize_and_restore(env: Any) -> None:
        initialize(env)
        if stopping.enabled:
            stopping.__dict__.update(kept)

    stopping._init = initialize_and_restore
