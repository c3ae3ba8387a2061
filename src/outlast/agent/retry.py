"""Retries of the agent's requests to the workspace. No other layer of the agent retries them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from outlast.agent.clock import Clock
from outlast.errors import Damaged, Exists, Missing, StoreUnreachable, WorkspaceError

T = TypeVar("T")

# Results, not failures of the store.
_RESULTS = (Missing, Exists, Damaged)


def retry(
    act: Callable[[], T],
    *,
    for_s: float,
    report: Callable[[str], None],
    despite_refusals: bool = False,
    clock: Clock = time,
) -> T:
    """Retry `act` while the store is unreachable, for up to `for_s`. Re-raises the last error.

    `despite_refusals` also retries when the store refuses: permissions are restored and keys are renewed, and a program
    that has run for a day is worth the wait.
    """
    deadline = clock.monotonic() + for_s
    wait_s = 0.05
    while True:
        try:
            return act()
        except WorkspaceError as problem:
            passing = isinstance(problem, StoreUnreachable) or (despite_refusals and not isinstance(problem, _RESULTS))
            if not passing or clock.monotonic() + wait_s > deadline:
                raise
            report(f"{problem.message}; retrying")
        clock.sleep(wait_s)
        wait_s = min(5.0, wait_s * 2)
