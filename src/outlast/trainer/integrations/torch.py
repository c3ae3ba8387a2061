"""PyTorch, plain loops: model, optimizer, scheduler, random numbers and the order of the data in one checkpoint.

The order of the data is not part of the state: it is derived from the seed and the step, so that workers may read
ahead. So are the random numbers that a dataset draws for an example: a worker's own generator would depend on where the
program resumed. With several ranks (DDP, `outlast.training(replicated=True)`) rank 0 saves for all, with the RNG states
of each rank; resumed with another number of ranks, the generators are seeded again.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import random
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from outlast.errors import UsageError
from outlast.trainer import files
from outlast.trainer.files import FoundCheckpoint
from outlast.trainer.integrations.sharded import Reshard, load_state, model_of, plain, state_of
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


class SamplerOrder(torch.utils.data.Sampler[list[int]]):
    """The batches of a sampler of the user, or of one that makes batches, from any step on.

    Each epoch is drawn with another seed: the global generators, `sampler.generator` and `sampler.set_epoch` get
    it. A sampler with `num_replicas` splits the examples itself, as `DistributedSampler` does.
    """

    def __init__(self, sampler: Any, *, batch_size: int, seed: int = 0, start: int = 0, run: Training) -> None:
        self.rank, self.ranks = run.environment.rank, run.environment.ranks
        # Without a batch size, the sampler makes the batches.
        self.sampler, self.batch_size, self.seed, self.start = sampler, batch_size, seed, start
        self.splits = hasattr(sampler, "num_replicas")

    def __iter__(self) -> Iterator[list[int]]:
        epoch, done = 0, 0
        batches = self._batches(0)
        if not batches:
            raise UsageError(f"the sampler does not fill one batch of {self.batch_size or 1} on each rank")
        if hasattr(self.sampler, "__len__"):
            # All epochs have the same length.
            epoch = self.start // len(batches)
            done = epoch * len(batches)
            batches = self._batches(epoch)
        while True:
            yield from batches[max(0, self.start - done) :]
            epoch, done = epoch + 1, done + len(batches)
            batches = self._batches(epoch)

    def _batches(self, epoch: int) -> list[list[int]]:
        """Return the batches of this rank in one epoch."""
        drawn = self._drawn(epoch)
        if not self.batch_size:
            return drawn if self.splits else drawn[self.rank : len(drawn) // self.ranks * self.ranks : self.ranks]
        ranks, rank = (1, 0) if self.splits else (self.ranks, self.rank)
        steps = len(drawn) // (self.batch_size * ranks)
        begins = ((step * ranks + rank) * self.batch_size for step in range(steps))
        return [drawn[begin : begin + self.batch_size] for begin in begins]

    def _drawn(self, epoch: int) -> list[Any]:
        seed = _draw_seed(f"{self.seed} epoch {epoch}")
        # A sampler that makes batches usually wraps one that draws.
        for each in (self.sampler, getattr(self.sampler, "sampler", None)):
            if isinstance(generator := getattr(each, "generator", None), torch.Generator):
                generator.manual_seed(seed)
            if callable(set_epoch := getattr(each, "set_epoch", None)):
                set_epoch(epoch)
        with _seeded(seed):
            return list(self.sampler)


class SeededOrder(torch.utils.data.Sampler[list[tuple[int, int]]]):
    """A batch sampler that adds to each index the seed for the random numbers of that example."""

    def __init__(self, order: SampleOrder | SamplerOrder) -> None:
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
        models = {name: model for name, part in self.parts.items() if (model := model_of(part, self.parts)) is not None}
        saved = self.run.restore_with(lambda found: self._load_shards(found, models) if models else self._load(found))
        if saved is None:
            return 0
        self._require_same_parts(saved)
        for name, part in self.parts.items():
            if name in models:
                load_state(part, models[name], saved["parts"][name])
            else:
                # A model copies its state; an optimizer may keep it, and must not keep memory of the checkpoint file.
                state = saved["parts"].pop(name)
                part.load_state_dict(state if isinstance(part, torch.nn.Module) else copy.deepcopy(state))
            if hasattr(part, "__iter__") and not isinstance(part, torch.nn.Module):
                # A StatefulDataLoader draws random numbers when it begins to iterate: here, before they are restored.
                part.state_dict()
        return self._restore_random(saved)

    def _require_same_parts(self, saved: dict[str, Any]) -> None:
        if saved["parts"].keys() != self.parts.keys():
            raise UsageError(
                f"the checkpoint has the parts {sorted(saved['parts'])}, but this program {sorted(self.parts)}"
            )

    def _load(self, found: FoundCheckpoint) -> dict[str, Any]:
        rank = 0 if self.run.replicated else self.run.environment.rank
        saved: dict[str, Any] = files.load(found, rank=rank, pickle=self.run.pickle, mapped=True)
        return saved

    def _load_shards(self, found: FoundCheckpoint, models: dict[str, torch.nn.Module]) -> dict[str, Any]:
        """Return the state of this rank. If a file is damaged for one rank, no rank uses this checkpoint."""
        saved: dict[str, Any] = {}
        problem = ""
        try:
            saved = self._from_shards(found, models)
        except files.BadCheckpoint as bad:
            problem = bad.message
        if problems := [each for each in every_rank(problem) if each]:
            raise files.BadCheckpoint(problems[0])
        return saved

    def _from_shards(self, found: FoundCheckpoint, models: dict[str, torch.nn.Module]) -> dict[str, Any]:
        """Return the state of this rank from the shards of all saved ranks, from its own first."""
        rank, saved_ranks = self.run.environment.rank, files.ranks_of(found)
        own = saved_ranks == self.run.environment.ranks
        first = files.load(found, rank=rank if own else 0, pickle=self.run.pickle)
        self._require_same_parts(first)
        targets = {name: state_of(self.parts[name], model) for name, model in models.items()}
        shards = {name: Reshard(target) for name, target in targets.items()}
        for name, each in shards.items():
            each.add(first["parts"][name])
        for other in range(saved_ranks):
            if all(not each.missing for each in shards.values()):
                break
            parts = files.load(found, rank=other, pickle=self.run.pickle)["parts"]
            for name, each in shards.items():
                each.add(parts[name])
        if lacking := [f"{name}.{each.missing}" for name, each in shards.items() if each.missing]:
            raise files.BadCheckpoint(f"{found.path}: its ranks do not have all of `{lacking[0]}`")
        restored = {name: each.target for name, each in shards.items()}
        return {**first, "parts": {**first["parts"], **restored}, "own": own}

    def _restore_random(self, saved: dict[str, Any]) -> int:
        step: int = saved["step"]
        rank, every = self.run.environment.rank, saved["rng"]
        if saved.get("own", True) and (not self.run.replicated or len(every) == self.run.environment.ranks):
            set_rng_state(every[rank if self.run.replicated else 0])
        else:
            set_rng_state(every[0])
            if rank:
                torch.manual_seed(torch.initial_seed() + 1_000_003 * rank + step)
        return step

    def batches(
        self,
        dataset: Any,
        *,
        batch_size: int = 0,
        start: int,
        seed: int = 0,
        sampler: Any = None,
        batch_sampler: Any = None,
        **rest: Any,
    ) -> Iterator[Any]:
        """Return the batches of this rank from step `start` on. `rest`: arguments of `DataLoader`.

        `sampler` yields examples, `batch_sampler` whole batches; without them, each epoch is shuffled.
        """
        if isinstance(dataset, torch.utils.data.IterableDataset):
            raise UsageError(
                "an IterableDataset has no order that could be continued at a step",
                hint="pass a torchdata StatefulDataLoader to Loop as a part, and iterate over it",
            )
        if bool(batch_size) == (batch_sampler is not None):
            raise UsageError("batches: pass either batch_size or batch_sampler")
        place: dict[str, Any] = {"batch_size": batch_size, "seed": seed, "start": start, "run": self.run}
        drawn = batch_sampler if batch_sampler is not None else sampler
        order = SampleOrder(len(dataset), **place) if drawn is None else SamplerOrder(drawn, **place)
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
        parts = {name: self._state_of(part) for name, part in self.parts.items()}
        return {"step": step, "parts": parts, "rng": every_rank(rng_state()) if self.run.replicated else [rng_state()]}

    def _state_of(self, part: Any) -> Any:
        model = model_of(part, self.parts)
        return part.state_dict() if model is None else plain(state_of(part, model))


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
