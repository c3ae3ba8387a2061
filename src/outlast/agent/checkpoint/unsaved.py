"""Why a run commits no checkpoint although its folder changes: noted at each look, reported after a while."""

from __future__ import annotations

import time
from collections.abc import Callable

# A reason that has lasted for so long is reported; shorter ones are the ordinary wait for the end of a save.
REPORT_AFTER_S = 120.0


# At most this part of the time goes into looks at the folder; one that takes very long is looked at all the same.
_LOOK_SHARE = 0.1
_REST_MAX_S = 30.0


class Unsaved:
    """The reason that stands in the way of the next commit, and since when one does."""

    def __init__(self, report: Callable[[str], None], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._report = report
        self._clock = clock
        self._why = ""
        self._since = 0.0

    def note(self, why: str) -> None:
        """The reason found by the last look; empty if a commit succeeded or nothing is to be committed."""
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


def rest_after_s(look_s: float) -> float:
    """How long to rest after a look that took so long, so that looks stay a small part of the time."""
    return min(_REST_MAX_S, look_s * (1 / _LOOK_SHARE - 1))
