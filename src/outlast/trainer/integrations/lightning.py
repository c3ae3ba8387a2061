"""Lightning: a callback that saves Lightning's own checkpoint atomically, and stops on a notice.

By itself Lightning exits with 0 on SIGTERM and saves nothing. To resume in the middle of an epoch with the same data,
use `Loader`: Lightning stores its position in the checkpoint. Call `run.done()` right after `fit`. With several ranks
(DDP) rank 0 writes for all. For sharded strategies use Lightning's `ModelCheckpoint` with the checkpoint folder.
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


class SaveAndStop(lightning.Callback):
    """Saves after a batch if a save is due; on a notice, saves and stops the training. All ranks agree."""

    def __init__(self, run: Training) -> None:
        self.run = run
        self._seen = 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        # Lightning broadcasts from inside its handler of SIGTERM: with several ranks that collides with another
        # collective operation, and all ranks deadlock. Lightning restores the old handler at the end.
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, lambda *_: self.run.request_stop())

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        # The last batch is saved at the end of its epoch: before, Lightning would miscount the epoch's batches.
        if batch_idx + 1 < trainer.num_training_batches:
            self._after(trainer, pl_module.device)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self._after(trainer, pl_module.device)

    def _after(self, trainer: Any, device: Any) -> None:
        step = trainer.global_step
        stop, due = _any_rank((self.run.stop_requested, self.run._due(step - 1)), device)
        # With accumulated gradients, several batches are one step: save after the first.
        if step != self._seen and (stop or due):
            self._seen = step
            if trainer.is_global_zero:
                self.run.save(step, into=lambda folder: trainer.save_checkpoint(_in(folder)))
            else:
                trainer.save_checkpoint(_NAME)  # all ranks must call it; only rank 0 writes
        if stop:
            self.run.stopped_early = trainer.should_stop = True

    def state_dict(self) -> dict[str, Any]:
        """Return the RNG state of every rank, which Lightning does not save, so that dropout continues."""
        rng = {"cpu": torch.get_rng_state()}
        if torch.cuda.is_available():
            rng["cuda"] = torch.cuda.get_rng_state()
        return {"rng": every_rank(rng)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._rng = state_dict["rng"]

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        # Not earlier: Lightning draws random numbers before its first batch.
        rng = self.__dict__.pop("_rng", None)
        if rng is not None and len(rng) == trainer.world_size:
            own = rng[trainer.global_rank]
            torch.set_rng_state(own["cpu"])
            if "cuda" in own and torch.cuda.is_available():
                torch.cuda.set_rng_state(own["cuda"])


def _any_rank(flags: tuple[bool, ...], device: Any) -> list[bool]:
    """Return each flag that is set on any rank: all ranks must save and stop after the same batch."""
    if not _several():
        return list(flags)
    reduced = torch.tensor(flags, dtype=torch.int32, device=device)
    torch.distributed.all_reduce(reduced, op=torch.distributed.ReduceOp.MAX)
    return [bool(one) for one in reduced.tolist()]


def _several() -> bool:
    return bool(torch.distributed.is_available() and torch.distributed.is_initialized())


def ckpt_path(run: Training) -> str | None:
    """Return the newest checkpoint for `trainer.fit(ckpt_path=…)`; None without one."""
    return _in(run.files) if run.files else None


def _in(folder: str) -> str:
    return os.path.join(folder, _NAME)


class Loader(torch.utils.data.DataLoader[Any]):
    """A DataLoader that resumes at the batch: shuffled by the seed and the epoch, split over the ranks."""

    def __init__(self, dataset: Any, *, seed: int = 0, shuffle: bool = True, **rest: Any) -> None:
        self._epoch_order = _EpochOrder(len(dataset), seed=seed, shuffle=shuffle)
        self._batch = 0
        # The interrupted epoch, and the number of its finished batches.
        self._resumed = (-1, 0)
        # A separate generator: a loader draws from the global one when it starts, which would change it on a resume.
        super().__init__(dataset, sampler=self._epoch_order, generator=torch.Generator().manual_seed(seed), **rest)

    def __iter__(self) -> Any:
        epoch, done = self._resumed
        self._batch = done if epoch == self._epoch_order.epoch else 0
        self._epoch_order.skip = self._batch * (self.batch_size or 1)
        for batch in super().__iter__():
            self._batch += 1
            yield batch

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self._epoch_order.epoch, "batch": self._batch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        epoch, batch = state["epoch"], state["batch"]
        # Lightning starts the iteration before it sets the epoch.
        self._epoch_order.epoch, self._resumed = (epoch, (epoch, batch)) if batch < len(self) else (epoch + 1, (-1, 0))


class _EpochOrder(torch.utils.data.DistributedSampler[int]):
    """The order of an epoch.

    A DistributedSampler, which Lightning does not replace with several ranks, and whose epoch it sets: at the end of an
    epoch, its checkpoints do not contain the loader's state.
    """

    def __init__(self, length: int, *, seed: int, shuffle: bool) -> None:
        self.length, self.seed, self.shuffle = length, seed, shuffle
        self.epoch = self.skip = 0

    def __len__(self) -> int:
        # All ranks have the same number: a shorter one repeats the first.
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
