"""Sharded training on several machines with PyTorch alone: FSDP, and checkpoints of `torch.distributed.checkpoint`.

Each rank holds a part of the weights and saves that part. The batches depend on the step and the rank only, so a
preempted training ends with the weights of an undisturbed one.
"""

import argparse
import os
import shutil
import signal

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
stopping = False


def on_sigterm(_number, _frame):
    global stopping
    stopping = True


def any_rank_stops():
    """Return whether a rank has received SIGTERM. All ranks get the same answer, and so stop after the same step."""
    flag = torch.tensor(float(stopping), device=DEVICE)
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return bool(flag.item())


def batch_of(step, rank, size):
    """Sequences of numbers, and the sum of each."""
    dice = torch.Generator().manual_seed(1000 * step + rank)
    numbers = torch.randn(size, 16, generator=dice)
    return numbers.to(DEVICE), numbers.sum(dim=1, keepdim=True).to(DEVICE)


def steps_in(folder):
    """Return the steps of the saved checkpoints, oldest first."""
    names = os.listdir(folder) if os.path.isdir(folder) else []
    return sorted(int(name.removeprefix("step-")) for name in names if name.startswith("step-"))


def save(folder, step, model, optimizer):
    """Save this rank's part. The step in the name shows outlast which files belong together."""
    weights, moments = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=f"{folder}/step-{step:06d}")
    if int(os.environ["LOCAL_RANK"]) == 0:
        for old in steps_in(folder)[:-2]:
            shutil.rmtree(f"{folder}/step-{old:06d}", ignore_errors=True)


def load(folder, model, optimizer):
    saved = steps_in(folder)
    if not saved:
        return 0
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments}
    dcp.load(state, checkpoint_id=f"{folder}/step-{saved[-1]:06d}")
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    return saved[-1]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--save-every", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=64)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, on_sigterm)
    torch.set_num_threads(1)
    torch.manual_seed(7)
    dist.init_process_group("nccl" if DEVICE == "cuda" else "gloo")
    rank, mesh = dist.get_rank(), init_device_mesh(DEVICE, (dist.get_world_size(),))
    model = nn.Sequential(nn.Linear(16, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1)).to(DEVICE)
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    first = load("checkpoints", model, optimizer)
    if rank == 0 and first:
        print(f"resumed at step {first}", flush=True)
    for step in range(first, options.steps):
        numbers, sums = batch_of(step, rank, options.batch_size)
        loss = nn.functional.mse_loss(model(numbers), sums)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        done, stop = step + 1, any_rank_stops()
        if stop or done % options.save_every == 0 or done == options.steps:
            save("checkpoints", done, model, optimizer)
        if rank == 0 and done % 50 == 0:
            print(f"step {done}/{options.steps}  loss {loss.item():.5f}", flush=True)
        if stop and done < options.steps:
            raise SystemExit(143)
    weights = {name: value.full_tensor() for name, value in model.state_dict().items()}
    if rank == 0:
        os.makedirs("outputs", exist_ok=True)
        torch.save(weights, os.path.join("outputs", "model.pt"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
