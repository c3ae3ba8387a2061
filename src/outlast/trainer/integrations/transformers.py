"""Hugging Face Trainer: at the notice it saves a checkpoint of its own and stops; resumes from the newest whole one.

The Trainer writes its checkpoints itself: give it `run.around.checkpoints` as `output_dir`. It would resume from the
one with the highest number, whole or not, and on SIGTERM go on to the code after `train()`: end that with `run.done()`.
"""

from __future__ import annotations

import json
import os
import re
from typing import Any

import transformers

from outlast.trainer.training import Training

_NAME = re.compile(r"checkpoint-(\d+)")


class LeaveInTime(transformers.TrainerCallback):
    """Logs to the run, and ends the training after a save when the machine is about to go."""

    def __init__(self, run: Training) -> None:
        self.run = run

    def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> Any:
        if self.run.leaving:
            control.should_save = control.should_training_stop = self.run.left = True
        return control

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **rest: Any) -> None:
        numbers = {name: value for name, value in (logs or {}).items() if isinstance(value, int | float)}
        if numbers and state.is_world_process_zero:
            self.run.log(state.global_step, **numbers)


def resume_path(run: Training) -> str | None:
    """The newest whole checkpoint for `train(resume_from_checkpoint=…)`; None if there is none."""
    try:
        names = os.listdir(run.around.checkpoints)
    except FileNotFoundError:
        return None
    numbers = sorted((int(match.group(1)) for name in names if (match := _NAME.fullmatch(name))), reverse=True)
    paths = [os.path.join(run.around.checkpoints, f"checkpoint-{number}") for number in numbers]
    return next((path for path in paths if _whole(path)), None)


def _whole(path: str) -> bool:
    """The trainer's state is written last; it may be cut off itself."""
    if os.path.exists(os.path.join(path, "checkpoint-is-incomplete.txt")):
        return False
    try:
        with open(os.path.join(path, "trainer_state.json"), encoding="utf-8") as file:
            return isinstance(json.load(file), dict)
    except (OSError, ValueError):
        return False
