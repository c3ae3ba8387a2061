"""The one place where tests wait: for a condition, with a bound, and with words for when it does not come."""

from __future__ import annotations

import time
from collections.abc import Callable


def eventually(condition: Callable[[], object], *, within_s: float = 10.0, what: str = "it") -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen within {within_s:g} s"
        time.sleep(0.02)
