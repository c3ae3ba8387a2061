"""The loop and the `MetricLogger` of torchvision's `references/classification/train.py`."""

import argparse
import datetime
import os
import time
from collections import defaultdict, deque

import torch


class SmoothedValue:
    def __init__(self, window_size=20, fmt="{median:.4f} ({global_avg:.4f})"):
        self.deque = deque(maxlen=window_size)
        self.total, self.count, self.fmt = 0.0, 0, fmt

    def update(self, value, n=1):
        self.deque.append(value)
        self.count += n
        self.total += value * n

    def __str__(self):
        median = torch.tensor(list(self.deque)).median().item()
        return self.fmt.format(median=median, global_avg=self.total / self.count, value=self.deque[-1])


class MetricLogger:
    def __init__(self, delimiter="  "):
        self.meters, self.delimiter = defaultdict(SmoothedValue), delimiter

    def log_every(self, iterable, print_freq, header):
        start_time = end = time.time()
        iter_time, data_time = SmoothedValue(fmt="{global_avg:.4f}"), SmoothedValue(fmt="{global_avg:.4f}")
        space_fmt = ":" + str(len(str(len(iterable)))) + "d"
        for i, obj in enumerate(iterable):
            data_time.update(time.time() - end)
            yield obj
            iter_time.update(time.time() - end)
            if i % print_freq == 0:
                eta = str(datetime.timedelta(seconds=int(iter_time.total / (i + 1) * (len(iterable) - i))))
                meters = self.delimiter.join(f"{name}: {meter}" for name, meter in self.meters.items())
                count = ("[{0" + space_fmt + "}/{1}]").format(i, len(iterable))
                print(
                    self.delimiter.join(
                        [header, count, f"eta: {eta}", meters, f"time: {iter_time}", f"data: {data_time}"]
                    )
                )
            end = time.time()
        print(f"{header} Total time: {datetime.timedelta(seconds=int(time.time() - start_time))}")


def train_one_epoch(model, optimizer, data, epoch, args):
    metric_logger = MetricLogger()
    metric_logger.meters["lr"] = SmoothedValue(window_size=1, fmt="{value}")
    metric_logger.meters["img/s"] = SmoothedValue(window_size=10, fmt="{value}")
    for image, target in metric_logger.log_every(data, args.print_freq, f"Epoch: [{epoch}]"):
        start_time = time.time()
        output = model(image)
        loss = torch.nn.functional.cross_entropy(output, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.07)
        acc1 = (output.argmax(1) == target).float().mean() * 100
        metric_logger.meters["loss"].update(loss.item())
        metric_logger.meters["lr"].update(optimizer.param_groups[0]["lr"])
        metric_logger.meters["acc1"].update(acc1.item(), n=image.shape[0])
        metric_logger.meters["img/s"].update(image.shape[0] / (time.time() - start_time))


def main(args):
    print(args)
    torch.manual_seed(0)
    x = torch.randn(320, 16)
    y = (x[:, 0] > 0).long()
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    lr_scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=4, gamma=0.5)
    start_epoch = 0
    if args.resume:
        checkpoint = torch.load(args.resume, map_location="cpu", weights_only=False)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        lr_scheduler.load_state_dict(checkpoint["lr_scheduler"])
        start_epoch = checkpoint["epoch"] + 1
    print("Start training")
    os.makedirs(args.output_dir, exist_ok=True)
    start_time = time.time()
    for epoch in range(start_epoch, args.epochs):
        order = torch.randperm(320, generator=torch.Generator().manual_seed(epoch)).split(16)
        train_one_epoch(model, optimizer, [(x[i], y[i]) for i in order], epoch, args)
        lr_scheduler.step()
        with torch.no_grad():
            acc1 = (model(x).argmax(1) == y).float().mean().item() * 100
        print(f"Test:  Acc@1 {acc1:.3f} Acc@5 {100.0:.3f}")
        checkpoint = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "lr_scheduler": lr_scheduler.state_dict(),
            "epoch": epoch,
            "args": args,
        }
        torch.save(checkpoint, os.path.join(args.output_dir, f"model_{epoch}.pth"))
        torch.save(checkpoint, os.path.join(args.output_dir, "checkpoint.pth"))
    print(f"Training time {datetime.timedelta(seconds=int(time.time() - start_time))}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", default=10, type=int)
    parser.add_argument("--print-freq", default=5, type=int)
    parser.add_argument("--output-dir", default="out")
    parser.add_argument("--resume", default="", type=str)
    main(parser.parse_args())
