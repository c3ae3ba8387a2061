"""Hugging Face Trainer: killed and resumed, the weights equal those of an undisturbed training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason="transformers is not installed: make frameworks")
pytest.importorskip("accelerate", reason="accelerate is not installed: make frameworks")

SCRIPT = """
import torch, transformers
from outlast.trainer.integrations.transformers import StopOnNotice, resume_path

class Hold(transformers.TrainerCallback):
    def on_step_begin(self, args, state, control, **rest):
        hold(run, state.global_step)

transformers.set_seed(3)
run = outlast.training()
config = transformers.BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
                                 intermediate_size=16, max_position_embeddings=16)
model = transformers.BertForSequenceClassification(config)
rng = torch.Generator().manual_seed(1)
data = [{"input_ids": torch.randint(0, 50, (8,), generator=rng), "labels": i % 2} for i in range(48)]
arguments = transformers.TrainingArguments(
    output_dir=run.environment.checkpoints, max_steps=30, per_device_train_batch_size=4, save_steps=5, logging_steps=5,
    report_to=[], use_cpu=True, disable_tqdm=True, save_total_limit=2, learning_rate=0.01, seed=3)
trainer = transformers.Trainer(model, arguments, train_dataset=data, callbacks=[Hold(), StopOnNotice(run)])
path = resume_path(run)
began(int(path.rpartition("-")[2]) if path else 0)
trainer.train(resume_from_checkpoint=path)
if run.stopped_early:
    run.done()
result(run, steps=trainer.state.global_step, weights=digest(*[p.detach().numpy() for p in model.parameters()]))
"""


def test_the_weights_are_the_same(undisturbed: Any, disturbed: Any) -> None:
    expected = undisturbed(SCRIPT)
    got, trial = disturbed(SCRIPT, notice=8, kill=22)
    assert trial.resumed_at == [0, 9, 20]
    assert got["steps"] == 30
    assert got == expected


def test_incomplete_checkpoints_are_skipped(tmp_path: Path) -> None:
    import outlast
    from outlast.trainer.integrations.transformers import resume_path

    run = outlast.training(folder=str(tmp_path))
    folder = Path(run.environment.checkpoints)
    assert resume_path(run) is None
    for number, content in ((5, "{}"), (10, "{}"), (100, '{"cut'), (200, None)):
        (folder / f"checkpoint-{number}").mkdir()
        if content:
            (folder / f"checkpoint-{number}" / "trainer_state.json").write_text(content)
    assert resume_path(run) == str(folder / "checkpoint-10")
    (folder / "checkpoint-10" / "checkpoint-is-incomplete.txt").touch()
    assert resume_path(run) == str(folder / "checkpoint-5")
