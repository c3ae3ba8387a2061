"""Delays that are counted in requests: a test is as fast as its client, and has the same result every time."""

from __future__ import annotations

import threading
from collections.abc import Hashable


class Delays:
    """Effects that come late. May be used from any thread."""

    def __init__(self) -> None:
        self._left: dict[Hashable, int] = {}
        self._lock = threading.Lock()

    def delay(self, what: Hashable, requests: int | None) -> None:
        """Begin a delay."""
        if requests:
            with self._lock:
                self._left[what] = requests

    def is_late(self, what: Hashable) -> bool:
        """Return whether a delay is not over. Counts one request."""
        with self._lock:
            left = self._left.get(what, 0)
            if left > 1:
                self._left[what] = left - 1
            else:
                self._left.pop(what, None)
            return left > 0
