"""PyTorch, plain loops: model, optimizer, scheduler, random numbers and the order of the data in one checkpoint.

The order of the data is no state: it follows from the seed and the number of the step, so that workers which read
ahead cannot get it wrong. With several ranks (DDP, `outlast.training(replicated=True)`) rank 0 saves for all; its
generators are restored exactly, those of the other ranks are seeded anew from theirs, the rank and the step.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from typing import Any

import torch

from outlast.errors import UsageError
from outlast.trainer.training import Training


class Order(torch.utils.data.Sampler[list[int]]):
    """A batch sampler without end: shuffled anew each epoch, begun at any step, split over the ranks.

    The last batch of an epoch is dropped if it is not full, so that all steps are alike.
    """

    def __init__(self, length: int, *, batch_size: int, seed: int = 0, start: int = 0, run: Training) -> None:
        self.rank, self.ranks = run.around.rank, run.around.ranks
        self.epoch_steps = length // (batch_size * self.ranks)
        if not self.epoch_steps:
            raise UsageError(f"{length} examples do not fill one batch of {batch_size} on each of {self.ranks} ranks")
        self.length, self.batch_size, self.seed, self.start = length, batch_size, seed, start

    def __iter__(self) -> Iterator[list[int]]:
        step = self.start
        while True:
            epoch, at = divmod(step, self.epoch_steps)
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
            shuffled = torch.randperm(self.length, generator=generator).tolist()
            for index in range(at, self.epoch_steps):
                first = (index * self.ranks + self.rank) * self.batch_size
                yield shuffled[first : first + self.batch_size]
            step += self.epoch_steps - at


class Loop:
    """All that a loop must not forget. Anything with `state_dict` and `load_state_dict` may be named."""

    def __init__(self, run: Training, **parts: Any) -> None:
        self.run = run
        self.parts = {name: _inside(part) for name, part in parts.items()}

    def restore(self) -> int:
        """Put the newest checkpoint into the parts; the step to begin with, 0 if there is none."""
        saved = self.run.restore()
        if saved is None:
            return 0
        if saved["parts"].keys() != self.parts.keys():
            raise UsageError(f"the checkpoint holds {sorted(saved['parts'])}, this program {sorted(self.parts)}")
        for name, part in self.parts.items():
            part.load_state_dict(saved["parts"][name])
        step: int = saved["step"]
        _set_dice(saved["dice"])
        if self.run.around.rank and self.run.replicated:
            torch.manual_seed(torch.initial_seed() + 1_000_003 * self.run.around.rank + step)
        return step

    def batches(self, dataset: Any, *, batch_size: int, start: int, seed: int = 0, **rest: Any) -> Iterator[Any]:
        """The batches of this rank from step `start` on; `rest` is what `DataLoader` takes."""
        order = Order(len(dataset), batch_size=batch_size, seed=seed, start=start, run=self.run)
        # A generator of its own: a loader draws from the global one when it begins, and so would move it on a resume.
        generator = torch.Generator().manual_seed(seed * 1_000_003 + start)
        return iter(torch.utils.data.DataLoader(dataset, batch_sampler=order, generator=generator, **rest))

    def save_if_due(self, step: int) -> bool:
        """After each step; the last save, at the notice, is made by `run.steps`."""
        return self.run.save_if_due(step, lambda: self.state(step + 1))

    def state(self, step: int) -> dict[str, Any]:
        """What a checkpoint holds after so many steps."""
        parts = {name: part.state_dict() for name, part in self.parts.items()}
        return {"step": step, "parts": parts, "dice": _dice()}


def _inside(part: Any) -> Any:
    """The model itself without the wrapper of DDP, so that it can be resumed with any number of ranks."""
    return part.module if isinstance(part, torch.nn.parallel.DistributedDataParallel) else part


def _dice() -> dict[str, Any]:
    dice: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        dice["cuda"] = torch.cuda.get_rng_state_all()
    if (numpy := sys.modules.get("numpy")) is not None:
        dice["numpy"] = numpy.random.get_state()
    return dice


def _set_dice(dice: dict[str, Any]) -> None:
    random.setstate(dice["python"])
    torch.set_rng_state(dice["torch"])
    if "cuda" in dice and torch.cuda.device_count() == len(dice["cuda"]):
        torch.cuda.set_rng_state_all(dice["cuda"])
    if "numpy" in dice:
        import numpy

        numpy.random.set_state(dice["numpy"])
