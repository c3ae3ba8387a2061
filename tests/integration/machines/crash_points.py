"""Processes that are killed at a chosen effect. Every effect has a crash point before and after it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

Point = Callable[[str], None]


class Doomed:
    """Passes calls on to the real thing; those named are effects. Other threads than the main one do not count."""

    def __init__(self, real: object, effects: set[str], point: Point) -> None:
        self.real = real
        self.effects = effects
        self.point = point

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.real, name)
        if name not in self.effects:
            return method

        def call(*arguments: Any, **options: Any) -> Any:
            counts = threading.current_thread() is threading.main_thread()
            # Leases and clocks carry nothing that must survive.
            counts = counts and not str(arguments[0]).startswith(("leases/", "clock"))
            if not counts:
                return method(*arguments, **options)
            self.point(f"before {name}")
            answer = method(*arguments, **options)
            self.point(f"after {name}")
            return answer

        return call


def points_passed(life: Callable[[Point], None], at: int) -> list[str]:
    """Run in another process that dies at the given point (-1: never), and return the passed points."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        count = 0

        def point(label: str) -> None:
            nonlocal count
            if count == at:
                os.kill(os.getpid(), signal.SIGKILL)
            count += 1
            os.write(writing, f"{label}\n".encode())

        try:
            os.close(reading)
            life(point)
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as passed:
        labels = passed.read().splitlines()
    os.waitpid(pid, 0)
    return labels
