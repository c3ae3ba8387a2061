"""The output and files of fastai's `fit_one_cycle` with `SaveModelCallback(every_epoch=True)` and `start_epoch`."""

import argparse
import glob
import os
import time

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--resume", action="store_true")
args = parser.parse_args()
epochs = 12
torch.manual_seed(0)
x = torch.randn(320, 16)
y = (x[:, 0] > 0).long()
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
os.makedirs("models", exist_ok=True)
start_epoch = 0
saved = sorted(glob.glob("models/model_*.pth"), key=os.path.getmtime)
if args.resume and saved:
    state = torch.load(saved[-1])
    model.load_state_dict(state["model"])
    opt.load_state_dict(state["opt"])
    start_epoch = int(saved[-1].removesuffix(".pth").rpartition("_")[2]) + 1
print("epoch     train_loss  valid_loss  accuracy  time    ")
for epoch in range(start_epoch, epochs):
    total = 0.0
    for batch in torch.randperm(320, generator=torch.Generator().manual_seed(epoch)).split(16):
        loss = torch.nn.functional.cross_entropy(model(x[batch]), y[batch])
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item()
        time.sleep(0.06)
    acc = (model(x).argmax(1) == y).float().mean().item()
    valid = torch.nn.functional.cross_entropy(model(x), y).item()
    print(f"{epoch:<10}{total / 20:<12.6f}{valid:<12.6f}{acc:<10.6f}{'00:01':<8}")
    torch.save({"model": model.state_dict(), "opt": opt.state_dict()}, f"models/model_{epoch}.pth")
