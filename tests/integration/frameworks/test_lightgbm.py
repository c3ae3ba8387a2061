"""LightGBM: killed and resumed, the booster has the rounds and predictions of an undisturbed one."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("lightgbm", reason="lightgbm is not installed: make frameworks")

SCRIPT = """
import lightgbm, numpy
from outlast.trainer.integrations.lightgbm import restored, train

def holds(env):
    hold(run, env.iteration)
holds.before_iteration = True

rng = numpy.random.default_rng(0)
x = rng.normal(size=(400, 8))
y = (x[:, 0] * x[:, 1] + 0.3 * rng.normal(size=400) > 0).astype(float)

run = outlast.training(every_steps=4)
booster = restored(run)
began(booster.current_iteration() if booster else 0)
params = {"objective": "binary", "num_leaves": 7, "seed": 7, "num_threads": 1, "deterministic": True, "verbose": -1,
          "force_row_wise": True, **MORE}
train_set = lightgbm.Dataset(x[:300], y[:300])
valid = lightgbm.Dataset(x[300:], y[300:], reference=train_set)
booster = train(run, params, train_set, ROUNDS, valid_sets=[valid], callbacks=[holds])
result(run, rounds=booster.current_iteration(), trees=booster.num_trees(), best=booster.best_iteration,
       predictions=digest(booster.predict(x[300:])))
"""


@pytest.mark.parametrize(
    "sampling",
    ["{}", "{'bagging_fraction': 0.6, 'bagging_freq': 1}", "{'subsample': 0.6, 'subsample_freq': 4}",
     "{'feature_fraction': 0.5, 'extra_trees': True}"],
)  # fmt: skip
def test_rounds_are_not_doubled_and_the_booster_is_the_same(sampling: str, undisturbed: Any, disturbed: Any) -> None:
    script = SCRIPT.replace("MORE", sampling).replace("ROUNDS", "30")
    expected = undisturbed(script)
    got, trial = disturbed(script, notice=9, kill=22)
    assert trial.resumed_at[:2] == [0, 10]
    assert trial.resumed_at[2] in (12, 16, 20)
    assert (got["rounds"], got["trees"]) == (30, 30)
    assert got == expected


def test_early_stopping_keeps_its_state(undisturbed: Any, disturbed: Any) -> None:
    script = SCRIPT.replace("MORE", "{'early_stopping_rounds': 12, 'learning_rate': 0.3}").replace("ROUNDS", "300")
    expected = undisturbed(script)
    assert expected["best"] + 12 < 300
    got, _ = disturbed(script, notice=expected["best"] + 4, kill=expected["best"] + 9)
    assert got == expected
