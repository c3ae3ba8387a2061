"""PyTorch, plain loops: model, optimizer, scheduler, random numbers and the order of the data in one checkpoint.

The order of the data is not part of the state: it is derived from the seed and the step, so that workers may read
ahead. With several ranks (DDP, `outlast.training(replicated=True)`) rank 0 saves for all, with the RNG states of each
rank; resumed with another number of ranks, the generators are seeded again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from outlast.errors import UsageError
from outlast.trainer.rng import rng_state, set_rng_state
from outlast.trainer.training import Training


class SampleOrder(torch.utils.data.Sampler[list[int]]):
    """An endless batch sampler: reshuffles each epoch, starts at any step, splits batches over the ranks.

    Drops the last batch of an epoch if it is not full, so that all steps have the same size.
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
    """The state of a training loop: named parts with `state_dict` and `load_state_dict`, and the RNG state."""

    def __init__(self, run: Training, **parts: Any) -> None:
        self.run = run
        self.parts = {name: _unwrapped(part) for name, part in parts.items()}

    def restore(self) -> int:
        """Load the newest checkpoint into the parts. Returns the first step; 0 without a checkpoint."""
        saved = self.run.restore()
        if saved is None:
            return 0
        if saved["parts"].keys() != self.parts.keys():
            raise UsageError(
                f"the checkpoint has the parts {sorted(saved['parts'])}, but this program {sorted(self.parts)}"
            )
        for name, part in self.parts.items():
            part.load_state_dict(saved["parts"][name])
        step: int = saved["step"]
        rank, every = self.run.around.rank, saved["rng"]
        if not self.run.replicated or len(every) == self.run.around.ranks:
            set_rng_state(every[rank if self.run.replicated else 0])
        else:
            set_rng_state(every[0])
            if rank:
                torch.manual_seed(torch.initial_seed() + 1_000_003 * rank + step)
        return step

    def batches(self, dataset: Any, *, batch_size: int, start: int, seed: int = 0, **rest: Any) -> Iterator[Any]:
        """Return the batches of this rank from step `start` on. `rest`: arguments of `DataLoader`."""
        order = SampleOrder(len(dataset), batch_size=batch_size, seed=seed, start=start, run=self.run)
        # A separate generator: a loader draws from the global one when it starts, which would change it on a resume.
        generator = torch.Generator().manual_seed(seed * 1_000_003 + start)
        return iter(torch.utils.data.DataLoader(dataset, batch_sampler=order, generator=generator, **rest))

    def save_if_due(self, step: int) -> bool:
        """Save after a step if a save is due; `run.steps` makes the last save on a notice."""
        return self.run.save_if_due(step, lambda: self.state(step + 1))

    def state(self, step: int) -> dict[str, Any]:
        """Return the state after `step` steps. If replicated, all ranks must call it."""
        parts = {name: part.state_dict() for name, part in self.parts.items()}
        return {"step": step, "parts": parts, "rng": every_rank(rng_state()) if self.run.replicated else [rng_state()]}


def _unwrapped(part: Any) -> Any:
    """Return the model without the DDP wrapper, so that it can be resumed with any number of ranks."""
    return part.module if isinstance(part, torch.nn.parallel.DistributedDataParallel) else part


def every_rank(mine: Any) -> list[Any]:
    """Return the value of each rank, by rank."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return [mine]
    every: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(every, mine)
    return every
