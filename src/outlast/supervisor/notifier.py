"""Notifications beside the rounds of a supervisor: a thread that sends due messages. It never delays or ends a run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from outlast.errors import OutlastError
from outlast.workspace import Workspace

_NEAR_S, _FAR_S = 1.0, 10.0
# How long a supervisor that exits waits for messages that it can send.
_LEAVE_S = 10.0


class Notifier:
    """The thread of one supervisor. Several supervisors may send at once: see `notify/outbox.py`."""

    def __init__(self, workspace: Workspace, *, report: Callable[[str], None]) -> None:
        self.workspace = workspace
        self.report = report
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        # Cleared while another supervisor works, and sends them.
        self.active = True

    def start(self) -> None:
        self._stop.clear()
        self._thread = threading.Thread(target=self._run, name="notifier", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Send the messages of the last events, for a while; another supervisor sends the rest."""
        if self._thread is None:
            return
        self._stop.set()
        self._thread.join(_LEAVE_S)

    def _run(self) -> None:
        from outlast.notify.outbox import Outbox

        outbox = Outbox(self.workspace, monotonic=time.monotonic, report=self.report)
        pause_s = _FAR_S if self.workspace.store.network else _NEAR_S
        while not self._stop.wait(pause_s):
            if self.active:
                self._deliver(outbox)
        give_up_at = time.monotonic() + _LEAVE_S
        while self._deliver(outbox) and time.monotonic() < give_up_at:
            time.sleep(_NEAR_S)

    def _deliver(self, outbox: object) -> int:
        from outlast.notify.outbox import Outbox

        assert isinstance(outbox, Outbox)
        try:
            return outbox.deliver()
        except OutlastError as problem:
            self.report(f"notifications: {problem.message}; trying again")
            return 1
