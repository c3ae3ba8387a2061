"""torchrun with two ranks: FSDP2, and distributed checkpoints in folders `step-N`."""

import argparse
import glob
import os
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

parser = argparse.ArgumentParser()
parser.add_argument("--resume", action="store_true")
parser.add_argument("--steps", type=int, default=150)
args = parser.parse_args()

dist.init_process_group("gloo")
torch.set_num_threads(1)
rank = dist.get_rank()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
fully_shard(model, mesh=dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)


class AppState:
    def state_dict(self):
        weights, optim = get_state_dict(model, optimizer)
        return {"model": weights, "optim": optim, "step": torch.tensor(step)}

    def load_state_dict(self, state):
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"])


step = 0
saved = [path for path in glob.glob("checkpoints/step-*") if os.path.exists(f"{path}/.metadata")]
if args.resume and saved:
    newest = max(saved, key=lambda path: int(path.rpartition("-")[2]))
    app = AppState()
    state = app.state_dict()
    dcp.load(state, checkpoint_id=newest)
    app.load_state_dict(state)
    step = int(state["step"])
x = torch.randn(640, 16)
y = (x[:, 0] > 0).long()
while step < args.steps:
    batch = torch.randint(640, (16,), generator=torch.Generator().manual_seed(step * 2 + rank))
    loss = torch.nn.functional.cross_entropy(model(x[batch]), y[batch])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    step += 1
    time.sleep(0.08)
    if step % 10 == 0:
        dcp.save(AppState().state_dict(), checkpoint_id=f"checkpoints/step-{step}")
    if step % 5 == 0:
        print(
            f"[rank{rank}] {time.strftime('%Y-%m-%d %H:%M:%S')} step: {step:2d}  loss: {loss.item():7.4f}  tps: 1,234"
        )
dist.destroy_process_group()
