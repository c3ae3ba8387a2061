"""Lightning: a callback that saves the trainer's own checkpoint, whole or not at all, and stops at the notice.

By itself Lightning answers SIGTERM with exit 0 and saves nothing. To resume in the middle of an epoch with the same
data, use `Loader`: Lightning keeps its place in the checkpoint. Call `run.done()` right after `fit`. One process only:
with several, use Lightning's `ModelCheckpoint` into the checkpoint folder.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import lightning
import torch

from outlast.trainer.training import Training

_NAME = "lightning.ckpt"


class SaveAndLeave(lightning.Callback):
    """After each batch: save if it is time; at the notice save and end the training."""

    def __init__(self, run: Training) -> None:
        self.run = run
        self._seen = 0

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        # The last batch is saved with its epoch: saved before, Lightning would count that epoch's batches wrongly.
        if batch_idx + 1 < trainer.num_training_batches:
            self._after(trainer)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self._after(trainer)

    def _after(self, trainer: Any) -> None:
        step, leaving = trainer.global_step, self.run.leaving
        # With gradients accumulated over batches a step is several of these: saved is the first.
        if step != self._seen and (leaving or self.run._due(step - 1)):
            self._seen = step
            self.run.save(step, into=lambda folder: trainer.save_checkpoint(_in(folder)))
        if leaving:
            self.run.left = trainer.should_stop = True

    def state_dict(self) -> dict[str, Any]:
        """What Lightning forgets: the generators, so that dropout goes on where it was."""
        dice = {"cpu": torch.get_rng_state()}
        if torch.cuda.is_available():
            dice["cuda"] = torch.cuda.get_rng_state()
        return dice

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._dice = state_dict

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        # As late as can be: what Lightning does before its first batch draws numbers, too.
        if (dice := self.__dict__.pop("_dice", None)) is not None:
            torch.set_rng_state(dice["cpu"])
            if "cuda" in dice and torch.cuda.is_available():
                torch.cuda.set_rng_state(dice["cuda"])


def ckpt_path(run: Training) -> str | None:
    """For `trainer.fit(ckpt_path=…)`: the newest checkpoint, None if there is none."""
    return _in(run.files) if run.files else None


def _in(folder: str) -> str:
    return os.path.join(folder, _NAME)


class Loader(torch.utils.data.DataLoader[Any]):
    """A DataLoader that knows its place: shuffled by the seed and the epoch, resumed at the batch."""

    def __init__(self, dataset: Any, *, seed: int = 0, shuffle: bool = True, **rest: Any) -> None:
        self._place = _Place(len(dataset), seed=seed, shuffle=shuffle)
        self._batch = 0
        # Where the next pass over the data begins.
        self._next_epoch = self._next_batch = 0
        # A generator of its own: a loader draws from the global one when it begins, and so would move it on a resume.
        super().__init__(dataset, sampler=self._place, generator=torch.Generator().manual_seed(seed), **rest)

    def __iter__(self) -> Any:
        self._place.epoch, self._batch = self._next_epoch, self._next_batch
        self._next_epoch, self._next_batch = self._next_epoch + 1, 0
        self._place.skip = self._batch * (self.batch_size or 1)
        for batch in super().__iter__():
            self._batch += 1
            yield batch

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self._place.epoch, "batch": self._batch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        epoch, batch = state["epoch"], state["batch"]
        self._next_epoch, self._next_batch = (epoch, batch) if batch < len(self) else (epoch + 1, 0)


class _Place(torch.utils.data.Sampler[int]):
    def __init__(self, length: int, *, seed: int, shuffle: bool) -> None:
        self.length, self.seed, self.shuffle = length, seed, shuffle
        self.epoch = self.skip = 0

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
        order = torch.randperm(self.length, generator=generator).tolist() if self.shuffle else range(self.length)
        skip, self.skip = self.skip, 0
        return iter(order[skip:])
