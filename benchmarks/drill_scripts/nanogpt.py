"""nanoGPT's `train.py`: `out/ckpt.pt`, `--init_from=resume`, `iter 10: loss …, time …ms, mfu …%`."""

import argparse
import math
import os
import time

import torch
from torch.nn import functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--init_from", default="scratch")
parser.add_argument("--max_iters", type=int, default=200)
parser.add_argument("--eval_interval", type=int, default=10)
args = parser.parse_args()
out_dir, learning_rate, block_size, batch_size = "out", 1e-2, 8, 8

torch.manual_seed(1337)
os.makedirs(out_dir, exist_ok=True)
data = torch.arange(2000) % 17


def get_batch():
    ix = torch.randint(len(data) - block_size - 1, (batch_size,))
    return torch.stack([data[i : i + block_size] for i in ix]), torch.stack([data[i + block_size] for i in ix])


class GPT(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = torch.nn.Embedding(17, 16)
        self.head = torch.nn.Linear(16 * block_size, 17)

    def forward(self, x, y):
        return F.cross_entropy(self.head(self.wte(x).flatten(1)), y)


model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
iter_num, best_val_loss = 0, 1e9
if args.init_from == "scratch":
    print("Initializing a new model from scratch")
else:
    print(f"Resuming training from {out_dir}")
    checkpoint = torch.load(os.path.join(out_dir, "ckpt.pt"), map_location="cpu")
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    iter_num = checkpoint["iter_num"]
    best_val_loss = checkpoint["best_val_loss"]
print(f"number of parameters: {sum(p.numel() for p in model.parameters()) / 1e6:.2f}M")


@torch.no_grad()
def estimate_loss():
    return {split: torch.stack([model(*get_batch()) for _ in range(10)]).mean() for split in ("train", "val")}


def get_lr(it):
    return learning_rate * 0.5 * (1.0 + math.cos(math.pi * it / args.max_iters))


t0 = time.time()
running_mfu = -1.0
while True:
    for param_group in optimizer.param_groups:
        param_group["lr"] = get_lr(iter_num)
    if iter_num % args.eval_interval == 0:
        losses = estimate_loss()
        print(f"step {iter_num}: train loss {losses['train']:.4f}, val loss {losses['val']:.4f}")
        if losses["val"] < best_val_loss or iter_num:
            best_val_loss = min(losses["val"], best_val_loss)
            if iter_num > 0:
                checkpoint = {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "iter_num": iter_num,
                    "best_val_loss": best_val_loss,
                }
                print(f"saving checkpoint to {out_dir}")
                torch.save(checkpoint, os.path.join(out_dir, "ckpt.pt"))
    loss = model(*get_batch())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    time.sleep(0.07)
    t1 = time.time()
    dt, t0 = t1 - t0, t1
    running_mfu = 0.9 * running_mfu + 0.1 * 0.03 / dt
    print(f"iter {iter_num}: loss {loss.item():.4f}, time {dt * 1000:.2f}ms, mfu {running_mfu * 100:.2f}%")
    iter_num += 1
    if iter_num > args.max_iters:
        break
