"""PyTorch: killed and resumed, the weights equal those of an undisturbed training, also with two ranks."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed: make frameworks")

PLAIN = """
import torch
from outlast.trainer.integrations.torch import Loop

torch.manual_seed(3)
random.seed(3)
run = outlast.training(every_steps=5)
data = torch.utils.data.TensorDataset(torch.randn(100, 6), torch.randn(100, 1))
model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.ReLU(), torch.nn.Dropout(0.3), torch.nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=40)
loop = Loop(run, model=model, optimizer=optimizer, scheduler=scheduler)
start = loop.restore()
began(start)
batches = loop.batches(data, batch_size=16, start=start, num_workers=WORKERS)
loss = torch.zeros(())
for step in run.steps(start, total=40):
    x, y = next(batches)
    loss = torch.nn.functional.mse_loss(model(x + 0.01 * random.random()), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    loop.save_if_due(step)
    hold(run, step)
if run.stopped_early:
    run.done()
result(run, loss=loss.item(), weights=digest(*[p.detach().numpy() for p in model.parameters()]))
"""

DDP = """
import torch
import torch.distributed as dist
from outlast.trainer.integrations.torch import Loop

torch.manual_seed(3)
dist.init_process_group("gloo")
run = outlast.training(every_steps=5, replicated=True)
data = torch.utils.data.TensorDataset(torch.randn(100, 6), torch.randn(100, 1))
model = torch.nn.parallel.DistributedDataParallel(
    torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1)))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
loop = Loop(run, model=model, optimizer=optimizer)
torch.manual_seed(3 + run.environment.rank)
start = loop.restore()
if run.environment.rank == 0:
    began(start)
batches = loop.batches(data, batch_size=8, start=start)
for step in run.steps(start, total=40):
    x, y = next(batches)
    loss = torch.nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    loop.save_if_due(step)
    hold(run, step)
dist.barrier()
dist.destroy_process_group()
if run.stopped_early or run.environment.rank:
    run.done()
else:
    result(run, weights=digest(*[p.detach().numpy() for p in model.parameters()]))
"""


DRAWS = """
import numpy, torch
from outlast.trainer.integrations.torch import Loop

class Augmented(torch.utils.data.Dataset):
    def __len__(self):
        return 40
    def __getitem__(self, index):
        return torch.tensor([index, random.random(), float(torch.rand(())), numpy.random.rand()])

run = outlast.training(every_steps=5)
model = torch.nn.Linear(4, 1)
torch.nn.init.zeros_(model.weight)
loop = Loop(run, model=model)
start = loop.restore()
began(start)
batches = loop.batches(Augmented(), batch_size=8, start=start, num_workers=WORKERS)
for step in run.steps(start, total=40):
    with torch.no_grad():
        model.weight += next(batches).mean(0) * (step + 1)
    loop.save_if_due(step)
    hold(run, step)
if run.stopped_early:
    run.done()
result(run, weights=digest(model.weight.detach().numpy()))
"""


@pytest.mark.parametrize("workers", [0, 3])
def test_a_dataset_that_draws_random_numbers(workers: int, undisturbed: Any, disturbed: Any) -> None:
    expected = undisturbed(DRAWS.replace("WORKERS", "2"))
    got, _ = disturbed(DRAWS.replace("WORKERS", str(workers)), notice=11, kill=28)
    assert got == expected, "the numbers depend on seed, step and place, and not on workers or on where it resumed"


@pytest.mark.parametrize("workers", [0, 2])
def test_a_plain_loop_with_dropout_and_a_schedule(workers: int, undisturbed: Any, disturbed: Any) -> None:
    script = PLAIN.replace("WORKERS", str(workers))
    expected = undisturbed(script)
    got, trial = disturbed(script, notice=11, kill=28)
    assert trial.resumed_at[:2] == [0, 12]
    assert trial.resumed_at[2] in (15, 20, 25)
    assert got == expected


def test_two_ranks_of_ddp_with_separate_dropout(undisturbed: Any, disturbed: Any) -> None:
    launcher = [str(Path(sys.executable).parent / "torchrun"), "--standalone", "--nproc-per-node=2"]
    expected = undisturbed(DDP, launcher=launcher)
    got, trial = disturbed(DDP, notice=11, kill=28, launcher=launcher)
    assert trial.resumed_at[0] == 0
    assert trial.resumed_at[1] in (12, 13, 14)
    assert trial.resumed_at[2] in (15, 20, 25)
    assert got == expected
