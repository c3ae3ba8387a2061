"""Files from here to a machine: a whole copy first, then every change as it happens. Never deletes what it did not put
there, and never believes an event: it looks at the file."""

from __future__ import annotations

import os
import queue
import stat
import threading
import time
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

from outlast.errors import OutlastError
from outlast.machines.ssh import Link
from outlast.sync import events as told
from outlast.sync.channel import Channel, LinkLost
from outlast.sync.copy import CopyResult, Rsync
from outlast.sync.events import Tell
from outlast.sync.remote_dir import RemoteDir, greet
from outlast.sync.select import RULES, Judge, Mark, below, mark_of

# What goes through the pipe at once; more than that is a burst, and rsync's.
_FEW, _FEW_BYTES = 300, 8 << 20
_LARGE_BYTES = 4 << 20
# A program that opens a file to write it anew empties it first. An empty file is given so long to be filled.
_SETTLE_S = 0.03
_PING_S = 10.0
_SILENCE_S = 30.0


class Push:
    """One connection's worth of sync. `there` is what the other side has, as far as it said so."""

    def __init__(self, root: str, link: Link, place: RemoteDir, *, inbox: queue.SimpleQueue[Any], tell: Tell) -> None:
        self.root = root
        self.place = place
        self.tell = tell
        self.inbox = inbox
        self.judge = Judge(root)
        self.rules_changed = False
        self.there: dict[str, Mark] = {}
        self.troubled: dict[str, str] = {}
        self._pipe = Channel(
            link.argv(options=("-o", "ControlPath=none")), heard=lambda answer: inbox.put((self, answer))
        )
        self._rsync: Rsync | None = None
        self._flying: dict[int, tuple[str, Mark | None]] = {}
        self._busy: dict[str, bool] = {}  # path → whether it is to be looked at again when it has landed
        self._later: dict[str, float] = {}
        self._refused: dict[str, Mark] = {}
        self._heard_at = self._pinged_at = time.monotonic()
        with ExitStack() as undo:
            undo.callback(self.close)
            self.greeting = greet(self._pipe, place, name=link.name)
            self._destination = f"{link.host}:{self.greeting.root}/"
            self._rsync = Rsync(link.rsync_shell())
            undo.pop_all()

    # The whole

    def copy_all(self, marks: dict[str, Mark]) -> CopyResult:
        """Everything that is here, there; then, if asked for, what we put there once and is here no more goes."""
        paths = self._announce(marks)
        result = self._copy(paths)
        self._note_copied(paths, marks, result)
        if self.place.delete:
            for path in self.greeting.owned:
                if path not in marks and not self._is_here(path):
                    self._drop(path)
            self.settle()
        return result

    def _announce(self, marks: dict[str, Mark]) -> list[str]:
        """What of it may be copied; the other side takes it for ours from now on."""
        paths = self._open_to_us(list(marks))
        self._pipe.ask("own", paths=paths)
        return paths

    def _copy(self, paths: list[str]) -> CopyResult:
        assert self._rsync is not None
        scratch = f"--temp-dir={self.greeting.scratch}"
        return self._rsync.copy(f"{self.root}/", self._destination, paths, options=(scratch,))

    def _note_copied(self, paths: list[str], marks: dict[str, Mark], result: CopyResult) -> None:
        self.there.update((path, marks[path]) for path in paths)
        for problem in result.problems:
            self._trouble(problem, "")

    def _open_to_us(self, paths: list[str]) -> list[str]:
        """Without those below something there that is no folder and not ours: rsync would put one in its place."""
        folders = _folders_of(paths)
        found = self._pipe.ask("conflicts", folders=sorted(folders))["found"]
        for folder, kind in found.items():
            self._trouble(folder + "/", f"it is {kind} there, and was not put there by us")
        closed = tuple(folder + "/" for folder in found)
        return [path for path in paths if not path.startswith(closed)] if closed else paths

    def settle(self) -> None:
        """Until everything that was sent has been answered."""
        while self._flying:
            self.serve_once(timeout_s=_SILENCE_S)

    # What changes

    def serve_once(self, *, timeout_s: float) -> None:
        """Wait for one thing to happen, and deal with it. Raises LinkLost."""
        due_s = min(self._later.values(), default=time.monotonic() + timeout_s) - time.monotonic()
        try:
            source, item = self.inbox.get(timeout=max(0.0, min(timeout_s, due_s)))
        except queue.Empty:
            source, item = None, None
        if source == "changed":
            self.examine({path[len(self.root) + 1 :] for path in item if path.startswith(self.root + "/")})
        elif source == "looked":
            self._compare(item)
        elif source is self:
            self._land(item)
        elif isinstance(source, tuple) and source[0] is self:
            self._copied(source[1], source[2], item)
        now = time.monotonic()
        ripe = {path for path, at in self._later.items() if at <= now}
        if ripe:
            for path in ripe:
                del self._later[path]
            self.examine(ripe)
        self._keep_alive(now)

    def _keep_alive(self, now: float) -> None:
        if now - self._pinged_at > _PING_S:
            self._pinged_at = now
            self._flying[self._pipe.send("ping")] = ("", None)
        if self._flying and now - max(self._heard_at, self._pinged_at) > _SILENCE_S:
            raise LinkLost("the machine does not answer")

    def examine(self, paths: set[str]) -> None:
        """Look at these paths, and send what is new, changed or gone."""
        wanted: dict[str, Mark] = {}
        gone: list[str] = []
        folders: list[str] = []
        for path in paths:
            if path.rpartition("/")[2] in RULES:
                self.judge, self.rules_changed = Judge(self.root), True
            try:
                info = os.lstat(os.path.join(self.root, path))
            except OSError:
                gone.append(path)
                continue
            if stat.S_ISDIR(info.st_mode):
                self.judge.forget(path)
                folders.append(path)
                if self.judge.enters(path):
                    wanted.update(below(self.root, path, self.judge))
            elif path in self.there or self._allows(path, info):
                wanted[path] = mark_of(info)
        # A folder that was moved away and made anew: what is missing in it has no event of its own.
        gone += [path for path in self._below(folders) if path not in wanted and not self._is_here(path)]
        if gone:
            self._take_away(gone)
        self._send({path: mark for path, mark in wanted.items() if self._is_news(path, mark)})

    def _allows(self, path: str, info: os.stat_result) -> bool:
        try:
            return self.judge.allows(path, info)
        except OSError:
            return False  # a link that is gone again

    def _is_news(self, path: str, mark: Mark) -> bool:
        return self.there.get(path) != mark and self._refused.get(path) != mark

    def _compare(self, marks: dict[str, Mark]) -> None:
        """All of it was looked at: whatever no event has told."""
        self._send({path: mark for path, mark in marks.items() if self._is_news(path, mark)})
        missing = [path for path in self.there if path not in marks]
        self._take_away([path for path in missing if not self._is_here(path)])

    def _take_away(self, gone: list[str]) -> None:
        """Those of ours that were at these paths, or below them."""
        self.check_source()
        for path in {*(path for path in gone if path in self.there), *self._below(gone)}:
            if path in self._busy:
                self._busy[path] = True
            elif self.place.delete:
                self._drop(path)
            else:
                del self.there[path]

    def _below(self, folders: list[str]) -> list[str]:
        """Our files in these folders; whatever is in no folder of ours costs nothing."""
        above = tuple(folder + "/" for folder in _folders_of(self.there) & set(folders)) if folders else ()
        return [path for path in self.there if path.startswith(above)] if above else []

    def check_source(self) -> None:
        """A folder that was moved away is not one whose files were deleted."""
        if not os.path.isdir(self.root):
            raise OutlastError(
                f"{self.root} is gone", hint="nothing was deleted on the other side; sync again when it is back"
            )

    def _drop(self, path: str) -> None:
        self._busy[path] = False
        self._flying[self._pipe.send("drop", path=path)] = (path, None)

    def _send(self, wanted: dict[str, Mark]) -> None:
        for path in [path for path in wanted if path in self._busy]:
            self._busy[path] = True
            del wanted[path]
        small = {path: mark for path, mark in wanted.items() if mark[1] <= _LARGE_BYTES}
        if len(small) > _FEW or sum(mark[1] for mark in small.values()) > _FEW_BYTES:
            small = {}
        for path in small:
            self._put(path)
        self._copy_aside({path: mark for path, mark in wanted.items() if path not in small})

    def _put(self, path: str) -> None:
        """One file, read whole: if it changed meanwhile it is read again a moment later."""
        whole = os.path.join(self.root, path)
        try:
            info = os.lstat(whole)
            if stat.S_ISLNK(info.st_mode):
                number = self._pipe.send("link", path=path, target=os.readlink(whole))
            else:
                if info.st_size == 0 and path not in self._later and time.time() - info.st_mtime < _SETTLE_S:
                    self._later[path] = time.monotonic() + _SETTLE_S
                    return
                with open(os.open(whole, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb", 0) as file:
                    body = file.read()
                    after = os.fstat(file.fileno())
                if mark_of(after) != mark_of(info) or len(body) != info.st_size:
                    self._later[path] = time.monotonic() + _SETTLE_S
                    return
                number = self._pipe.send(
                    "put", body, path=path, mode=stat.S_IMODE(info.st_mode), mtime_ns=info.st_mtime_ns
                )
        except FileNotFoundError:
            return  # its event is on the way
        except OSError as problem:
            self._trouble(path, str(problem.strerror))
            return
        self._busy[path] = False
        self._flying[number] = (path, mark_of(info))

    def _copy_aside(self, marks: dict[str, Mark]) -> None:
        """By rsync, in a thread: what is saved meanwhile does not wait for it."""
        if not marks:
            return
        paths = self._announce(marks)
        self._busy.update(dict.fromkeys(paths, False))

        def work() -> None:
            began = time.monotonic()
            try:
                outcome: CopyResult | OutlastError = self._copy(paths)
            except OutlastError as problem:
                outcome = problem
            self.inbox.put(((self, paths, marks), (outcome, time.monotonic() - began)))

        threading.Thread(target=work, daemon=True).start()

    def _copied(self, paths: list[str], marks: dict[str, Mark], item: tuple[CopyResult | OutlastError, float]) -> None:
        outcome, seconds = item
        if isinstance(outcome, OutlastError):
            raise outcome
        again = {path for path in paths if self._busy.pop(path, False)}
        self._note_copied(paths, marks, outcome)
        self.tell(told.Copied(files=len(paths), sent=outcome.sent, bytes=outcome.bytes, seconds=seconds))
        self.examine(again | {path for path in paths if self._differs(path)})

    def _is_here(self, path: str) -> bool:
        return os.path.lexists(os.path.join(self.root, path))

    def _differs(self, path: str) -> bool:
        try:
            return mark_of(os.lstat(os.path.join(self.root, path))) != self.there.get(path)
        except OSError:
            return True

    def _land(self, answer: dict[str, Any]) -> None:
        if not answer:
            raise LinkLost(self._pipe.why())
        self._heard_at = time.monotonic()
        path, mark = self._flying.pop(answer["n"], ("", None))
        if not path:
            return
        again = self._busy.pop(path, False)
        if "refused" in answer:
            if mark is not None:
                self._refused[path] = mark
            self._trouble(path, answer["refused"])
        elif mark is None:
            self.there.pop(path, None)
            self.tell(told.Deleted(path=path))
        else:
            self.there[path] = mark
            self.troubled.pop(path, None)
            since_s = time.time() - mark[3] / 1e9
            self.tell(told.Arrived(path=path, bytes=mark[1], ms=since_s * 1e3 if 0 <= since_s < 60 else 0.0))
        if again or (mark is not None and "refused" not in answer and self._differs(path)):
            self.examine({path})

    def _trouble(self, path: str, why: str) -> None:
        if self.troubled.get(path) != why:
            self.troubled[path] = why
            self.tell(told.Problem(path=path, why=why))

    @property
    def on_its_way(self) -> int:
        return len(self._busy) + len(self._later)

    @property
    def unsent(self) -> int:
        """How many files are on their way, or could not go."""
        return self.on_its_way + len(self.troubled)

    def close(self) -> None:
        if self._rsync is not None:
            self._rsync.stop()
        self._pipe.close()


def _folders_of(paths: Iterable[str]) -> set[str]:
    """Every folder that one of the paths is in."""
    folders: set[str] = set()
    for path in paths:
        while (path := os.path.dirname(path)) and path not in folders:
            folders.add(path)
    return folders
