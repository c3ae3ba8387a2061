"""The clock that the agent's parts live by: the standard library's `time`, or a simulated one."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Time of day, time that only grows, and waiting. The module `time` keeps this contract."""

    def time(self) -> float: ...

    def monotonic(self) -> float: ...

    def sleep(self, seconds: float, /) -> None: ...
