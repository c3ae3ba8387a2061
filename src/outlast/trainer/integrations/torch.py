"""PyTorch, plain loops: model, optimizer, scheduler, random numbers and the order of the data in one checkpoint.

The order of the data is no state: it follows from the seed and the number of the step, so that workers which read
ahead cannot get it wrong. With several ranks (DDP, `outlast.training(replicated=True)`) rank 0 saves for all, the
generators of each among it; resumed with another number of ranks they are seeded anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from outlast.errors import UsageError
from outlast.trainer.rng import rng_state, set_rng_state
from outlast.trainer.training import Training


class SampleOrder(torch.utils.data.Sampler[list[int]]):
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
        rank, every = self.run.around.rank, saved["dice"]
        if not self.run.replicated or len(every) == self.run.around.ranks:
            set_rng_state(every[rank if self.run.replicated else 0])
        else:
            set_rng_state(every[0])
            if rank:
                torch.manual_seed(torch.initial_seed() + 1_000_003 * rank + step)
        return step

    def batches(self, dataset: Any, *, batch_size: int, start: int, seed: int = 0, **rest: Any) -> Iterator[Any]:
        """The batches of this rank from step `start` on; `rest` is what `DataLoader` takes."""
        order = SampleOrder(len(dataset), batch_size=batch_size, seed=seed, start=start, run=self.run)
        # A generator of its own: a loader draws from the global one when it begins, and so would move it on a resume.
        generator = torch.Generator().manual_seed(seed * 1_000_003 + start)
        return iter(torch.utils.data.DataLoader(dataset, batch_sampler=order, generator=generator, **rest))

    def save_if_due(self, step: int) -> bool:
        """After each step; the last save, at the notice, is made by `run.steps`."""
        return self.run.save_if_due(step, lambda: self.state(step + 1))

    def state(self, step: int) -> dict[str, Any]:
        """What a checkpoint holds after so many steps. Replicated: all ranks must ask, as they do after a step."""
        parts = {name: part.state_dict() for name, part in self.parts.items()}
        return {"step": step, "parts": parts, "dice": every_rank(rng_state()) if self.run.replicated else [rng_state()]}


def _inside(part: Any) -> Any:
    """The model itself without the wrapper of DDP, so that it can be resumed with any number of ranks."""
    return part.module if isinstance(part, torch.nn.parallel.DistributedDataParallel) else part


def every_rank(mine: Any) -> list[Any]:
    """What each rank has, in their order."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return [mine]
    every: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(every, mine)
    return every
