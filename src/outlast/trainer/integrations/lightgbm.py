"""LightGBM: `train` as lightgbm's own, but a resumed one trains the rounds that are left and never doubles them.

The trees go on from the scores of those before. LightGBM begins its generators anew in each call and cannot be told
where they were: with bagging or sampled features a resumed booster is as good as an undisturbed one, but not the same.
So that it does not draw the first rounds' samples again, the seed moves on with the rounds that are done.
"""

from __future__ import annotations

from typing import Any

import lightgbm

from outlast.trainer.integrations.leaving import exit_if_left, leave_after
from outlast.trainer.training import Training


class SaveRounds:
    """A callback that saves the booster, and ends the training when the machine is about to go."""

    # After early stopping, which decides on the same round.
    order = 40

    def __init__(self, run: Training) -> None:
        self.run = run

    def __call__(self, env: Any) -> None:
        rounds = env.iteration + 1
        if env.evaluation_result_list:
            self.run.log(rounds, **{f"{one[0]}-{one[1]}": one[2] for one in env.evaluation_result_list})
        if leave_after(self.run, rounds, lambda: {"model": env.model.model_to_string(num_iteration=-1)}):
            raise lightgbm.callback.EarlyStopException(env.iteration, env.evaluation_result_list or [])


def restored(run: Training) -> lightgbm.Booster | None:
    """The booster of the newest checkpoint; None if there is none."""
    saved = run.restore()
    return None if saved is None else lightgbm.Booster(model_str=saved["model"])


def train(
    run: Training, params: dict[str, Any], train_set: lightgbm.Dataset, num_boost_round: int = 100, **rest: Any
) -> lightgbm.Booster:
    """`lightgbm.train`, with `num_boost_round` as the total over all attempts. Leaves the process at the notice."""
    booster = restored(run)
    done = 0 if booster is None else booster.current_iteration()
    if booster is not None and done >= num_boost_round:
        return booster
    if done:
        params = {**params, "seed": int(params.get("seed", 0)) + done}
    callbacks = [*(rest.pop("callbacks", None) or ()), SaveRounds(run)]
    left = num_boost_round - done
    model = lightgbm.train(params, train_set, left, init_model=booster, callbacks=callbacks, **rest)
    exit_if_left(run)
    return model
