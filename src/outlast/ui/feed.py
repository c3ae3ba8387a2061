"""The reader of a workspace for all viewers: two threads that publish values to the event loop.

Viewers subscribe and never read the workspace themselves. Without viewers the threads pause.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Literal

import msgspec

from outlast.billing.ledger import LedgerLine
from outlast.errors import OutlastError, StoreUnreachable
from outlast.ui.detail import RunDetail, RunWatch
from outlast.ui.logs import Logs
from outlast.ui.overview_data import OverviewData, OverviewReader
from outlast.ui.reader import RunReader
from outlast.ui.views.runs import RunTableRow
from outlast.workspace import Workspace

# Intervals in seconds between reads of the runs and of the overview, for a local and for a remote store.
_RUNS_S, _RUNS_REMOTE_S = 0.5, 1.0
_OVERVIEW_S, _OVERVIEW_REMOTE_S = 2.0, 15.0
# Reading pauses after this long without viewers.
_IDLE_S = 30.0

Condition = Literal["loading", "live", "offline", "error"]


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the reader. `offline`: the store does not answer; `error`: it answers, but cannot be read."""

    condition: Condition = "loading"
    since: float = 0.0
    message: str = ""
    hint: str = ""
    read: int = 0
    # There are more ended runs than are shown.
    more: bool = False


class FeedState(msgspec.Struct, frozen=True, kw_only=True):
    """The data of all viewers at one moment."""

    number: int = 0
    status: Status = Status()
    rows: dict[str, RunTableRow] = {}
    # The rows of the table: runs, what they are part of, and machines of distributed runs.
    shown: dict[str, RunTableRow] = {}
    overview: OverviewData = OverviewData()


Viewer = Callable[[FeedState], None]


class Feed:
    """The feed of one process. All public methods except `lines` must be called in the event loop's thread."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.reader = RunReader(workspace)
        self.overview = OverviewReader(workspace, self.reader.pages)
        self.snapshot = FeedState(status=Status(since=time.time()))
        self.logs = Logs(workspace.bucket)
        self._watches: dict[str, RunWatch] = {}
        self._viewers: dict[int, Viewer] = {}
        self._numbers = iter(range(1, 2**62))
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._wanted = threading.Event()
        self._left_at = time.monotonic()
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._wanted.set()
        for name, work in (("runs", self._read_runs), ("overview", self._read_overview)):
            threading.Thread(target=self._forever, args=(work,), name=f"feed-{name}", daemon=True).start()

    def stop(self) -> None:
        self._stop.set()
        self._wanted.set()

    def subscribe(self, viewer: Viewer) -> Callable[[], None]:
        """Call `viewer` now and after every change, in the event loop. Return a function that ends it."""
        number = next(self._numbers)
        self._viewers[number] = viewer
        self._wanted.set()
        viewer(self.snapshot)

        def unsubscribe() -> None:
            self._viewers.pop(number, None)
            self._left_at = time.monotonic()

        return unsubscribe

    def follow(self, watch: RunWatch, viewer: Callable[[RunDetail], None]) -> Callable[[], None]:
        """Call `viewer` after every change of this run, in the event loop. Return a function that ends it.

        If the run is already watched, `viewer` is called at once: that state may be newer.
        """
        number, run, own = next(self._numbers), watch.run, watch
        watch = self._watches.setdefault(run, own)
        watch.viewers[number] = viewer
        if watch is not own:
            viewer(watch.detail)

        def unsubscribe() -> None:
            watch.viewers.pop(number, None)
            if not watch.viewers and self._watches.get(run) is watch:
                del self._watches[run]

        return unsubscribe

    def watching(self, run: str) -> tuple[RunWatch, bool]:
        """Return the watch of this run, and whether it is new and must be read first."""
        found = self._watches.get(run)
        return (found, False) if found is not None else (RunWatch(self.workspace, self.logs, run), True)

    @property
    def viewers(self) -> int:
        return len(self._viewers)

    def changed_since(self, number: int) -> list[RunTableRow]:
        """Return the rows that changed after snapshot `number`; 0 for all."""
        changed = self.reader.changed
        return [row for key, row in self.snapshot.shown.items() if changed.get(key, 0) > number]

    def more(self) -> None:
        """Show more ended runs."""
        self.reader.more()

    def lines(self) -> list[LedgerLine]:
        """Return the ledger's lines, as in `outlast cost`. Blocking."""
        return self.overview.lines(time.time())

    # The threads

    def _forever(self, work: Callable[[], float]) -> None:
        try:
            while not self._stop.is_set():
                began = time.monotonic()
                every_s = work()
                if not self._viewers and time.monotonic() - self._left_at > _IDLE_S:
                    self._pause()
                    continue
                # At most half of the time: other programs on this computer come first.
                took_s = time.monotonic() - began
                self._stop.wait(max(every_s - took_s, min(took_s, 5.0)))
        finally:
            if not self._stop.is_set():  # a bug, whose traceback is in the terminal: report it to viewers
                self._publish(status=_status("error", "the dashboard's reader has crashed", "start `outlast ui` again"))

    def _pause(self) -> None:
        """Wait for a viewer, who sees old data until the next read."""
        self._wanted.clear()
        self._publish(status=msgspec.structs.replace(self.snapshot.status, condition="loading", since=time.time()))
        if not self._viewers:  # one may have come before `clear`
            self._wanted.wait()

    def _read_runs(self) -> float:
        with self._reporting():
            changed = self.reader.read()
            reader = self.reader
            condition: Condition = "live" if reader.complete else "loading"
            status = Status(
                condition=condition, since=self.snapshot.status.since, read=len(reader.rows), more=reader.has_more
            )
            if condition != self.snapshot.status.condition:
                status = msgspec.structs.replace(status, since=time.time())
            if changed or status != self.snapshot.status:
                self._publish(status=status, rows=reader.rows, shown=reader.shown, number=reader.round)
            for watch in list(self._watches.values()):
                if watch.refresh():
                    self._call(self._notify_watchers, watch)
        return _RUNS_REMOTE_S if self.reader.remote else _RUNS_S

    def _read_overview(self) -> float:
        try:
            self._publish(overview=self.overview.read())
        except OutlastError as problem:
            # The other thread reports whether the workspace can be read.
            self._publish(overview=msgspec.structs.replace(self.snapshot.overview, problems=(problem.message,)))
        return _OVERVIEW_REMOTE_S if self.overview.remote or self.reader.remote else _OVERVIEW_S

    @contextlib.contextmanager
    def _reporting(self) -> Iterator[None]:
        """Publish errors to the viewers, who keep their data."""
        try:
            yield
        except StoreUnreachable as problem:
            self._publish(status=self._since_before(_status("offline", problem.message, problem.hint)))
        except OutlastError as problem:
            self._publish(status=self._since_before(_status("error", problem.message, problem.hint)))

    def _since_before(self, status: Status) -> Status:
        """Keep the time since which the same problem exists."""
        before = self.snapshot.status
        return before if (before.condition, before.message) == (status.condition, status.message) else status

    def _publish(self, **parts: object) -> None:
        with self._lock:
            snapshot = msgspec.structs.replace(self.snapshot, **parts)
            if snapshot == self.snapshot:
                return
            self.snapshot = snapshot
        self._call(self._notify)

    def _call(self, work: Callable[..., None], *args: object) -> None:
        """Call `work` in the event loop."""
        if self._loop is not None and not self._loop.is_closed():
            with contextlib.suppress(RuntimeError):  # the loop has just been closed
                self._loop.call_soon_threadsafe(work, *args)

    def _notify_watchers(self, watch: RunWatch) -> None:
        for viewer in list(watch.viewers.values()):
            viewer(watch.detail)

    def _notify(self) -> None:
        for viewer in list(self._viewers.values()):
            viewer(self.snapshot)


def _status(condition: Condition, message: str, hint: str) -> Status:
    return Status(condition=condition, since=time.time(), message=message, hint=hint)
