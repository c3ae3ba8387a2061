"""The clock of the agent: the standard library's `time`, or a simulated one."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Time of day, monotonic time, and sleep. The module `time` implements it."""

    def time(self) -> float: ...

    def monotonic(self) -> float: ...

    def sleep(self, seconds: float, /) -> None: ...
