"""OpenMMLab's mmengine: a Runner with a CheckpointHook, and `resume=True`."""

import argparse
import os
import time

# mmengine 0.10 stores more than weights, which PyTorch loads on request only.
os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] = "1"

import torch
from mmengine.model import BaseModel
from mmengine.runner import Runner
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--resume", action="store_true")
args = parser.parse_args()


class Toy(BaseModel):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))

    def forward(self, x, y, mode):
        time.sleep(0.06)
        return {"loss": torch.nn.functional.cross_entropy(self.net(x), y)}


torch.manual_seed(0)
x = torch.randn(320, 16)
runner = Runner(
    model=Toy(),
    work_dir="work_dirs",
    train_dataloader=DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), batch_size=16, shuffle=True),
    optim_wrapper={"optimizer": {"type": "SGD", "lr": 0.05, "momentum": 0.9}},
    train_cfg={"by_epoch": True, "max_epochs": 10},
    default_hooks={
        "checkpoint": {"type": "CheckpointHook", "interval": 1, "max_keep_ckpts": 3},
        "logger": {"type": "LoggerHook", "interval": 5},
    },
    randomness={"seed": 0},
    resume=args.resume,
)
runner.train()
