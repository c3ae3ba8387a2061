"""The output, files and `resume=True` of Ultralytics YOLO: `weights/last.pt`, `results.csv`, a table per epoch."""

import os
import sys
import time

import torch
from tqdm import tqdm

resume = "resume=True" in sys.argv
epochs, batches = 10, 20
torch.manual_seed(0)
model = torch.nn.Linear(16, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.937)
x = torch.randn(320, 16)
y = (x[:, 0] > 0).long()
os.makedirs("runs/detect/train/weights", exist_ok=True)
last, best = "runs/detect/train/weights/last.pt", "runs/detect/train/weights/best.pt"
start_epoch, best_fitness = 0, 0.0
if resume and os.path.exists(last):
    ckpt = torch.load(last)
    model.load_state_dict(ckpt["model"])
    optimizer.load_state_dict(ckpt["optimizer"])
    start_epoch, best_fitness = ckpt["epoch"] + 1, ckpt["best_fitness"]
    print(f"Resuming training {last} from epoch {start_epoch + 1} to {epochs} total epochs")
print("Image sizes 640 train, 640 val\nUsing 0 dataloader workers")
print(f"Logging results to runs/detect/train\nStarting training for {epochs} epochs...")
for epoch in range(start_epoch, epochs):
    print(("\n" + "%11s" * 7) % ("Epoch", "GPU_mem", "box_loss", "cls_loss", "dfl_loss", "Instances", "Size"))
    pbar = tqdm(range(batches), total=batches, bar_format="{l_bar}{bar:10}{r_bar}")
    tloss = None
    for i in pbar:
        loss = torch.nn.functional.cross_entropy(model(x[i * 16 : i * 16 + 16]), y[i * 16 : i * 16 + 16])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.07)
        tloss = (tloss * i + loss.item()) / (i + 1) if tloss is not None else loss.item()
        pbar.set_description(
            ("%11s" * 2 + "%11.4g" * 5) % (f"{epoch + 1}/{epochs}", "0.25G", tloss, 2 * tloss, 1 + tloss, 16, 640)
        )
    acc = (model(x).argmax(1) == y).float().mean().item()
    print(("%22s" + "%11s" * 6) % ("Class", "Images", "Instances", "Box(P", "R", "mAP50", "mAP50-95)"))
    print(("%22s" + "%11i" * 2 + "%11.3g" * 4) % ("all", 320, 320, acc, acc, acc, acc / 2))
    with open("runs/detect/train/results.csv", "a") as f:
        f.write(("" if epoch else "epoch,time,train/box_loss,metrics/mAP50(B)\n") + f"{epoch + 1},3.2,{tloss},{acc}\n")
    best_fitness = max(best_fitness, acc)
    ckpt = {"epoch": epoch, "best_fitness": best_fitness, "model": model.state_dict()}
    ckpt["optimizer"] = optimizer.state_dict()
    torch.save(ckpt, last)
    if best_fitness == acc:
        torch.save(ckpt, best)
print(f"\n{epochs} epochs completed in {0.012:.3f} hours.\nOptimizer stripped from {last}, 0.1MB")
