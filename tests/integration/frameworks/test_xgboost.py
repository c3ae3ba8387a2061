"""XGBoost: killed and resumed, the booster equals an undisturbed one."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("xgboost", reason="xgboost is not installed: make frameworks")

SCRIPT = """
import hashlib
import numpy, xgboost
from outlast.trainer.integrations.xgboost import restored, train

class Hold(xgboost.callback.TrainingCallback):
    def before_iteration(self, model, epoch, evals_log):
        hold(run, model.num_boosted_rounds())
        return False

rng = numpy.random.default_rng(0)
x = rng.normal(size=(400, 8))
y = (x[:, 0] * x[:, 1] + 0.3 * rng.normal(size=400) > 0).astype(float)
train_set, test_set = xgboost.DMatrix(x[:300], y[:300]), xgboost.DMatrix(x[300:], y[300:])

run = outlast.training(every_steps=4)
booster = restored(run)
began(booster.num_boosted_rounds() if booster else 0)
history = {}
params = {"objective": "binary:logistic", "max_depth": 3, "seed": 7,
          "nthread": 1, "eta": ETA, "subsample": SAMPLE}
booster = train(run, params, train_set, ROUNDS, evals=[(test_set, "test")], callbacks=[Hold()], verbose_eval=False,
                evals_result=history, early_stopping_rounds=STOPPING)
result(run, rounds=booster.num_boosted_rounds(), predictions=digest(booster.predict(test_set)),
       trees=hashlib.sha256("".join(booster.get_dump()).encode()).hexdigest(), history=history["test"]["logloss"])
"""


def test_rounds_are_not_doubled_and_the_trees_are_the_same(undisturbed: Any, disturbed: Any) -> None:
    script = SCRIPT.replace("SAMPLE", "1.0").replace("ROUNDS", "30").replace("STOPPING", "None").replace("ETA", "0.3")
    expected = undisturbed(script)
    got, trial = disturbed(script, notice=9, kill=22)
    assert trial.resumed_at[:2] == [0, 10]
    assert trial.resumed_at[2] in (12, 16, 20)
    assert got["rounds"] == 30
    assert got == expected


def test_early_stopping_keeps_its_state(undisturbed: Any, disturbed: Any) -> None:
    script = SCRIPT.replace("SAMPLE", "1.0").replace("ROUNDS", "300").replace("STOPPING", "12").replace("ETA", "0.1")
    expected = undisturbed(script)
    assert 20 < expected["rounds"] < 300
    got, _ = disturbed(script, notice=expected["rounds"] - 8, kill=expected["rounds"] - 3)
    assert got == expected


@pytest.mark.parametrize(
    "sampling",
    ['"subsample": 0.7', '"colsample_bytree": 0.6, "colsample_bynode": 0.7',
     '"subsample": 0.7, "tree_method": "approx"', '"subsample": 0.7, "tree_method": "exact"',
     '"booster": "dart", "rate_drop": 0.3'],
)  # fmt: skip
def test_with_sampled_rows_and_columns_the_trees_are_the_same(sampling: str, undisturbed: Any, disturbed: Any) -> None:
    script = SCRIPT.replace('"subsample": SAMPLE', sampling)
    script = script.replace("ROUNDS", "30").replace("STOPPING", "None").replace("ETA", "0.1")
    expected = undisturbed(script)
    got, _ = disturbed(script, notice=9, kill=22)
    assert got == expected
