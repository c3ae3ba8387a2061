"""PyTorch, plain loops: model, optimizer, scheduler, random numbers and the order of the data in one checkpoint.

The order of the data is not part of the state: it is derived from the seed and the step, so that workers may read
ahead. So are the random numbers that a dataset draws for an example: a worker's own generator would depend on where the
program resumed. With several ranks (DDP, `outlast.training(replicated=True)`) rank 0 saves for all, with the RNG states
of each rank; resumed with another number of ranks, the generators are seeded again.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import sys
from collections.abc import Iterator, Sequence
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
        self.rank, self.ranks = run.environment.rank, run.environment.ranks
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


class SeededOrder(torch.utils.data.Sampler[list[tuple[int, int]]]):
    """A batch sampler that adds to each index the seed for the random numbers of that example."""

    def __init__(self, order: SampleOrder) -> None:
        self.order = order

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        for step, batch in enumerate(self.order, self.order.start):
            place = f"{self.order.seed} {step} {self.order.rank}"
            yield [(index, _draw_seed(f"{place} {at}")) for at, index in enumerate(batch)]


def _draw_seed(place: str) -> int:
    return int.from_bytes(hashlib.blake2b(place.encode(), digest_size=8).digest(), "big") >> 1


class SeededDataset(torch.utils.data.Dataset[Any]):
    """A dataset whose examples draw the same random numbers in any worker. Items are pairs of index and seed."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __getitem__(self, item: tuple[int, int]) -> Any:
        with _seeded(item[1]):
            return self.dataset[item[0]]

    def __getattr__(self, name: str) -> Any:
        """Return attributes of the dataset, which a `worker_init_fn` may read."""
        if name == "dataset" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.dataset, name)


class SeededBatches(SeededDataset):
    """The same for a dataset that reads a whole batch at once."""

    def __getitems__(self, items: Sequence[tuple[int, int]]) -> Any:
        with _seeded(items[0][1]):
            return self.dataset.__getitems__([index for index, _ in items])


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed the generators. Outside of a worker, restore them on exit: the model draws from them, too."""
    numpy = sys.modules.get("numpy")
    in_worker = torch.utils.data.get_worker_info() is not None
    before = None if in_worker else (random.getstate(), torch.get_rng_state(), numpy and numpy.random.get_state())
    random.seed(seed)
    # Not `torch.manual_seed`, which starts CUDA in the worker.
    torch.default_generator.manual_seed(seed)
    if numpy is not None:
        numpy.random.seed(seed % 2**32)
    try:
        yield
    finally:
        if before is not None:
            random.setstate(before[0])
            torch.set_rng_state(before[1])
            if numpy is not None:
                numpy.random.set_state(before[2])


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
            if hasattr(part, "__iter__") and not isinstance(part, torch.nn.Module):
                # A StatefulDataLoader draws random numbers when it begins to iterate: here, before they are restored.
                part.state_dict()
        step: int = saved["step"]
        rank, every = self.run.environment.rank, saved["rng"]
        if not self.run.replicated or len(every) == self.run.environment.ranks:
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
        seeded = SeededBatches(dataset) if hasattr(dataset, "__getitems__") else SeededDataset(dataset)
        loader = torch.utils.data.DataLoader(seeded, batch_sampler=SeededOrder(order), generator=generator, **rest)
        return iter(loader)

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
