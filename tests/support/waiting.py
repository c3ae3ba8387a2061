"""The one place where tests wait: for a condition, with a bound that grows with the load of the computer."""

from __future__ import annotations

import os
import time
from collections.abc import Callable


def patience(seconds: float) -> float:
    """Return how long to wait on this computer for work that takes `seconds` at most on a quiet one."""
    return seconds * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def eventually(condition: Callable[[], object], *, within_s: float = 10.0, what: str = "it") -> None:
    started = time.monotonic()
    while not condition():
        # The load is read again: it may have risen since the wait began.
        assert time.monotonic() - started < patience(within_s), f"{what} did not happen within {within_s:g} s"
        time.sleep(0.02)
