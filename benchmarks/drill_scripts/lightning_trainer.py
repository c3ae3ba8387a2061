"""PyTorch Lightning: `ModelCheckpoint(save_last=True)` and `fit(ckpt_path="last")`, with the bar of the console."""

import argparse
import time

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint, TQDMProgressBar
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class LitClassifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.cross_entropy(self.net(x), y)
        self.log("train_loss", loss, prog_bar=True)
        time.sleep(0.05)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", nn.functional.cross_entropy(self.net(x), y), prog_bar=True)

    def test_step(self, batch, batch_idx):
        x, y = batch
        self.log("test_acc", (self.net(x).argmax(-1) == y).float().mean())

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--ckpt_path")
    parser.add_argument("--max_epochs", type=int, default=10)
    args = parser.parse_args()
    L.seed_everything(7)
    x = torch.randn(160, 8)
    data = TensorDataset(x, (x[:, 0] > 0).long())
    trainer = L.Trainer(
        max_epochs=args.max_epochs,
        accelerator="cpu",
        logger=False,
        log_every_n_steps=1,
        callbacks=[
            ModelCheckpoint(dirpath="checkpoints", save_last=True, monitor="val_loss", save_top_k=2),
            TQDMProgressBar(refresh_rate=5),
        ],
    )
    model = LitClassifier()
    trainer.fit(
        model,
        DataLoader(data, batch_size=8, shuffle=True),
        DataLoader(data, batch_size=80),
        ckpt_path=args.ckpt_path,
    )
    trainer.test(model, DataLoader(data, batch_size=80))
