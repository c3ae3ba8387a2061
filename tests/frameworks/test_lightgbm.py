"""LightGBM: killed and resumed, it has as many rounds as undisturbed, and predicts the same."""

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

dice = numpy.random.default_rng(0)
x = dice.normal(size=(400, 8))
y = (x[:, 0] * x[:, 1] + 0.3 * dice.normal(size=400) > 0).astype(float)

run = outlast.training(every_steps=4)
booster = restored(run)
began(booster.current_iteration() if booster else 0)
params = {"objective": "binary", "num_leaves": 7, "seed": 7, "num_threads": 1, "deterministic": True, "verbose": -1,
          "force_row_wise": True}
booster = train(run, params, lightgbm.Dataset(x[:300], y[:300]), 30, callbacks=[holds])
result(run, rounds=booster.current_iteration(), trees=booster.num_trees(),
       predictions=booster.predict(x[300:]).tolist())
"""


def test_rounds_are_not_doubled_and_the_predictions_are_the_same(undisturbed: Any, disturbed: Any) -> None:
    expected = undisturbed(SCRIPT)
    got, trial = disturbed(SCRIPT, notice=9, kill=22)
    assert trial.resumed_at[:2] == [0, 10]
    assert trial.resumed_at[2] in (12, 16, 20)
    assert (got["rounds"], got["trees"]) == (30, 30)
    assert got["predictions"] == pytest.approx(expected["predictions"], rel=1e-9)
