"""Keras: killed and resumed in the middle of an epoch, the weights equal those of an undisturbed training."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch, the backend of this test, is not installed: make frameworks")
# Not imported here: the import needs a backend that may be missing.
if importlib.util.find_spec("keras") is None:
    pytest.skip("keras is not installed: make frameworks", allow_module_level=True)

SCRIPT = """
os.environ["KERAS_BACKEND"] = "torch"
import keras, numpy
from outlast.trainer.integrations.keras import fit

class Hold(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        global at
        at += 1
        hold(run, at)

keras.utils.set_random_seed(3)
run = outlast.training(every_steps=4)
at = (run.restore() or {"done": 0})["done"]
began(at)
rng = numpy.random.default_rng(0)
x, y = rng.normal(size=(100, 6)).astype("float32"), rng.normal(size=(100, 1)).astype("float32")
model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(16, activation="relu"),
                          keras.layers.Dropout(0.3), keras.layers.Dense(1)])
model.compile(keras.optimizers.Adam(0.01), "mse")
fit(run, model, x, y, batch_size=16, epochs=5, callbacks=[Hold()], verbose=0)
result(run, steps=int(model.optimizer.iterations), weights=digest(*model.get_weights()))
"""


def test_the_weights_are_the_same(undisturbed: Any, disturbed: Any) -> None:
    expected = undisturbed(SCRIPT)
    got, trial = disturbed(SCRIPT, notice=9, kill=25)
    assert trial.resumed_at[:2] == [0, 9]
    assert 9 <= trial.resumed_at[2] <= 24
    assert got["steps"] == 35
    assert got == expected
