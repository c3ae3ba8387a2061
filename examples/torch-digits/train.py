"""A small convolutional network that reads digits.

The checkpoint contains the state of dropout, momentum, schedule and data order, so a preempted training ends with the
weights of an undisturbed one.
"""

import os

import torch
from digits import digits
from torch import nn

import outlast
from outlast.trainer.integrations.torch import Loop


def network():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.2), nn.Linear(16 * 3 * 3, 10),
    )  # fmt: skip


@outlast.trainer
def train(run, *, lr: float = 0.05, batch_size: int = 32, pictures: int = 4000, seed: int = 7):
    """Train a network that reads digits.

    lr: initial learning rate
    batch_size: images per step
    pictures: number of training images
    seed: random seed of the images, their order and the initial weights
    """
    torch.manual_seed(seed)
    torch.set_num_threads(1)  # more threads would add in another order
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=run.train_steps or 1000)
    loop = Loop(run, model=model, optimizer=optimizer, schedule=schedule)
    start = loop.restore()
    batches = loop.batches(digits(pictures, seed=seed), batch_size=batch_size, start=start, seed=seed)
    loss = torch.zeros(())
    for step in run.steps(start):
        images, labels = next(batches)
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        loop.save_if_due(step)
        run.log(step, loss=loss.item())
        if (step + 1) % 50 == 0:
            print(f"step {step + 1}/{run.train_steps or '?'}  loss {loss.item():.4f}", flush=True)
    if not run.stopped_early:
        torch.save(model.state_dict(), os.path.join(run.outputs, "model.pt"))
    return {"loss": loss.item()}


@train.evaluate
def score(run, state, *, batch_size, seed):
    model = network()
    model.load_state_dict(state["parts"]["model"])
    model.eval()
    loader = torch.utils.data.DataLoader(digits(2000, seed=seed + 1), batch_size=batch_size)
    hits = count = 0
    with torch.no_grad():
        for images, labels in run.eval_batches(loader):
            hits += int((model(images).argmax(1) == labels).sum())
            count += len(labels)
    return {"accuracy": hits / count}


if __name__ == "__main__":
    train()
