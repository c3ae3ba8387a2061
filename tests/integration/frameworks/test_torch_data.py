"""PyTorch: samplers, stateful loaders and sharded states continue where they were, with any number of ranks."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: make frameworks")

import outlast  # noqa: E402
from outlast.errors import UsageError  # noqa: E402
from outlast.trainer.integrations.torch import Loop  # noqa: E402

EXAMPLES, STEPS = 41, 25


class Drawing(torch.utils.data.Dataset):  # type: ignore[misc, name-defined]
    def __len__(self) -> int:
        return EXAMPLES

    def __getitem__(self, index: int) -> Any:
        return index + torch.rand(()).item()


class Buckets(torch.utils.data.Sampler):  # type: ignore[misc, name-defined]
    """A sampler without a length that makes batches and draws from Python's generator."""

    def __iter__(self) -> Iterator[list[int]]:
        order = list(range(EXAMPLES))
        random.shuffle(order)
        yield from (order[at : at + 4] for at in range(0, EXAMPLES, 4))


DATA = torch.utils.data
SAMPLERS: dict[str, Callable[[], dict[str, Any]]] = {
    "random": lambda: {"batch_size": 4, "sampler": DATA.RandomSampler(Drawing())},
    "own generator": lambda: {
        "batch_size": 4,
        "sampler": DATA.RandomSampler(Drawing(), generator=torch.Generator()),
    },
    "weighted": lambda: {"batch_size": 4, "sampler": DATA.WeightedRandomSampler(torch.ones(EXAMPLES), 30)},
    "distributed": lambda: {"batch_size": 4, "sampler": DATA.DistributedSampler(Drawing(), 2, 1)},
    "batches": lambda: {"batch_sampler": DATA.BatchSampler(DATA.RandomSampler(Drawing()), 5, drop_last=False)},
    "batches without a length": lambda: {"batch_sampler": Buckets()},
}


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[Loop]:
    run = outlast.training(folder=str(tmp_path))
    yield Loop(run)
    run.close()


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_batches_of_a_sampler_continue_at_any_step(name: str, loop: Loop) -> None:
    whole = list(itertools.islice(loop.batches(Drawing(), start=0, **SAMPLERS[name]()), STEPS))
    for start in (3, 10, 13):
        torch.manual_seed(start)
        rest = list(itertools.islice(loop.batches(Drawing(), start=start, **SAMPLERS[name]()), STEPS - start))
        assert all(torch.equal(one, other) for one, other in zip(whole[start:], rest, strict=True))


def test_every_epoch_of_a_sampler_has_another_order(loop: Loop) -> None:
    batches = loop.batches(list(range(40)), start=0, batch_size=40, sampler=DATA.RandomSampler(range(40)))
    one, other = next(batches), next(batches)
    assert sorted(one.tolist()) == sorted(other.tolist()) == list(range(40))
    assert one.tolist() != other.tolist()


def test_batches_that_cannot_be_continued_are_refused(loop: Loop) -> None:
    class Stream(torch.utils.data.IterableDataset):  # type: ignore[misc, name-defined]
        def __iter__(self) -> Iterator[int]:
            return iter(range(9))

    with pytest.raises(UsageError, match="IterableDataset"):
        loop.batches(Stream(), start=0, batch_size=2)
    with pytest.raises(UsageError, match="either batch_size or batch_sampler"):
        loop.batches(Drawing(), start=0)
    with pytest.raises(UsageError, match="does not fill one batch"):
        next(loop.batches(Drawing(), start=0, batch_size=99, sampler=DATA.RandomSampler(Drawing())))


def stateful(folder: Path, *, until: int, seed: int, workers: int) -> list[list[float]]:
    """Return the batches and a random number of each step, from where the last call ended."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    torch.manual_seed(seed)
    run = outlast.training(folder=str(folder))
    loader = StatefulDataLoader(range(40), batch_size=4, shuffle=True, num_workers=workers)
    loop = Loop(run, loader=loader)
    start, found = loop.restore(), []
    batches = itertools.chain.from_iterable(itertools.repeat(loader))
    for _, batch in zip(range(start, until), batches, strict=False):
        found.append([*batch.tolist(), torch.rand(()).item()])
    run.save(until, loop.state(until), wait=True)
    run.close()
    return found


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("stop", [3, 10, 13])
def test_a_stateful_loader_continues_with_its_order_and_its_numbers(tmp_path: Path, stop: int, workers: int) -> None:
    pytest.importorskip("torchdata", reason="torchdata is not installed")
    whole = stateful(tmp_path / "whole", until=STEPS, seed=1, workers=workers)
    first = stateful(tmp_path / "parts", until=stop, seed=1, workers=workers)
    assert first + stateful(tmp_path / "parts", until=STEPS, seed=2, workers=workers) == whole


SHARDED = """
import sys
import outlast, torch
import torch.distributed as dist
from outlast.trainer.integrations.torch import Loop
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

folder, stop, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(seed)
model = torch.nn.Sequential(torch.nn.Linear(6, 17), torch.nn.ReLU(), torch.nn.Linear(17, 1))
mesh = init_device_mesh("cpu", (ranks,))
fully_shard(model[0], mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
run = outlast.training(folder=folder)
loop = Loop(run, model=model, optimizer=optimizer)
for step in range(loop.restore(), stop):
    x = torch.randn(12, 6, generator=torch.Generator().manual_seed(step)).chunk(ranks)[rank]
    loss = torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
run.save(stop, loop.state(stop), wait=True)
weights = [float(p.full_tensor().double().sum()) for p in model.parameters()]
if rank == 0:
    print("weights", *(f"{weight:.5f}" for weight in weights), flush=True)
dist.barrier()
run.close()
dist.destroy_process_group()
"""


def sharded(script: Path, folder: Path, *, ranks: int, stop: int, seed: int) -> str:
    launcher = str(Path(sys.executable).parent / "torchrun")
    argv = [launcher, "--standalone", f"--nproc-per-node={ranks}", str(script), str(folder), str(stop), str(seed)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=environment)
    lines = [line for line in done.stdout.splitlines() if line.startswith("weights")]
    assert lines, done.stderr
    return lines[0]


def test_sharded_states_are_restored_with_any_number_of_ranks(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SHARDED)
    expected = sharded(script, tmp_path / "whole", ranks=2, stop=12, seed=1)
    sharded(script, tmp_path / "saved", ranks=2, stop=6, seed=1)
    for ranks in (1, 2, 3):
        shutil.copytree(tmp_path / "saved", tmp_path / f"with-{ranks}")
        assert sharded(script, tmp_path / f"with-{ranks}", ranks=ranks, stop=12, seed=7) == expected
