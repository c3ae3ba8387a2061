"""The Lightning-Hydra template: a new folder with the time in its name per run, a rich bar, `ckpt_path=…`."""

import logging
import os
import time

import hydra
import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint, RichProgressBar
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

log = logging.getLogger(__name__)


class MNISTLitModule(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 2))

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.cross_entropy(self.net(x), y)
        self.log("train/loss", loss, on_step=False, on_epoch=True, prog_bar=True)
        time.sleep(0.05)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val/acc", (self.net(x).argmax(-1) == y).float().mean(), on_epoch=True, prog_bar=True)

    test_step = validation_step

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


@hydra.main(version_base="1.3", config_path="hydra_configs", config_name="train.yaml")
def main(cfg):
    L.seed_everything(cfg.seed, workers=True)
    x = torch.randn(160, 8)
    data = TensorDataset(x, (x[:, 0] > 0).long())
    log.info("Instantiating model <MNISTLitModule>")
    model = MNISTLitModule()
    trainer = L.Trainer(
        default_root_dir=cfg.paths.output_dir,
        max_epochs=cfg.trainer.max_epochs,
        accelerator="cpu",
        logger=CSVLogger(cfg.paths.output_dir, name="csv", prefix=""),
        callbacks=[
            ModelCheckpoint(
                dirpath=os.path.join(cfg.paths.output_dir, "checkpoints"),
                filename="epoch_{epoch:03d}",
                monitor="val/acc",
                mode="max",
                save_last=True,
                auto_insert_metric_name=False,
            ),
            RichProgressBar(),
        ],
    )
    log.info("Starting training!")
    train, test = DataLoader(data, batch_size=8, shuffle=True), DataLoader(data, batch_size=80)
    trainer.fit(model, train, test, ckpt_path=cfg.get("ckpt_path"))
    log.info("Starting testing!")
    trainer.test(model=model, dataloaders=test)


if __name__ == "__main__":
    main()
