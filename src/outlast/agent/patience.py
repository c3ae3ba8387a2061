"""Retries of the agent's words to the workspace: the one layer that retries, and that knows when to give up."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from outlast.errors import StoreUnreachable

T = TypeVar("T")


def patient(act: Callable[[], T], *, for_s: float, say: Callable[[str], None]) -> T:
    """Do it, again and again while the store cannot be reached, for so long. Raises the last StoreUnreachable."""
    deadline = time.monotonic() + for_s
    wait_s = 0.05
    while True:
        try:
            return act()
        except StoreUnreachable as problem:
            if time.monotonic() + wait_s > deadline:
                raise
            say(f"{problem.message}; trying again")
        time.sleep(wait_s)
        wait_s = min(5.0, wait_s * 2)
