"""Keras: `fit` that resumes at the batch, not at the epoch, with weights, optimizer and random numbers.

Keras' own backup is overwritten in place, saves per epoch only, and loses the order of the data. Here an epoch's order
follows from the seed and its number, and each epoch is a separate `fit`: callbacks that count over epochs (such as
EarlyStopping) restart with each.
"""

from __future__ import annotations

import sys
from typing import Any

import keras
import numpy

from outlast.errors import UsageError
from outlast.trainer.integrations.stopping import exit_if_stopped, save_and_check_stop
from outlast.trainer.training import Training


class Epoch(keras.utils.PyDataset):
    """The remaining batches of one epoch, shuffled; the last may be smaller."""

    def __init__(self, x: Any, y: Any, *, batch_size: int, seed: int, epoch: int, skip: int = 0) -> None:
        super().__init__()
        self.x, self.y, self.batch_size, self.skip = x, y, batch_size, skip
        self.order = numpy.random.default_rng((seed, epoch)).permutation(len(x))

    def __len__(self) -> int:
        return _batches(len(self.x), self.batch_size) - self.skip

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        first = (self.skip + index) * self.batch_size
        chosen = self.order[first : first + self.batch_size]
        return self.x[chosen], self.y[chosen]


class SaveBatches(keras.callbacks.Callback):
    """Saves after a batch if a save is due; on a notice, saves and stops the training."""

    def __init__(self, run: Training, *, done: int, saved: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.run, self.done, self.saved = run, done, saved
        self._rng = None if saved is None else saved["rng"]

    def on_train_begin(self, logs: Any = None) -> None:
        # Not earlier: Keras calls the model on a batch before the training begins.
        saved, self.saved = self.saved, None
        if saved is not None:
            _assign(self.model.variables, saved["model"])
            self.model.optimizer.build(self.model.trainable_variables)
            _assign(self.model.optimizer.variables, saved["optimizer"])

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        # Not earlier: data readers may draw random numbers when they start.
        rng, self._rng = self._rng, None
        if rng is not None:
            _torch().set_rng_state(rng)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self.done += 1
        if save_and_check_stop(self.run, self.done, self._state):
            self.model.stop_training = True

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if logs and not self.run.stopped_early:
            self.run.log(self.done, **logs)

    def _state(self) -> dict[str, Any]:
        both = {"model": self.model.variables, "optimizer": self.model.optimizer.variables}
        arrays = {name: [numpy.array(_value(one)) for one in variables] for name, variables in both.items()}
        torch = _torch()
        return {"done": self.done, "rng": None if torch is None else torch.get_rng_state(), **arrays}


def fit(
    run: Training, model: Any, x: Any, y: Any, *, batch_size: int = 32, epochs: int = 1, seed: int = 0, **rest: Any
) -> Any:
    """`model.fit` on arrays, with `epochs` as the total over all attempts. Exits the process on a notice."""
    saved = run.restore()
    done = 0 if saved is None else saved["done"]
    first, skip = divmod(done, _batches(len(x), batch_size))
    saving = SaveBatches(run, done=done, saved=saved)
    if first >= epochs:
        saving.set_model(model)
        saving.on_train_begin()
    callbacks = [*(rest.pop("callbacks", None) or ()), saving]
    for epoch in range(first, epochs):
        data = Epoch(x, y, batch_size=batch_size, seed=seed, epoch=epoch, skip=skip if epoch == first else 0)
        model.fit(data, initial_epoch=epoch, epochs=epoch + 1, shuffle=False, callbacks=callbacks, **rest)
        exit_if_stopped(run)
    return model


def _torch() -> Any:
    """Return PyTorch if it is the backend: its dropout uses PyTorch's generator, not Keras' seeds."""
    return sys.modules["torch"] if keras.backend.backend() == "torch" else None


def _batches(length: int, batch_size: int) -> int:
    return -(-length // batch_size)


def _value(variable: Any) -> Any:
    return keras.ops.convert_to_numpy(variable.value)


def _assign(variables: list[Any], arrays: list[Any]) -> None:
    if [tuple(one.shape) for one in variables] != [array.shape for array in arrays]:
        raise UsageError("the checkpoint belongs to another model or optimizer: its shapes differ")
    for variable, array in zip(variables, arrays, strict=True):
        variable.assign(array)
