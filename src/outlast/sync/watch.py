"""Notices changes of files: by the system's own events where it can, else by looking again and again.

Tells which paths to look at, never what became of them: events get lost, come double, and tell of what is over.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from outlast.errors import OutlastError
from outlast.sync.select import Mark, look

if TYPE_CHECKING:
    from watchfiles._rust_notify import RustNotify

# An event waits for one or two of these steps until it is told; a shorter step costs more while nothing happens
# (3 ms: 0.9 % of a core, 1 ms: 3 %).
_STEP_MS = 3
_TOGETHER_MS = 40
_ROUND_MS = 500
# Events can be lost (a full queue, a folder that is filled before it is watched): all of it is looked at so often.
_SWEEP_S = 30.0
_POLL_S = 1.0


class Watcher:
    """A thread. `changed` gets absolute paths, `looked` the marks of all files; `how` and `why` say how it watches."""

    def __init__(
        self, root: str, *, changed: Callable[[set[str]], None], looked: Callable[[dict[str, Mark]], None]
    ) -> None:
        self.root = root
        self._changed = changed
        self._looked = looked
        self._stop = threading.Event()
        self._look_now = threading.Event()
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
            self.how, self.why = "polling", "`watchfiles` is not installed: `pip install 'outlast[sync]'`"
            return None
        try:
            try:
                return RustNotify([self.root], False, False, 0, True, False)
            except PermissionError:
                # Told to ignore these, it also ignores that a limit is reached.
                return RustNotify([self.root], False, False, 0, True, True)
        except OSError as problem:
            full = problem.errno in (errno.ENOSPC, errno.EMFILE) or "limit" in str(problem)
            fix = "; raise it with `sudo sysctl fs.inotify.max_user_watches=1048576`" if full else ""
            self.how = "polling"
            self.why = ("the system's limit of watched folders is reached" if full else str(problem)) + fix
            return None

    def look_soon(self) -> None:
        """The rules have changed: all of it shall be looked at, at once."""
        self._look_now.set()

    def _listen(self) -> None:
        assert self._notify is not None
        while not self._stop.is_set():
            found = self._notify.watch(_TOGETHER_MS, _STEP_MS, _ROUND_MS, self._stop)
            if isinstance(found, set):
                self._changed({path for _, path in found})

    def _sweep(self) -> None:
        while not self._stop.is_set():
            self._look_now.wait(_SWEEP_S)
            self._look()

    def _poll(self) -> None:
        while not self._stop.is_set():
            self._look_now.wait(_POLL_S)
            self._look()

    def _look(self) -> None:
        self._look_now.clear()
        if self._stop.is_set():
            return
        try:
            marks, _ = look(self.root)
        except (OutlastError, OSError):
            return  # a folder that cannot be read now, or is being moved away
        self._looked(marks)

    def close(self) -> None:
        self._stop.set()
        self._look_now.set()
        self._thread.join(2.0)
        if self._notify is not None:
            self._sweeper.join(2.0)
            self._notify.close()
