"""Change detection of local files: by file system events where available, else by repeated scans.

It reports only which paths may have changed: events can be lost, repeated or outdated.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from outlast.errors import OutlastError
from outlast.extras import install_hint
from outlast.sync.select import Fingerprint, scan

if TYPE_CHECKING:
    from watchfiles._rust_notify import RustNotify

# An event is reported after one or two of these steps. Shorter steps use more CPU while idle (3 ms: 0.9 % of a core,
# 1 ms: 3 %).
_STEP_MS = 3
_TOGETHER_MS = 40
_ROUND_MS = 500
# Scan everything this often, as events can be lost (a full queue, files created before their folder is watched).
_SWEEP_S = 30.0
_POLL_S = 1.0


class Watcher:
    """Calls `changed` with absolute paths, and `scanned` with the fingerprints of all files, from threads.

    `how` is `events` or `polling`; `why` is the reason for polling.
    """

    def __init__(
        self, root: str, *, changed: Callable[[set[str]], None], scanned: Callable[[dict[str, Fingerprint]], None]
    ) -> None:
        self.root = root
        self._changed = changed
        self._scanned = scanned
        self._stop = threading.Event()
        self._scan_now = threading.Event()
        self.how, self.why = "events", ""
        self._notify = self._open()
        work = self._poll if self._notify is None else self._listen
        self._thread = threading.Thread(target=work, name="watcher", daemon=True)
        self._sweeper = threading.Thread(target=self._sweep, name="sweeper", daemon=True)
        self._thread.start()
        if self._notify is not None:
            self._sweeper.start()

    def _open(self) -> RustNotify | None:
        try:
            from watchfiles._rust_notify import RustNotify
        except ImportError:
            self.how, self.why = "polling", f"`watchfiles` is not installed: `{install_hint('outlast[sync]')}`"
            return None
        try:
            try:
                return RustNotify([self.root], False, False, 0, True, False)
            except PermissionError:
                # Only as a fallback: with this flag, it also ignores that the limit of watches is reached.
                return RustNotify([self.root], False, False, 0, True, True)
        except OSError as problem:
            full = problem.errno in (errno.ENOSPC, errno.EMFILE) or "limit" in str(problem)
            fix = "; raise it with `sudo sysctl fs.inotify.max_user_watches=1048576`" if full else ""
            self.how = "polling"
            self.why = ("the system's limit of watched folders is reached" if full else str(problem)) + fix
            return None

    def scan_soon(self) -> None:
        """Scan everything at once, because the ignore rules changed."""
        self._scan_now.set()

    def _listen(self) -> None:
        assert self._notify is not None
        while not self._stop.is_set():
            found = self._notify.watch(_TOGETHER_MS, _STEP_MS, _ROUND_MS, self._stop)
            if isinstance(found, set):
                self._changed({path for _, path in found})

    def _sweep(self) -> None:
        while not self._stop.is_set():
            self._scan_now.wait(_SWEEP_S)
            self._scan()

    def _poll(self) -> None:
        while not self._stop.is_set():
            self._scan_now.wait(_POLL_S)
            self._scan()

    def _scan(self) -> None:
        self._scan_now.clear()
        if self._stop.is_set():
            return
        try:
            fingerprints, _ = scan(self.root)
        except (OutlastError, OSError):
            return  # the folder is unreadable now, or is being moved
        self._scanned(fingerprints)

    def close(self) -> None:
        self._stop.set()
        self._scan_now.set()
        self._thread.join(2.0)
        if self._notify is not None:
            self._sweeper.join(2.0)
            self._notify.close()
