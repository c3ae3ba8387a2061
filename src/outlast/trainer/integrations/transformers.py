"""Hugging Face Trainer: saves its own checkpoint and stops on a notice; resumes from the newest complete one.

The Trainer writes its checkpoints itself: set `output_dir` to `run.environment.checkpoints`. By itself it would resume
from the highest number, complete or not. After an early end the code after `train()` runs: call `run.done()` there.
"""

from __future__ import annotations

import json
import os
import re
from typing import Any

import transformers

from outlast.trainer.training import Training

_NAME = re.compile(r"checkpoint-(\d+)")


class StopOnNotice(transformers.TrainerCallback):
    """Logs to the run; on a notice, saves and stops the training."""

    def __init__(self, run: Training) -> None:
        self.run = run

    def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> Any:
        if self.run.stop_requested:
            control.should_save = control.should_training_stop = self.run.stopped_early = True
        return control

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **rest: Any) -> None:
        numbers = {name: value for name, value in (logs or {}).items() if isinstance(value, int | float)}
        if numbers and state.is_world_process_zero:
            self.run.log(state.global_step, **numbers)


def resume_path(run: Training) -> str | None:
    """Return the newest complete checkpoint for `train(resume_from_checkpoint=…)`; None without one."""
    try:
        names = os.listdir(run.environment.checkpoints)
    except FileNotFoundError:
        return None
    numbers = sorted((int(match.group(1)) for name in names if (match := _NAME.fullmatch(name))), reverse=True)
    paths = [os.path.join(run.environment.checkpoints, f"checkpoint-{number}") for number in numbers]
    return next((path for path in paths if _is_complete(path)), None)


def _is_complete(path: str) -> bool:
    """Return whether the trainer's state, which is written last, is complete."""
    if os.path.exists(os.path.join(path, "checkpoint-is-incomplete.txt")):
        return False
    try:
        with open(os.path.join(path, "trainer_state.json"), encoding="utf-8") as file:
            return isinstance(json.load(file), dict)
    except (OSError, ValueError):
        return False
