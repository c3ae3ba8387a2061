"""The processor time of a run's command, by its processes on this computer.

The time on the clock depends on what else the computer does; the processor time of work that is done again does not.
"""

from __future__ import annotations

import os
import time

_POLL_S = 0.25
_LOOKS, _MEMBER = 8, 9
_USER, _SYSTEM = 11, 12  # fields of /proc/PID/stat after the name


class CpuWatch:
    """The processor time of one attempt's command, read from time to time. It stays empty without /proc."""

    def __init__(self, run: str, attempt: int) -> None:
        self._marks = {f"OUTLAST_RUN={run}".encode(), f"OUTLAST_ATTEMPT={attempt}".encode()}
        self._ticks = os.sysconf("SC_CLK_TCK")
        # Process → how often it was looked at, or `_MEMBER`; and the time that each process of the command has used.
        self._looks: dict[int, int] = {}
        self._used: dict[int, float] = {}
        self._read_at = 0.0
        # Time of day → processor time.
        self.samples: list[tuple[float, float]] = []

    def poll(self) -> None:
        """Add a sample, at most a few per second."""
        if time.monotonic() < self._read_at + _POLL_S:
            return
        self._read_at = time.monotonic()
        for pid in _processes():
            if self._belongs(pid) and (used_s := self._used_s(pid)) is not None:
                self._used[pid] = used_s
        # A process that has ended keeps what it used.
        total_s = sum(self._used.values())
        if total_s and (not self.samples or total_s > self.samples[-1][1]):
            self.samples.append((time.time(), total_s))

    def _belongs(self, pid: int) -> bool:
        looks = self._looks.get(pid, 0)
        if looks < _LOOKS:
            try:
                with open(f"/proc/{pid}/environ", "rb") as file:
                    is_member = self._marks <= set(file.read().split(b"\0"))
            except OSError:
                is_member = False
            # A process has the environment of its parent for a moment, until it runs another program.
            looks = self._looks[pid] = _MEMBER if is_member else looks + 1
        return looks == _MEMBER

    def _used_s(self, pid: int) -> float | None:
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()
            return (int(fields[_USER]) + int(fields[_SYSTEM])) / self._ticks
        except (OSError, LookupError, ValueError):
            return None  # it has ended


def _processes() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []


def used_until(samples: list[tuple[float, float]], at: float) -> float:
    """Return the processor time at this time of day; 0 before the first sample."""
    return next((used_s for when, used_s in reversed(samples) if when <= at), 0.0)


def used_from(samples: list[tuple[float, float]], at: float) -> float:
    """Return the processor time at the first sample from this time of day on: what came before is start-up."""
    return next((used_s for when, used_s in samples if when >= at), used_until(samples, at))
