"""Data-parallel training on several machines with PyTorch alone: DDP, started by `torchrun`.

Rank 0 saves for all. The batches depend on the step and the rank only, so a preempted training ends with the weights of
an undisturbed one.
"""

import argparse
import os
import signal

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

stopping = False


def on_sigterm(_number, _frame):
    global stopping
    stopping = True


def any_rank_stops():
    """Return whether a rank has received SIGTERM. All ranks get the same answer, and so stop after the same step."""
    flag = torch.tensor(float(stopping))
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return bool(flag.item())


def batch_of(step, rank, size):
    """Points in two interleaved spirals, and the spiral of each."""
    dice = torch.Generator().manual_seed(1000 * step + rank)
    turn = torch.rand(size, generator=dice) * 3 + 0.5
    label = torch.randint(0, 2, (size,), generator=dice)
    angle = 2.5 * turn + label * torch.pi
    points = torch.stack([turn * angle.cos(), turn * angle.sin()], dim=1)
    return points + 0.05 * torch.randn(size, 2, generator=dice), label


def save(folder, step, model, optimizer):
    if dist.get_rank() != 0:
        return
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, f"step-{step:06d}.pt")
    state = {"step": step, "model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, path + ".tmp")
    os.replace(path + ".tmp", path)
    for old in sorted(name for name in os.listdir(folder) if name.endswith(".pt"))[:-2]:
        os.unlink(os.path.join(folder, old))


def load(folder, model, optimizer):
    saved = sorted(name for name in os.listdir(folder) if name.endswith(".pt")) if os.path.isdir(folder) else []
    if not saved:
        return 0
    state = torch.load(os.path.join(folder, saved[-1]))
    model.module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["step"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--save-every", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=64)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, on_sigterm)
    torch.set_num_threads(1)
    torch.manual_seed(7)
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    first = load("checkpoints", model, optimizer)
    if rank == 0 and first:
        print(f"resumed at step {first}", flush=True)
    for step in range(first, options.steps):
        points, labels = batch_of(step, rank, options.batch_size)
        loss = nn.functional.cross_entropy(model(points), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        done, stop = step + 1, any_rank_stops()
        if stop or done % options.save_every == 0 or done == options.steps:
            save("checkpoints", done, model, optimizer)
        if rank == 0 and done % 50 == 0:
            print(f"step {done}/{options.steps}  loss {loss.item():.4f}", flush=True)
        if stop and done < options.steps:
            raise SystemExit(143)
    if rank == 0:
        os.makedirs("outputs", exist_ok=True)
        torch.save(model.module.state_dict(), os.path.join("outputs", "model.pt"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
