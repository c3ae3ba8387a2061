"""LightGBM: `train` as lightgbm's own, but a resumed one trains the rounds that are left and never doubles them.

The trees go on from the scores of those before. LightGBM begins its generators anew in each call and cannot be told
where they were; so the samples of a round (bagging, features, extra trees) follow from the seed and the number of the
round. They are other samples than those of a bare `lightgbm.train`. GOSS and DART look back over the rounds of one
call: resumed, they are as good, but not the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import lightgbm

from outlast.trainer.integrations.stopping import exit_if_left, leave_after
from outlast.trainer.training import Training

_SEED = ("seed", "random_seed", "random_state")
_BAGGING_FREQ = ("bagging_freq", "subsample_freq")
_BAGGING = ("bagging_fraction", "sub_row", "subsample", "bagging")
_PATIENCE = ("early_stopping_round", "early_stopping_rounds", "early_stopping", "n_iter_no_change")
_STOPPING = ("best_score", "best_iter", "best_score_list")


class SeedRounds:
    """Each round's samples from the seed and the round alone, whoever trained the rounds before."""

    before_iteration = True
    order = 5

    def __init__(self, params: dict[str, Any]) -> None:
        self.seed = int(_first(params, _SEED) or 0) * 1_000_003 % (1 << 30)
        self.every = int(_first(params, _BAGGING_FREQ) or 0)
        self.fraction = float(_first(params, _BAGGING) or 1.0)

    def __call__(self, env: Any) -> None:
        changed: dict[str, Any] = dict.fromkeys(("feature_fraction_seed", "extra_seed"), self.seed + env.iteration)
        if self.every:
            # A new seed of the bagging is heeded with a new fraction only: there and back, and drawn in every round, as
            # LightGBM counts rounds from the beginning of this call.
            env.model.reset_parameter({"bagging_fraction": self.fraction / 2})
            changed |= {"bagging_fraction": self.fraction, "bagging_freq": 1}
            changed["bagging_seed"] = self.seed + env.iteration // self.every * self.every
        env.model.reset_parameter(changed)


class SaveRounds:
    """A callback that saves the booster and the patience of early stopping, and ends the training when the machine is
    about to go."""

    # After early stopping, which decides on the same round.
    order = 40

    def __init__(self, run: Training, *, stopping: Any = None) -> None:
        self.run = run
        self.stopping = stopping

    def __call__(self, env: Any) -> None:
        rounds = env.iteration + 1
        if env.evaluation_result_list:
            self.run.log(rounds, **{f"{one[0]}-{one[1]}": one[2] for one in env.evaluation_result_list})
        if leave_after(self.run, rounds, lambda: self._state(env.model)):
            raise lightgbm.callback.EarlyStopException(env.iteration, env.evaluation_result_list or [])

    def _state(self, model: Any) -> dict[str, Any]:
        kept = {name: getattr(self.stopping, name) for name in _STOPPING} if self.stopping is not None else {}
        if kept:
            # As plain tuples: LightGBM 4.7 has a class for them, which a checkpoint cannot name.
            kept["best_score_list"] = [[tuple(one) for one in scores] for scores in kept["best_score_list"]]
        return {"model": model.model_to_string(num_iteration=-1), "stopping": kept}


def restored(run: Training) -> lightgbm.Booster | None:
    """The booster of the newest checkpoint; None if there is none."""
    saved = run.restore()
    return None if saved is None else lightgbm.Booster(model_str=saved["model"])


def train(
    run: Training, params: dict[str, Any], train_set: lightgbm.Dataset, num_boost_round: int = 100, **rest: Any
) -> lightgbm.Booster:
    """`lightgbm.train`, with `num_boost_round` as the total over all attempts. Leaves the process at the notice."""
    saved = run.restore()
    booster = None if saved is None else lightgbm.Booster(model_str=saved["model"])
    done = 0 if booster is None else booster.current_iteration()
    if booster is not None and done >= num_boost_round:
        return booster
    callbacks = list(rest.pop("callbacks", None) or ())
    params = dict(params)
    stopping = _stopping(params, callbacks)
    if stopping is not None and saved is not None:
        _go_on(stopping, saved["stopping"])
    callbacks += [SeedRounds(params), SaveRounds(run, stopping=stopping)]
    left = num_boost_round - done
    model = lightgbm.train(params, train_set, left, init_model=booster, callbacks=callbacks, **rest)
    exit_if_left(run)
    return model


def _first(params: dict[str, Any], names: Iterable[str]) -> Any:
    return next((params[name] for name in names if params.get(name) is not None), None)


def _stopping(params: dict[str, Any], callbacks: list[Any]) -> Any:
    """The callback for early stopping; made here if it is a parameter, as LightGBM would."""
    rounds = _first(params, _PATIENCE)
    if rounds and int(rounds) > 0:
        for name in _PATIENCE:
            params.pop(name, None)
        first = bool(params.get("first_metric_only", False))
        callbacks.append(lightgbm.early_stopping(int(rounds), first_metric_only=first, verbose=False))
    return next((one for one in callbacks if isinstance(one, lightgbm.callback._EarlyStoppingCallback)), None)


def _go_on(stopping: Any, kept: dict[str, Any]) -> None:
    """With the patience that is left: the callback forgets all when a call begins."""
    begin = stopping._init
    made = getattr(lightgbm, "EvalResult", None)
    if made is not None:
        kept = {**kept, "best_score_list": [[made(*one) for one in scores] for scores in kept["best_score_list"]]}

    def begin_again(env: Any) -> None:
        begin(env)
        if stopping.enabled:
            stopping.__dict__.update(kept)

    stopping._init = begin_again
