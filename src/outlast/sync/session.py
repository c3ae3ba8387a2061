"""A sync from its beginning to its end, over as many connections and machines as it takes."""

from __future__ import annotations

import os
import queue
import time
from typing import Any

import msgspec

from outlast.errors import CloudUnreachable, UsageError
from outlast.machines.ssh import Link
from outlast.sync import events as told
from outlast.sync.channel import LinkLost
from outlast.sync.copy import need_rsync
from outlast.sync.events import Tell
from outlast.sync.pull import Pull
from outlast.sync.push import Push
from outlast.sync.remote_dir import RemoteDir
from outlast.sync.select import look
from outlast.sync.target import Over, Target
from outlast.sync.watch import Watcher

_TRIES = 3
_MOVED_S = 5.0
_FINISH_S = 2.0


class SyncConnection(msgspec.Struct, kw_only=True):
    """How things stand, at any moment; what Ctrl-C tells."""

    machine: str = ""
    folder: str = ""
    files: int = 0
    unsent: int = 0
    whole: bool = False


class Sync:
    """One folder here, one folder there."""

    def __init__(self, root: str, target: Target, place: RemoteDir, *, watch: bool, tell: Tell) -> None:
        self.root = os.path.realpath(root)
        self.target = target
        self.place = place
        self.watch = watch
        self.tell = tell
        self.standing = SyncConnection()
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._watcher: Watcher | None = None
        self._left_out: set[str] = set()

    def run(self) -> None:
        """Until everything is there; with `watch`, until it is interrupted or there is nothing to follow any more."""
        need_rsync()
        tries = 0
        try:
            while True:
                link = self.target.connect(
                    report=lambda why: self.tell(told.WaitingForMachine(why=why)),
                    patient=self.watch and bool(self.standing.machine),
                )
                try:
                    self._over(link)
                    return
                except LinkLost as problem:
                    tries = 0 if self.standing.whole else tries + 1
                    self.standing.whole = False
                    if not self.watch and tries >= _TRIES:
                        raise CloudUnreachable(
                            f"the connection to {link.name} was lost {tries} times: {problem.message}",
                            hint="what arrived is there; sync again to go on",
                        ) from problem
                    self.tell(told.ConnectionLost(why=problem.message))
                    time.sleep(min(0.1 * 2**tries, 5.0))
        except Over as over:
            self.tell(told.WaitingForMachine(why=over.message))
            if not self.standing.machine:
                raise UsageError(over.message, hint=over.hint) from over
        finally:
            if self._watcher is not None:
                self._watcher.close()

    def _over(self, link: Link) -> None:
        if self.place.reading:
            self._pull_over(link)
        else:
            self._push_over(link)

    def _push_over(self, link: Link) -> None:
        if self.watch and self._watcher is None:
            self._watcher = Watcher(
                self.root,
                changed=lambda paths: self._inbox.put(("changed", paths)),
                looked=lambda marks: self._inbox.put(("looked", marks)),
            )
            self.tell(told.Watching(how=self._watcher.how, why=self._watcher.why))
        push = Push(self.root, link, self.place, inbox=self._inbox, tell=self.tell)
        try:
            self._connected(link, push.greeting.root)
            marks, left_out = look(self.root)
            for left in left_out:
                if left.path not in self._left_out:
                    self._left_out.add(left.path)
                    self.tell(told.FileSkipped(path=left.path, why=left.why))
            began = time.monotonic()
            result = push.copy_all(marks)
            seconds = time.monotonic() - began
            self._stand(push)
            self.tell(told.Copied(files=len(marks), sent=result.sent, bytes=result.bytes, seconds=seconds))
            if self.watch:
                self._serve_and_finish(push, link)
        finally:
            self._stand(push)
            push.close()

    def _serve_and_finish(self, push: Push, link: Link) -> None:
        """What is on its way when somebody presses Ctrl-C still arrives, if that takes no more than a moment."""
        try:
            self._serve(push, link)
        except KeyboardInterrupt:
            deadline = time.monotonic() + _FINISH_S
            while push.on_its_way and time.monotonic() < deadline:
                push.serve_once(timeout_s=0.1)
            raise

    def _serve(self, push: Push, link: Link) -> None:
        looked_at = time.monotonic()
        while True:
            push.serve_once(timeout_s=1.0)
            self._stand(push)
            if push.rules_changed and self._watcher is not None:
                push.rules_changed = False
                self._watcher.look_soon()
            if time.monotonic() > looked_at + _MOVED_S:
                looked_at = time.monotonic()
                push.check_source()
                if self.target.moved(link):
                    raise LinkLost(f"{self.target.name} has moved to another machine")

    def _stand(self, push: Push) -> None:
        self.standing.files, self.standing.unsent = len(push.there), push.unsent
        self.standing.whole = bool(push.there) and not push.unsent

    def _connected(self, link: Link, folder: str) -> None:
        self.standing.machine, self.standing.folder = link.name, folder
        self.tell(told.Connected(machine=link.name, folder=folder))

    def _pull_over(self, link: Link) -> None:
        pull = Pull(self.root, link, self.place, tell=self.tell)
        looked_at = time.monotonic()
        try:
            self._connected(link, pull.greeting.root)
            while True:
                pull.fetch()
                self.standing.files, self.standing.whole = len(pull.here), True
                if not self.watch:
                    return
                pull.rest()
                if time.monotonic() > looked_at + _MOVED_S:
                    looked_at = time.monotonic()
                    if self.target.moved(link):
                        raise LinkLost(f"{self.target.name} has moved to another machine")
        finally:
            pull.close()


def check_source(path: str) -> None:
    """A folder that can be read. Raises UsageError."""
    if not os.path.isdir(path):
        why = "is not a folder" if os.path.lexists(path) else "does not exist"
        raise UsageError(f"`{path}` {why}", hint="name the folder to sync; without a name it is this one")
    if not os.access(path, os.R_OK | os.X_OK):
        raise UsageError(f"`{path}` cannot be read", hint="make it readable, or run this as its owner")
