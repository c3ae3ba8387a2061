"""The training loop and the output of timm's `train.py`, with `--resume`."""

import argparse
import csv
import glob
import logging
import os
import time
from collections import OrderedDict

import torch

logging.basicConfig(level=logging.INFO, format="%(message)s")
_logger = logging.getLogger("train")


class AverageMeter:
    def __init__(self):
        self.val = self.avg = self.sum = self.count = 0

    def update(self, val, n=1):
        self.val = val
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count


parser = argparse.ArgumentParser()
parser.add_argument("--resume", default="")
parser.add_argument("--output", default="output")
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--log-interval", type=int, default=5)
args = parser.parse_args()

torch.manual_seed(42)
x = torch.randn(320, 16)
y = (x[:, 0] > 0).long()
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=2e-5)
_logger.info(f"Model resnet_tiny created, param count:{sum(m.numel() for m in model.parameters())}")
start_epoch = 0
if args.resume:
    checkpoint = torch.load(args.resume, map_location="cpu", weights_only=False)
    _logger.info("Restoring model state from checkpoint...")
    model.load_state_dict(checkpoint["state_dict"])
    _logger.info("Restoring optimizer state from checkpoint...")
    optimizer.load_state_dict(checkpoint["optimizer"])
    start_epoch = checkpoint["epoch"] + 1
    _logger.info("Loaded checkpoint '{}' (epoch {})".format(args.resume, checkpoint["epoch"]))
os.makedirs(args.output, exist_ok=True)
updates = 20
_logger.info(f"Scheduled epochs: {args.epochs} (epochs + cooldown_epochs). Warmup within epochs when...")
best = 0.0
for epoch in range(start_epoch, args.epochs):
    order = torch.randperm(320, generator=torch.Generator().manual_seed(epoch))
    losses, update_time = AverageMeter(), AverageMeter()
    end = time.time()
    for update_idx in range(updates):
        batch = order[update_idx * 16 : update_idx * 16 + 16]
        loss = torch.nn.functional.cross_entropy(model(x[batch]), y[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.07)
        losses.update(loss.item(), 16)
        update_time.update(time.time() - end)
        if update_idx % args.log_interval == 0:
            _logger.info(
                f"Train: {epoch} [{update_idx:>4d}/{updates} ({100.0 * (update_idx + 1) / updates:>3.0f}%)]  "
                f"Loss: {losses.val:#.3g} ({losses.avg:#.3g})  "
                f"Time: {update_time.val:.3f}s, {16 / update_time.val:>7.2f}/s  "
                f"({update_time.avg:.3f}s, {16 / update_time.avg:>7.2f}/s)  "
                f"LR: {0.05:.3e}  Data: {0.01:.3f} ({0.01:.3f})"
            )
        end = time.time()
    with torch.no_grad():
        output = model(x)
        eval_loss = torch.nn.functional.cross_entropy(output, y).item()
        top1 = (output.argmax(1) == y).float().mean().item() * 100
    _logger.info(
        f"Test: [{0:>4d}/{0}]  Time: {0.012:.3f} ({0.012:.3f})  Loss: {eval_loss:>7.3f} ({eval_loss:>6.3f})  "
        f"Acc@1: {top1:>7.3f} ({top1:>7.3f})  Acc@5: {100:>7.3f} ({100:>7.3f})"
    )
    row = OrderedDict(epoch=epoch, train_loss=losses.avg, eval_loss=eval_loss, eval_top1=top1)
    with open(os.path.join(args.output, "summary.csv"), "a") as cf:
        dw = csv.DictWriter(cf, fieldnames=row.keys())
        if epoch == start_epoch and not args.resume:
            dw.writeheader()
        dw.writerow(row)
    state = {"epoch": epoch, "arch": "resnet_tiny", "state_dict": model.state_dict(), "metric": top1}
    state["optimizer"] = optimizer.state_dict()
    tmp, last = os.path.join(args.output, "tmp.pth.tar"), os.path.join(args.output, "last.pth.tar")
    torch.save(state, tmp)
    os.replace(tmp, last)
    save_path = os.path.join(args.output, f"checkpoint-{epoch}.pth.tar")
    if os.path.exists(save_path):
        os.unlink(save_path)
    os.link(last, save_path)
    for old in sorted(glob.glob(os.path.join(args.output, "checkpoint-*.pth.tar")), key=os.path.getmtime)[:-3]:
        os.unlink(old)
    best = max(best, top1)
    _logger.info(f"Current checkpoints:\n ('{save_path}', {top1})\n")
_logger.info(f"*** Best metric: {best} (epoch {epoch})")
