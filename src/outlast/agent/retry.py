"""Retries of the agent's words to the workspace: the one layer that retries, and that knows when to give up."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from outlast.agent.clock import Clock
from outlast.errors import Damaged, Exists, Missing, StoreUnreachable, WorkspaceError

T = TypeVar("T")

# Answers, and no refusals to answer.
_ANSWERS = (Missing, Exists, Damaged)


def retry(
    act: Callable[[], T], *, for_s: float, report: Callable[[str], None], stubborn: bool = False, clock: Clock = time
) -> T:
    """Do it, again and again while the store cannot be reached, for so long. Raises the last problem.

    `stubborn` does not take a refusal for an answer either: rights are lost and given back, keys expire and are
    renewed, and a program that has run for a day is worth the wait.
    """
    deadline = clock.monotonic() + for_s
    wait_s = 0.05
    while True:
        try:
            return act()
        except WorkspaceError as problem:
            passing = isinstance(problem, StoreUnreachable) or (stubborn and not isinstance(problem, _ANSWERS))
            if not passing or clock.monotonic() + wait_s > deadline:
                raise
            report(f"{problem.message}; trying again")
        clock.sleep(wait_s)
        wait_s = min(5.0, wait_s * 2)
