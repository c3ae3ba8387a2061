"""Shared by all integrations: save after a step if a save is due, and save and stop on a notice."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from outlast.trainer.training import Training


def save_and_check_stop(run: Training, steps: int, make: Callable[[], Any]) -> bool:
    """Save if due after `steps` steps in total. Returns whether to stop now; the state is saved then."""
    if not run.stop_requested:
        run.save_if_due(steps - 1, make)
        return False
    run.save(steps, make(), wait=True)
    run.stopped_early = True
    return True


def exit_if_stopped(run: Training) -> None:
    """Exit the process after an early end: the code that follows expects a fully trained model."""
    if run.stopped_early:
        sys.exit(0)
