"""Upkeep of the workspace: at most once an hour, beside the rounds, the supervisor applies `[retention]` of ended runs.

It starts nothing in a workspace none of whose runs has such a rule, except a thread that reads the index.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from outlast.errors import OutlastError
from outlast.workspace import Workspace

EVERY_S = 3600.0
# The first one comes after the work of a new supervisor has begun.
_FIRST_S = 60.0


class Upkeep:
    """The upkeep of one supervisor. Several supervisors may do it at once: see `retention/`."""

    def __init__(
        self,
        workspace: Workspace,
        *,
        report: Callable[[str], None],
        monotonic: Callable[[], float] = time.monotonic,
        first_s: float = _FIRST_S,
    ) -> None:
        self.workspace = workspace
        self.report = report
        self.monotonic = monotonic
        self._due_at = monotonic() + first_s
        self._thread: threading.Thread | None = None

    def begin_if_due(self) -> None:
        """Start the upkeep in a thread if it is due and none is under way. It never delays a round."""
        if self.monotonic() < self._due_at or (self._thread is not None and self._thread.is_alive()):
            return
        self._due_at = self.monotonic() + EVERY_S
        self._thread = threading.Thread(target=self.run, name="upkeep", daemon=True)
        self._thread.start()

    def run(self) -> None:
        """Apply the retention rules now. An error is reported, and the next upkeep tries again."""
        from outlast.retention.prune import apply_rules

        try:
            found = apply_rules(self.workspace)
        except OutlastError as problem:
            self.report(f"could not apply [retention]: {problem.message}; trying again later")
            return
        if found.runs:
            self.report(f"deleted {len(found.runs)} runs by their [retention]: {', '.join(found.runs)}")
