"""Sync from a machine to this computer: one full copy, then changes. Deletes only files that it created."""

from __future__ import annotations

import os
import queue
import time
from contextlib import ExitStack
from typing import Any

from outlast.errors import UsageError
from outlast.machines.ssh import Link
from outlast.sync import events
from outlast.sync.channel import Channel, LinkLost
from outlast.sync.copy import Rsync
from outlast.sync.events import Emit
from outlast.sync.receiver import FileReceiver, SyncRefused, parts_of, resolve
from outlast.sync.remote_dir import RemoteDir, greet
from outlast.sync.select import folders_of

# The receiver compares times and sizes only.
_POLL_S = 0.5


class Pull:
    """A pull over one connection. `fetched` has the paths that were copied."""

    def __init__(self, root: str, link: Link, remote: RemoteDir, *, emit: Emit) -> None:
        self.root = root
        self.remote = remote
        self.emit = emit
        self.fetched: set[str] = set()
        self._store = open_store(root, remote)
        self._lost: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._channel = Channel(link.argv(options=("-o", "ControlPath=none")), on_message=self._lost.put)
        self._rsync: Rsync | None = None
        self._swept = False
        with ExitStack() as undo:
            undo.callback(self.close)
            self.greeting = greet(self._channel, remote, name=link.name)
            self._source = f"{link.host}:{self.greeting.root}/"
            self._rsync = Rsync(link.rsync_shell())
            undo.pop_all()

    def fetch(self) -> None:
        """Copy files that changed on the machine since the previous call."""
        answer = self._channel.request("changes")
        sizes: dict[str, int] = {}
        times: dict[str, int] = {}
        for path, size, mtime_ns in answer["fresh"]:
            # Do not trust paths from the machine.
            try:
                parts_of(path)
            except SyncRefused as problem:
                self.emit(events.Problem(path=path, why=problem.message))
                continue
            sizes[path], times[path] = size, mtime_ns
        first = not self.fetched
        if sizes:
            self._copy(sizes, times, first=first)
        elif first:
            self.emit(events.Copied(files=0, sent=0, bytes=0, seconds=0.0))
        self._drop(answer["gone"])

    def _copy(self, sizes: dict[str, int], times: dict[str, int], *, first: bool) -> None:
        began = time.monotonic()
        closed = tuple(folder + "/" for folder in self._store.conflicts(sorted(folders_of(sizes))))
        for folder in closed:
            self.emit(events.Problem(path=folder, why="a file or link that this sync did not create is in the way"))
        paths = [path for path in sizes if not closed or not path.startswith(closed)]
        self._store.claim(paths)
        assert self._rsync is not None
        scratch = os.path.relpath(self._store.scratch, self.root)
        result = self._rsync.copy(
            self._source, self.root + "/", paths, options=("--safe-links", f"--temp-dir={scratch}")
        )
        for problem in result.problems:
            self.emit(events.Problem(path="", why=problem))
        self.fetched.update(paths)
        seconds = time.monotonic() - began
        if first:
            self.emit(events.Copied(files=len(paths), sent=result.sent, bytes=result.bytes, seconds=seconds))
            return
        for path in paths:
            since_s = time.time() - times[path] / 1e9
            self.emit(events.Arrived(path=path, bytes=sizes[path], ms=since_s * 1e3 if 0 <= since_s < 60 else 0.0))

    def _drop(self, gone: list[str]) -> None:
        if not self.remote.delete:
            return
        # The first answer cannot name files that an earlier process fetched and that have since been deleted.
        stale = [] if self._swept else [path for path in self._store.owned if path not in self.fetched]
        self._swept = True
        for path in {*gone, *stale}:
            if self._store.drop(path):
                self.fetched.discard(path)
                self.emit(events.Deleted(path=path))

    def pause(self) -> None:
        """Wait for the poll interval. Raises LinkLost if the connection breaks meanwhile."""
        try:
            if not self._lost.get(timeout=_POLL_S):
                raise LinkLost(self._channel.why())
        except queue.Empty:
            pass

    def close(self) -> None:
        if self._rsync is not None:
            self._rsync.stop()
        self._channel.close()
        self._store.close()


def open_store(root: str, remote: RemoteDir) -> FileReceiver:
    """Open the local destination, by the same rules as on a machine. Raises UsageError."""
    try:
        store = FileReceiver(resolve(root, os.path.expanduser("~")), remote.origin)
        if remote.delete:
            store.check_delete(root)
        store.open()
    except SyncRefused as problem:
        raise UsageError(problem.message, hint=problem.hint) from problem
    except OSError as problem:
        raise UsageError(f"`{root}` cannot be written: {problem.strerror}", hint="name another folder") from problem
    return store
