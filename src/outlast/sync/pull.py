"""Files from a machine to here: a whole copy first, then what changes there. Deletes only what it put here itself."""

from __future__ import annotations

import os
import queue
import time
from contextlib import ExitStack
from typing import Any

from outlast.errors import UsageError
from outlast.machines.ssh import Link
from outlast.sync import events as told
from outlast.sync.channel import Channel, LinkLost
from outlast.sync.copy import Rsync
from outlast.sync.events import Tell
from outlast.sync.receiver import FileReceiver, WriteRefused, parts_of, resolve
from outlast.sync.remote_dir import RemoteDir, greet

# How often the machine is asked what is new. It looks at times and sizes only.
_ASK_S = 0.5


class Pull:
    """One connection's worth of pulling. `here` is what was fetched."""

    def __init__(self, root: str, link: Link, place: RemoteDir, *, tell: Tell) -> None:
        self.root = root
        self.place = place
        self.tell = tell
        self.here: set[str] = set()
        self._store = open_store(root, place)
        self._lost: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._pipe = Channel(link.argv(options=("-o", "ControlPath=none")), heard=self._lost.put)
        self._rsync: Rsync | None = None
        self._swept = False
        with ExitStack() as undo:
            undo.callback(self.close)
            self.greeting = greet(self._pipe, place, name=link.name)
            self._source = f"{link.host}:{self.greeting.root}/"
            self._rsync = Rsync(link.rsync_shell())
            undo.pop_all()

    def fetch(self) -> None:
        """What is new there since the last time, here."""
        answer = self._pipe.ask("changes")
        sizes: dict[str, int] = {}
        times: dict[str, int] = {}
        for path, size, mtime_ns in answer["fresh"]:
            # The machine is not to be believed about where its files go.
            try:
                parts_of(path)
            except WriteRefused as problem:
                self.tell(told.Problem(path=path, why=problem.message))
                continue
            sizes[path], times[path] = size, mtime_ns
        first = not self.here
        if sizes:
            self._copy(sizes, times, first=first)
        elif first:
            self.tell(told.Copied(files=0, sent=0, bytes=0, seconds=0.0))
        self._drop(answer["gone"])

    def _copy(self, sizes: dict[str, int], times: dict[str, int], *, first: bool) -> None:
        began = time.monotonic()
        folders = {folder for path in sizes for folder in _above(path)}
        closed = tuple(folder + "/" for folder in self._store.conflicts(sorted(folders)))
        for folder in closed:
            self.tell(told.Problem(path=folder, why="it is no folder here, and was not put here by us"))
        paths = [path for path in sizes if not closed or not path.startswith(closed)]
        self._store.own_all(paths)
        assert self._rsync is not None
        scratch = os.path.relpath(self._store.scratch, self.root)
        result = self._rsync.copy(
            self._source, self.root + "/", paths, options=("--safe-links", f"--temp-dir={scratch}")
        )
        for problem in result.problems:
            self.tell(told.Problem(path="", why=problem))
        self.here.update(paths)
        seconds = time.monotonic() - began
        if first:
            self.tell(told.Copied(files=len(paths), sent=result.sent, bytes=result.bytes, seconds=seconds))
            return
        for path in paths:
            since_s = time.time() - times[path] / 1e9
            self.tell(told.Arrived(path=path, bytes=sizes[path], ms=since_s * 1e3 if 0 <= since_s < 60 else 0.0))

    def _drop(self, gone: list[str]) -> None:
        if not self.place.delete:
            return
        # At the first look nothing is `gone`: what we fetched in an earlier life and is there no more.
        stale = [] if self._swept else [path for path in self._store.owned if path not in self.here]
        self._swept = True
        for path in {*gone, *stale}:
            if self._store.drop(path):
                self.here.discard(path)
                self.tell(told.Deleted(path=path))

    def rest(self) -> None:
        """A moment, unless the connection breaks in it."""
        try:
            if not self._lost.get(timeout=_ASK_S):
                raise LinkLost(self._pipe.why())
        except queue.Empty:
            pass

    def close(self) -> None:
        if self._rsync is not None:
            self._rsync.stop()
        self._pipe.close()
        self._store.close()


def open_store(root: str, place: RemoteDir) -> FileReceiver:
    """The folder here that files are pulled into. The same rules as on a machine. Raises UsageError."""
    try:
        store = FileReceiver(resolve(root, os.path.expanduser("~")), place.origin)
        if place.delete and not store.empty and not store.known:
            raise WriteRefused(
                f"`{root}` is not empty, and what is in it was not put here by this sync: `--delete` could delete it",
                "name an empty folder, or leave `--delete` out",
            )
        store.open()
    except WriteRefused as problem:
        raise UsageError(problem.message, hint=problem.hint) from problem
    except OSError as problem:
        raise UsageError(f"`{root}` cannot be written: {problem.strerror}", hint="name another folder") from problem
    return store


def _above(path: str) -> set[str]:
    found = set()
    while path := os.path.dirname(path):
        found.add(path)
    return found
