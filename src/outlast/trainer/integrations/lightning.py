"""Lightning: a callback that saves the trainer's own checkpoint, whole or not at all, and stops at the notice.

By itself Lightning answers SIGTERM with exit 0 and saves nothing. To resume in the middle of an epoch with the same
data, use `Loader`: Lightning keeps its place in the checkpoint. Call `run.done()` right after `fit`. With several ranks
(DDP) the first writes for all. Sharded strategies are left to Lightning's `ModelCheckpoint` into the checkpoint folder.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import lightning
import torch

from outlast.trainer.integrations.torch import every_rank
from outlast.trainer.training import Training

_NAME = "lightning.ckpt"


class SaveAndLeave(lightning.Callback):
    """After each batch: save if it is time; at the notice save and end the training. All ranks do the same."""

    def __init__(self, run: Training) -> None:
        self.run = run
        self._seen = 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        # Lightning's own answer to SIGTERM broadcasts from inside of the handler, at whatever point this rank is: with
        # several ranks that meets another's collective, and all wait for ever. It puts the old handler back at the end.
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, lambda *_: self.run.leave())

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        # The last batch is saved with its epoch: saved before, Lightning would count that epoch's batches wrongly.
        if batch_idx + 1 < trainer.num_training_batches:
            self._after(trainer, pl_module.device)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self._after(trainer, pl_module.device)

    def _after(self, trainer: Any, device: Any) -> None:
        step = trainer.global_step
        leaving, due = _agreed((self.run.leaving, self.run._due(step - 1)), device)
        # With gradients accumulated over batches a step is several of these: saved is the first.
        if step != self._seen and (leaving or due):
            self._seen = step
            if trainer.is_global_zero:
                self.run.save(step, into=lambda folder: trainer.save_checkpoint(_in(folder)))
            else:
                trainer.save_checkpoint(_NAME)  # all must call it, and only the first writes
        if leaving:
            self.run.left = trainer.should_stop = True

    def state_dict(self) -> dict[str, Any]:
        """What Lightning forgets: the generators of every rank, so that dropout goes on where it was."""
        dice = {"cpu": torch.get_rng_state()}
        if torch.cuda.is_available():
            dice["cuda"] = torch.cuda.get_rng_state()
        return {"dice": every_rank(dice)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._dice = state_dict["dice"]

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        # As late as can be: what Lightning does before its first batch draws numbers, too.
        dice = self.__dict__.pop("_dice", None)
        if dice is not None and len(dice) == trainer.world_size:
            own = dice[trainer.global_rank]
            torch.set_rng_state(own["cpu"])
            if "cuda" in own and torch.cuda.is_available():
                torch.cuda.set_rng_state(own["cuda"])


def _agreed(wishes: tuple[bool, ...], device: Any) -> list[bool]:
    """What any rank wishes, all do: they must save and leave after the same batch."""
    if not _several():
        return list(wishes)
    told = torch.tensor(wishes, dtype=torch.int32, device=device)
    torch.distributed.all_reduce(told, op=torch.distributed.ReduceOp.MAX)
    return [bool(one) for one in told.tolist()]


def _several() -> bool:
    return bool(torch.distributed.is_available() and torch.distributed.is_initialized())


def ckpt_path(run: Training) -> str | None:
    """For `trainer.fit(ckpt_path=…)`: the newest checkpoint, None if there is none."""
    return _in(run.files) if run.files else None


def _in(folder: str) -> str:
    return os.path.join(folder, _NAME)


class Loader(torch.utils.data.DataLoader[Any]):
    """A DataLoader that knows its place: shuffled by the seed and the epoch, split over the ranks, resumed at the
    batch."""

    def __init__(self, dataset: Any, *, seed: int = 0, shuffle: bool = True, **rest: Any) -> None:
        self._place = _Place(len(dataset), seed=seed, shuffle=shuffle)
        self._batch = 0
        # The epoch that was broken off, and the batches of it that are done.
        self._resumed = (-1, 0)
        # A generator of its own: a loader draws from the global one when it begins, and so would move it on a resume.
        super().__init__(dataset, sampler=self._place, generator=torch.Generator().manual_seed(seed), **rest)

    def __iter__(self) -> Any:
        epoch, done = self._resumed
        self._batch = done if epoch == self._place.epoch else 0
        self._place.skip = self._batch * (self.batch_size or 1)
        for batch in super().__iter__():
            self._batch += 1
            yield batch

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self._place.epoch, "batch": self._batch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        epoch, batch = state["epoch"], state["batch"]
        # Lightning begins the pass before it says which epoch it is.
        self._place.epoch, self._resumed = (epoch, (epoch, batch)) if batch < len(self) else (epoch + 1, (-1, 0))


class _Place(torch.utils.data.DistributedSampler[int]):
    """The order of an epoch. One of those that Lightning leaves alone when there are several ranks, and tells the
    epoch: at the end of one its checkpoints forget the loader's state."""

    def __init__(self, length: int, *, seed: int, shuffle: bool) -> None:
        self.length, self.seed, self.shuffle = length, seed, shuffle
        self.epoch = self.skip = 0

    def __len__(self) -> int:
        # All ranks have as many: a short one begins again at the head.
        return -(-self.length // _ranks())

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
        order = torch.randperm(self.length, generator=generator).tolist() if self.shuffle else list(range(self.length))
        ranks, rank = _ranks(), torch.distributed.get_rank() if _several() else 0
        order += order[: len(self) * ranks - self.length]
        skip, self.skip = self.skip, 0
        return iter(order[rank::ranks][skip:])


def _ranks() -> int:
    return torch.distributed.get_world_size() if _several() else 1
