"""The reason why a run commits no checkpoint although its folder changes; reported once it has lasted."""

from __future__ import annotations

import time
from collections.abc import Callable

# Shorter waits are the ordinary wait for the end of a save.
REPORT_AFTER_S = 120.0

# Scans of the folder take at most this share of the time, with pauses of at most `_REST_MAX_S`.
_SCAN_SHARE = 0.1
_REST_MAX_S = 30.0


class Unsaved:
    """The reason that prevents the next commit, and since when there is one."""

    def __init__(self, report: Callable[[str], None], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._report = report
        self._clock = clock
        self._why = ""
        self._since = 0.0

    def note(self, why: str) -> None:
        """Set the reason; empty if a commit succeeded or nothing is to be committed."""
        if why and not self._why:
            self._since = self._clock()
        self._why = why
        if text := self.text:
            minutes = int((self._clock() - self._since) // 60)
            self._report(f"no checkpoint was committed for {minutes} minutes although the folder changes: {text}")

    @property
    def text(self) -> str:
        """The reason, once it has lasted; else empty."""
        return self._why if self._why and self._clock() - self._since >= REPORT_AFTER_S else ""


def rest_after_s(scan_s: float) -> float:
    """Return the pause after a scan that took `scan_s`."""
    return min(_REST_MAX_S, scan_s * (1 / _SCAN_SHARE - 1))
