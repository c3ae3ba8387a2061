"""What all integrations do after a step: save if it is time; at the notice save, wait for the disk, and say so."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from outlast.trainer.training import Training


def leave_after(run: Training, steps: int, make: Callable[[], Any]) -> bool:
    """After `steps` steps in all: must the training end now? Its state is saved then."""
    if not run.leaving:
        run.save_if_due(steps - 1, make)
        return False
    run.save(steps, make(), wait=True)
    run.left = True
    return True


def exit_if_left(run: Training) -> None:
    """Leave the process after an early end: code that follows would take a half-trained model for the result."""
    if run.left:
        sys.exit(0)
