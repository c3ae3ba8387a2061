"""PyTorch's `examples/word_language_model/main.py`: `| epoch   1 |    20/   80 batches | …`; with `--resume`."""

import argparse
import math
import os
import time

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=12)
parser.add_argument("--log-interval", type=int, default=5)
parser.add_argument("--save", default="model.pt")
parser.add_argument("--resume", action="store_true")
args = parser.parse_args()
torch.manual_seed(1111)
x = torch.randn(320, 16)
y = (x[:, 0] > 0).long()
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 2))
lr, best_val_loss, first = 2.0, None, 1
if args.resume and os.path.exists(args.save):
    with open(args.save, "rb") as f:
        state = torch.load(f)
    model.load_state_dict(state["model"])
    lr, best_val_loss, first = state["lr"], state["best"], state["epoch"] + 1
for epoch in range(first, args.epochs + 1):
    epoch_start_time = start_time = time.time()
    total_loss = 0.0
    for batch in range(20):
        loss = torch.nn.functional.cross_entropy(model(x[batch * 16 :][:16]), y[batch * 16 :][:16])
        model.zero_grad()
        loss.backward()
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-lr / 20)
        total_loss += loss.item()
        time.sleep(0.06)
        if batch % args.log_interval == 0 and batch > 0:
            cur_loss, elapsed = total_loss / args.log_interval, time.time() - start_time
            print(
                f"| epoch {epoch:3d} | {batch:5d}/{20:5d} batches | lr {lr:02.2f} | "
                f"ms/batch {elapsed * 1000 / args.log_interval:5.2f} | loss {cur_loss:5.2f} | "
                f"ppl {math.exp(cur_loss):8.2f}"
            )
            total_loss, start_time = 0.0, time.time()
    val_loss = torch.nn.functional.cross_entropy(model(x), y).item()
    print("-" * 89)
    print(
        f"| end of epoch {epoch:3d} | time: {time.time() - epoch_start_time:5.2f}s | "
        f"valid loss {val_loss:5.2f} | valid ppl {math.exp(val_loss):8.2f}"
    )
    print("-" * 89)
    best_val_loss = min(val_loss, best_val_loss or val_loss)
    with open(args.save, "wb") as f:
        torch.save({"model": model.state_dict(), "lr": lr, "best": best_val_loss, "epoch": epoch}, f)
