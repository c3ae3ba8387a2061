"""A sync from start to end, over reconnects and moves to other machines."""

from __future__ import annotations

import os
import queue
import time
from typing import Any

import msgspec

from outlast.errors import CloudUnreachable, UsageError
from outlast.machines.ssh import Link
from outlast.sync import events
from outlast.sync.channel import LinkLost
from outlast.sync.copy import require_rsync
from outlast.sync.events import Emit
from outlast.sync.pull import Pull
from outlast.sync.push import Push
from outlast.sync.remote_dir import RemoteDir
from outlast.sync.select import scan
from outlast.sync.target import MoveCheck, Target, TargetEnded
from outlast.sync.watch import Watcher

_TRIES = 3
_FINISH_S = 2.0


class SyncStatus(msgspec.Struct, kw_only=True):
    """The progress of a sync, which the command prints on Ctrl-C."""

    machine: str = ""
    folder: str = ""
    files: int = 0
    unsent: int = 0
    complete: bool = False


class Sync:
    """Syncs a local folder with a folder on the target's current machine."""

    def __init__(self, root: str, target: Target, remote: RemoteDir, *, watch: bool, emit: Emit) -> None:
        self.root = os.path.realpath(root)
        self.target = target
        self.remote = remote
        self.watch = watch
        self.emit = emit
        self.status = SyncStatus()
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._watcher: Watcher | None = None
        self._skipped: set[str] = set()

    def run(self) -> None:
        """Copy everything; with `watch`, go on until interrupted or until the target has ended."""
        require_rsync()
        tries = 0
        try:
            while True:
                link = self.target.connect(
                    report=lambda why: self.emit(events.WaitingForMachine(why=why)),
                    wait=self.watch and bool(self.status.machine),
                )
                try:
                    self._sync_over(link)
                    return
                except LinkLost as problem:
                    tries = 0 if self.status.complete else tries + 1
                    self.status.complete = False
                    if not self.watch and tries >= _TRIES:
                        raise CloudUnreachable(
                            f"the connection to {link.name} was lost {tries} times: {problem.message}",
                            hint="sync again to continue; complete files are not sent again",
                        ) from problem
                    self.emit(events.ConnectionLost(why=problem.message))
                    time.sleep(min(0.1 * 2**tries, 5.0))
        except TargetEnded as ended:
            self.emit(events.WaitingForMachine(why=ended.message))
            if not self.status.machine:
                raise UsageError(ended.message, hint=ended.hint) from ended
        finally:
            if self._watcher is not None:
                self._watcher.close()

    def _sync_over(self, link: Link) -> None:
        if self.remote.pull:
            self._pull_over(link)
        else:
            self._push_over(link)

    def _push_over(self, link: Link) -> None:
        if self.watch and self._watcher is None:
            self._watcher = Watcher(
                self.root,
                changed=lambda paths: self._inbox.put(("changed", paths)),
                scanned=lambda fingerprints: self._inbox.put(("scanned", fingerprints)),
            )
            self.emit(events.Watching(how=self._watcher.how, why=self._watcher.why))
        push = Push(self.root, link, self.remote, inbox=self._inbox, emit=self.emit)
        try:
            self._report_connected(link, push.greeting.root)
            fingerprints, skipped = scan(self.root)
            for file in skipped:
                if file.path not in self._skipped:
                    self._skipped.add(file.path)
                    self.emit(events.FileSkipped(path=file.path, why=file.why))
            began = time.monotonic()
            result = push.copy_all(fingerprints)
            seconds = time.monotonic() - began
            self._update_status(push)
            self.emit(events.Copied(files=len(fingerprints), sent=result.sent, bytes=result.bytes, seconds=seconds))
            if self.watch:
                self._serve_and_finish(push, link)
        finally:
            self._update_status(push)
            push.close()

    def _serve_and_finish(self, push: Push, link: Link) -> None:
        """Serve until interrupted; then give pending files a moment to arrive."""
        try:
            self._serve(push, link)
        except KeyboardInterrupt:
            deadline = time.monotonic() + _FINISH_S
            while push.pending and time.monotonic() < deadline:
                push.serve_once(timeout_s=0.1)
            raise

    def _serve(self, push: Push, link: Link) -> None:
        move = MoveCheck(self.target, link)
        while True:
            push.serve_once(timeout_s=1.0)
            self._update_status(push)
            if push.rules_changed and self._watcher is not None:
                push.rules_changed = False
                self._watcher.scan_soon()
            if move.due():
                push.check_source()
                if why := move.message():
                    raise LinkLost(why)

    def _update_status(self, push: Push) -> None:
        self.status.files, self.status.unsent = len(push.synced), push.unsent
        self.status.complete = bool(push.synced) and not push.unsent

    def _report_connected(self, link: Link, folder: str) -> None:
        self.status.machine, self.status.folder = link.name, folder
        self.emit(events.Connected(machine=link.name, folder=folder))

    def _pull_over(self, link: Link) -> None:
        pull = Pull(self.root, link, self.remote, emit=self.emit)
        move = MoveCheck(self.target, link)
        try:
            self._report_connected(link, pull.greeting.root)
            while True:
                pull.fetch()
                self.status.files, self.status.complete = len(pull.fetched), True
                if not self.watch:
                    return
                pull.pause()
                if why := move.moved():
                    raise LinkLost(why)
        finally:
            pull.close()


def check_source(path: str) -> None:
    """Raise UsageError unless the path is a readable folder."""
    if not os.path.isdir(path):
        why = "is not a folder" if os.path.lexists(path) else "does not exist"
        raise UsageError(f"`{path}` {why}", hint="pass the folder to sync; the default is the current one")
    if not os.access(path, os.R_OK | os.X_OK):
        raise UsageError(f"`{path}` cannot be read", hint="make it readable, or run the command as its owner")
