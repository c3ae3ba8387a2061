"""The loop of PyTorch's `examples/imagenet/main.py`: a ProgressMeter, `checkpoint.pth.tar`, `--resume`."""

import argparse
import os
import shutil
import time

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", default=10, type=int)
parser.add_argument("-p", "--print-freq", default=5, type=int)
parser.add_argument("--resume", default="", type=str)
args = parser.parse_args()


class AverageMeter:
    def __init__(self, name, fmt=":f"):
        self.name, self.fmt = name, fmt
        self.val = self.avg = self.sum = self.count = 0

    def update(self, val, n=1):
        self.val = val
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count

    def __str__(self):
        return ("{name} {val" + self.fmt + "} ({avg" + self.fmt + "})").format(**self.__dict__)


torch.manual_seed(0)
print("=> creating model 'resnet_tiny'")
x = torch.randn(320, 16)
y = (x[:, 0] > 0).long()
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
start_epoch, best_acc1 = 0, 0
if args.resume:
    if os.path.isfile(args.resume):
        print(f"=> loading checkpoint '{args.resume}'")
        checkpoint = torch.load(args.resume, weights_only=False)
        start_epoch = checkpoint["epoch"]
        best_acc1 = checkpoint["best_acc1"]
        model.load_state_dict(checkpoint["state_dict"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        print("=> loaded checkpoint '{}' (epoch {})".format(args.resume, checkpoint["epoch"]))
    else:
        print(f"=> no checkpoint found at '{args.resume}'")
for epoch in range(start_epoch, args.epochs):
    batch_time, data_time = AverageMeter("Time", ":6.3f"), AverageMeter("Data", ":6.3f")
    losses, top1 = AverageMeter("Loss", ":.4e"), AverageMeter("Acc@1", ":6.2f")
    order = torch.randperm(320, generator=torch.Generator().manual_seed(epoch)).split(16)
    end = time.time()
    for i, batch in enumerate(order):
        data_time.update(time.time() - end)
        output = model(x[batch])
        loss = torch.nn.functional.cross_entropy(output, y[batch])
        losses.update(loss.item(), len(batch))
        top1.update((output.argmax(1) == y[batch]).float().mean().item() * 100, len(batch))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.07)
        batch_time.update(time.time() - end)
        end = time.time()
        if i % args.print_freq == 0:
            entries = [f"Epoch: [{epoch}]" + f"[{i + 1:2d}/{len(order)}]"]
            print("\t".join(entries + [str(meter) for meter in (batch_time, data_time, losses, top1)]))
    acc1 = top1.avg
    print(f" *   Acc@1 {acc1:.3f} Acc@5 {100.0:.3f}")
    is_best = acc1 > best_acc1
    best_acc1 = max(acc1, best_acc1)
    state = {
        "epoch": epoch + 1,
        "arch": "resnet_tiny",
        "state_dict": model.state_dict(),
        "best_acc1": best_acc1,
        "optimizer": optimizer.state_dict(),
    }
    torch.save(state, "checkpoint.pth.tar")
    if is_best:
        shutil.copyfile("checkpoint.pth.tar", "model_best.pth.tar")
