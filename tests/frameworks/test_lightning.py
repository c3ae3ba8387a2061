"""Lightning: killed and resumed, it makes as many steps as undisturbed; from the middle of an epoch the same ones."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("lightning", reason="lightning is not installed: make frameworks")

SCRIPT = """
import logging, warnings
import lightning, torch
from outlast.trainer.integrations.lightning import Loader, SaveAndLeave, ckpt_path

class Hold(lightning.Callback):
    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        hold(run, trainer.global_step)

class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Dropout(0.3), torch.nn.Linear(16, 1))
    def training_step(self, batch, batch_idx):
        return torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)

lightning.seed_everything(3)
run = outlast.training(every_steps=4)
data = torch.utils.data.TensorDataset(torch.randn(70, 6), torch.randn(70, 1))
module = Module()
trainer = lightning.Trainer(max_epochs=4, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False, callbacks=[Hold(), SaveAndLeave(run)])
path = ckpt_path(run)
began(torch.load(path, weights_only=False)["global_step"] if path else 0)
trainer.fit(module, Loader(data, batch_size=8, num_workers=0), ckpt_path=path)
if run.left:
    run.done()
result(run, steps=trainer.global_step, weights=digest(*[p.detach().numpy() for p in module.parameters()]))
"""


def test_in_the_middle_of_an_epoch_the_weights_are_the_same(undisturbed: Any, disturbed: Any) -> None:
    expected = undisturbed(SCRIPT)
    got, trial = disturbed(SCRIPT, notice=10, kill=23)
    assert trial.resumed_at == [0, 11, 20]
    assert got["steps"] == 36
    assert got == expected


def test_at_the_end_of_an_epoch_no_step_is_doubled(disturbed: Any) -> None:
    got, trial = disturbed(SCRIPT, notice=8, kill=27)
    assert trial.resumed_at == [0, 9, 24]
    assert got["steps"] == 36
