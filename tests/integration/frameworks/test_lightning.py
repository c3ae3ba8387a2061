"""Lightning: killed and resumed, the training makes the steps of an undisturbed one, also with two ranks."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("lightning", reason="lightning is not installed: make frameworks")

SCRIPT = """
import logging, warnings
import lightning, torch
from outlast.trainer.integrations.lightning import Loader, SaveAndStop, ckpt_path

class Hold(lightning.Callback):
    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        hold(run, trainer.global_step)

class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Dropout(0.3), torch.nn.Linear(16, 1))
    def training_step(self, batch, batch_idx):
        return torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])
    def validation_step(self, batch, batch_idx):
        torch.rand(1)
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)

lightning.seed_everything(3)
run = outlast.training(every_steps=4)
data = torch.utils.data.TensorDataset(torch.randn(70, 6), torch.randn(70, 1))
valid = torch.utils.data.DataLoader(data, batch_size=8)
module = Module()
trainer = lightning.Trainer(max_epochs=4, accelerator="cpu", devices=DEVICES, strategy="STRATEGY",
    logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False, callbacks=[Hold(), SaveAndStop(run)])
path = ckpt_path(run)
if run.environment.rank == 0:
    began(torch.load(path, weights_only=False)["global_step"] if path else 0)
trainer.fit(module, Loader(data, batch_size=8, num_workers=0), ckpt_path=path)
if run.stopped_early or run.environment.rank:
    run.done()
    sys.exit()
result(run, steps=trainer.global_step, weights=digest(*[p.detach().numpy() for p in module.parameters()]))
"""


# The default: one process, no validation.
ONE = SCRIPT.replace("DEVICES", "1").replace("STRATEGY", "auto")


@pytest.mark.parametrize(
    ("notice", "kill", "resumed_at"),
    [(10, 23, [0, 11, 20]), (8, 27, [0, 9, 24]), (17, 30, [0, 18, 28])],
    ids=["in the middle of an epoch", "at the end of the first epoch", "at the end of the second"],
)
def test_the_weights_are_the_same(
    notice: int, kill: int, resumed_at: list[int], undisturbed: Any, disturbed: Any
) -> None:
    expected = undisturbed(ONE)
    got, trial = disturbed(ONE, notice=notice, kill=kill)
    assert trial.resumed_at == resumed_at
    assert got["steps"] == 36
    assert got == expected


def test_two_ranks_of_ddp_with_dropout_and_validation(undisturbed: Any, disturbed: Any) -> None:
    script = SCRIPT.replace("DEVICES", "2").replace("STRATEGY", "ddp")
    script = script.replace("num_workers=0), ckpt", "num_workers=0), valid, ckpt")
    expected = undisturbed(script)
    assert expected["steps"] == 20
    got, trial = disturbed(script, notice=7, kill=14)
    assert trial.resumed_at == [0, 8, 12]
    assert got == expected
