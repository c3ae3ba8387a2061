"""The one reader of a workspace for all viewers: two threads that look, and values that are handed to the event loop.

Viewers subscribe; nobody reads the workspace by himself to stay up to date. Without viewers it rests.
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
from outlast.ui.detail import Detail, RunWatch
from outlast.ui.logs import Logs
from outlast.ui.overview_data import Around, OverviewData
from outlast.ui.reader import RunReader
from outlast.ui.views.runs import RunRow
from outlast.workspace import Workspace

# How often the runs are looked at, and what is around them; seconds, here and where every look is a request.
_RUNS_S, _RUNS_FAR_S = 0.5, 1.0
_AROUND_S, _AROUND_FAR_S = 2.0, 15.0
# Without viewers this long nothing is read.
_REST_S = 30.0

Condition = Literal["loading", "live", "offline", "error"]


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """How the reading goes: `offline`, the store does not answer; `error`, it answers and cannot be read."""

    condition: Condition = "loading"
    since: float = 0.0
    message: str = ""
    hint: str = ""
    read: int = 0
    # Whether there are ended runs that are not shown.
    more: bool = False


class FeedState(msgspec.Struct, frozen=True, kw_only=True):
    """All that viewers see at one moment."""

    number: int = 0
    status: Status = Status()
    rows: dict[str, RunRow] = {}
    around: OverviewData = OverviewData()


Viewer = Callable[[FeedState], None]


class Feed:
    """Started once per process. Everything public but `lines` is for the event loop's thread."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.reader = RunReader(workspace)
        self.around = Around(workspace, self.reader.pages)
        self.sight = FeedState(status=Status(since=time.time()))
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
        for name, work in (("runs", self._read_runs), ("around", self._read_around)):
            threading.Thread(target=self._forever, args=(work,), name=f"feed-{name}", daemon=True).start()

    def stop(self) -> None:
        self._stop.set()
        self._wanted.set()

    def subscribe(self, viewer: Viewer) -> Callable[[], None]:
        """Call it after every change, in the event loop; the answer ends it. Comes at once with what there is."""
        number = next(self._numbers)
        self._viewers[number] = viewer
        self._wanted.set()
        viewer(self.sight)

        def leave() -> None:
            self._viewers.pop(number, None)
            self._left_at = time.monotonic()

        return leave

    def follow(self, watch: RunWatch, viewer: Callable[[Detail], None]) -> Callable[[], None]:
        """Call it after every change of this run, in the event loop; the answer ends it. Comes at once if somebody
        else reads this run by now: what he has seen may be newer."""
        number, run, own = next(self._numbers), watch.run, watch
        watch = self._watches.setdefault(run, own)
        watch.viewers[number] = viewer
        if watch is not own:
            viewer(watch.detail)

        def leave() -> None:
            watch.viewers.pop(number, None)
            if not watch.viewers and self._watches.get(run) is watch:
                del self._watches[run]

        return leave

    def watching(self, run: str) -> tuple[RunWatch, bool]:
        """Whoever reads this run already, or one who does it once; whether it is new and must look first."""
        found = self._watches.get(run)
        return (found, False) if found is not None else (RunWatch(self.workspace, self.logs, run), True)

    @property
    def viewers(self) -> int:
        return len(self._viewers)

    def changed_since(self, number: int) -> list[RunRow]:
        """The rows that changed after the sight of this number; 0 for all."""
        changed = self.reader.changed
        return [row for run, row in self.sight.rows.items() if changed.get(run, 0) > number]

    def more(self) -> None:
        """Show more of the ended runs."""
        self.reader.more()

    def lines(self) -> list[LedgerLine]:
        """The books, as `outlast cost` has them. Blocks: for a thread."""
        return self.around.lines(time.time())

    # The threads

    def _forever(self, work: Callable[[], float]) -> None:
        try:
            while not self._stop.is_set():
                began = time.monotonic()
                every_s = work()
                if not self._viewers and time.monotonic() - self._left_at > _REST_S:
                    self._wanted.clear()
                    self._wanted.wait()
                # Half of the time at most: whoever else works on this computer comes first.
                took_s = time.monotonic() - began
                self._stop.wait(max(every_s - took_s, min(took_s, 5.0)))
        finally:
            if (
                not self._stop.is_set()
            ):  # our own bug, whose traceback is in the terminal: say so instead of standing still
                self._publish(status=_status("error", "the reader of the page has stopped", "start `outlast ui` again"))

    def _read_runs(self) -> float:
        with self._telling():
            changed = self.reader.read()
            reader = self.reader
            condition: Condition = "live" if reader.complete else "loading"
            status = Status(
                condition=condition, since=self.sight.status.since, read=len(reader.rows), more=reader.has_more
            )
            if condition != self.sight.status.condition:
                status = msgspec.structs.replace(status, since=time.time())
            if changed or status != self.sight.status:
                self._publish(status=status, rows=reader.rows, number=reader.round)
            for watch in list(self._watches.values()):
                if watch.look():
                    self._call(self._tell_watchers, watch)
        return _RUNS_FAR_S if self.reader.far else _RUNS_S

    def _read_around(self) -> float:
        try:
            self._publish(around=self.around.look())
        except OutlastError as problem:
            # Whether the workspace can be read is for the other thread to tell.
            self._publish(around=msgspec.structs.replace(self.sight.around, problems=(problem.message,)))
        return _AROUND_FAR_S if self.around.far or self.reader.far else _AROUND_S

    @contextlib.contextmanager
    def _telling(self) -> Iterator[None]:
        """What cannot be read is told to the viewers, who keep what they have."""
        try:
            yield
        except StoreUnreachable as problem:
            self._publish(status=self._lasting(_status("offline", problem.message, problem.hint)))
        except OutlastError as problem:
            self._publish(status=self._lasting(_status("error", problem.message, problem.hint)))

    def _lasting(self, status: Status) -> Status:
        """The same trouble goes on since it began."""
        before = self.sight.status
        return before if (before.condition, before.message) == (status.condition, status.message) else status

    def _publish(self, **parts: object) -> None:
        with self._lock:
            sight = msgspec.structs.replace(self.sight, **parts)
            if sight == self.sight:
                return
            self.sight = sight
        self._call(self._tell)

    def _call(self, work: Callable[..., None], *args: object) -> None:
        """In the event loop, soon."""
        if self._loop is not None and not self._loop.is_closed():
            with contextlib.suppress(RuntimeError):  # the loop was closed between the two lines
                self._loop.call_soon_threadsafe(work, *args)

    def _tell_watchers(self, watch: RunWatch) -> None:
        for viewer in list(watch.viewers.values()):
            viewer(watch.detail)

    def _tell(self) -> None:
        for viewer in list(self._viewers.values()):
            viewer(self.sight)


def _status(condition: Condition, message: str, hint: str) -> Status:
    return Status(condition=condition, since=time.time(), message=message, hint=hint)
