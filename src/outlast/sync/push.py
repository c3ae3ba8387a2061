"""Sync from this computer to a machine: one full copy, then every change. Deletes only files that it created."""

from __future__ import annotations

import os
import queue
import stat
import threading
import time
from contextlib import ExitStack
from typing import Any

from outlast.errors import OutlastError
from outlast.machines.ssh import Link
from outlast.sync import events
from outlast.sync.channel import Channel, LinkLost
from outlast.sync.copy import CopyResult, Rsync
from outlast.sync.events import Emit
from outlast.sync.remote_dir import RemoteDir, greet
from outlast.sync.select import IGNORE_FILES, Fingerprint, PathFilter, below, fingerprint_of, folders_of

# Larger bursts and larger files go through rsync instead of the channel.
_BURST_FILES, _BURST_BYTES = 300, 8 << 20
_LARGE_BYTES = 4 << 20
# Programs that rewrite a file truncate it first, so wait this long before sending an empty file.
_SETTLE_S = 0.03
_PING_S = 10.0
_SILENCE_S = 30.0


class Push:
    """A push over one connection. `synced` has the fingerprints of files that the receiver has confirmed."""

    def __init__(self, root: str, link: Link, remote: RemoteDir, *, inbox: queue.SimpleQueue[Any], emit: Emit) -> None:
        self.root = root
        self.remote = remote
        self.emit = emit
        self.inbox = inbox
        self.filter = PathFilter(root)
        self.rules_changed = False
        self.synced: dict[str, Fingerprint] = {}
        self.problems: dict[str, str] = {}
        self._channel = Channel(
            link.argv(options=("-o", "ControlPath=none")), on_message=lambda answer: inbox.put((self, answer))
        )
        self._rsync: Rsync | None = None
        self._in_flight: dict[int, tuple[str, Fingerprint | None]] = {}
        self._busy: dict[str, bool] = {}  # path → whether to examine it again once the receiver has answered
        self._recheck_at: dict[str, float] = {}
        self._refused: dict[str, Fingerprint] = {}
        self._answered_at = self._pinged_at = time.monotonic()
        with ExitStack() as undo:
            undo.callback(self.close)
            self.greeting = greet(self._channel, remote, name=link.name)
            self._destination = f"{link.host}:{self.greeting.root}/"
            self._rsync = Rsync(link.rsync_shell())
            undo.pop_all()

    def copy_all(self, fingerprints: dict[str, Fingerprint]) -> CopyResult:
        """Copy everything; with `delete`, also remove files that we created and that no longer exist locally."""
        paths = self._claim(fingerprints)
        result = self._copy(paths)
        self._record_copied(paths, fingerprints, result)
        if self.remote.delete:
            for path in self.greeting.owned:
                if path not in fingerprints and not self._exists_locally(path):
                    self._drop(path)
            self.wait_for_answers()
        return result

    def _claim(self, fingerprints: dict[str, Fingerprint]) -> list[str]:
        """Return the paths that may be copied, after the receiver has recorded them as ours."""
        paths = self._without_conflicts(list(fingerprints))
        self._channel.request("claim", paths=paths)
        return paths

    def _copy(self, paths: list[str]) -> CopyResult:
        assert self._rsync is not None
        scratch = f"--temp-dir={self.greeting.scratch}"
        return self._rsync.copy(f"{self.root}/", self._destination, paths, options=(scratch,))

    def _record_copied(self, paths: list[str], fingerprints: dict[str, Fingerprint], result: CopyResult) -> None:
        self.synced.update((path, fingerprints[path]) for path in paths)
        for problem in result.problems:
            self._report_problem(problem, "")

    def _without_conflicts(self, paths: list[str]) -> list[str]:
        """Leave out paths below a remote file or link that is not ours: rsync would replace it with a folder."""
        folders = folders_of(paths)
        found = self._channel.request("conflicts", folders=sorted(folders))["found"]
        for folder, kind in found.items():
            self._report_problem(folder + "/", f"{kind} that this sync did not create is in the way on the machine")
        closed = tuple(folder + "/" for folder in found)
        return [path for path in paths if not path.startswith(closed)] if closed else paths

    def wait_for_answers(self) -> None:
        """Block until the receiver has answered every request."""
        while self._in_flight:
            self.serve_once(timeout_s=_SILENCE_S)

    def serve_once(self, *, timeout_s: float) -> None:
        """Wait for one item of the inbox and process it. Raises LinkLost."""
        due_s = min(self._recheck_at.values(), default=time.monotonic() + timeout_s) - time.monotonic()
        try:
            source, item = self.inbox.get(timeout=max(0.0, min(timeout_s, due_s)))
        except queue.Empty:
            source, item = None, None
        if source == "changed":
            self.examine({path[len(self.root) + 1 :] for path in item if path.startswith(self.root + "/")})
        elif source == "scanned":
            self._compare(item)
        elif source is self:
            self._on_answer(item)
        elif isinstance(source, tuple) and source[0] is self:
            self._copied(source[1], source[2], item)
        now = time.monotonic()
        ripe = {path for path, at in self._recheck_at.items() if at <= now}
        if ripe:
            for path in ripe:
                del self._recheck_at[path]
            self.examine(ripe)
        self._keep_alive(now)

    def _keep_alive(self, now: float) -> None:
        if now - self._pinged_at > _PING_S:
            self._pinged_at = now
            self._in_flight[self._channel.send("ping")] = ("", None)
        if self._in_flight and now - max(self._answered_at, self._pinged_at) > _SILENCE_S:
            raise LinkLost(f"the machine has not answered for {_SILENCE_S:.0f} s")

    def examine(self, paths: set[str]) -> None:
        """Compare these paths with the last confirmed state, and send the differences."""
        wanted: dict[str, Fingerprint] = {}
        gone: list[str] = []
        folders: list[str] = []
        for path in paths:
            if path.rpartition("/")[2] in IGNORE_FILES:
                self.filter, self.rules_changed = PathFilter(self.root), True
            try:
                info = os.lstat(os.path.join(self.root, path))
            except OSError:
                gone.append(path)
                continue
            if stat.S_ISDIR(info.st_mode):
                self.filter.forget(path)
                folders.append(path)
                if self.filter.enters(path):
                    wanted.update(below(self.root, path, self.filter))
            elif path in self.synced or self._allows(path, info):
                wanted[path] = fingerprint_of(info)
        # Files of a folder that was replaced by another one have no event.
        gone += [path for path in self._below(folders) if path not in wanted and not self._exists_locally(path)]
        if gone:
            self._remove(gone)
        self._send({path: fingerprint for path, fingerprint in wanted.items() if self._is_changed(path, fingerprint)})

    def _allows(self, path: str, info: os.stat_result) -> bool:
        try:
            return self.filter.allows(path, info)
        except OSError:
            return False  # a link that has been deleted meanwhile

    def _is_changed(self, path: str, fingerprint: Fingerprint) -> bool:
        return self.synced.get(path) != fingerprint and self._refused.get(path) != fingerprint

    def _compare(self, fingerprints: dict[str, Fingerprint]) -> None:
        """Send the differences that a full scan found, in case of lost events."""
        self._send(
            {path: fingerprint for path, fingerprint in fingerprints.items() if self._is_changed(path, fingerprint)}
        )
        missing = [path for path in self.synced if path not in fingerprints]
        self._remove([path for path in missing if not self._exists_locally(path)])

    def _remove(self, gone: list[str]) -> None:
        """Forget the synced files at or below these paths; with `delete`, also remove them from the machine."""
        self.check_source()
        for path in {*(path for path in gone if path in self.synced), *self._below(gone)}:
            if path in self._busy:
                self._busy[path] = True
            elif self.remote.delete:
                self._drop(path)
            else:
                del self.synced[path]

    def _below(self, folders: list[str]) -> list[str]:
        """Return the synced files in these folders."""
        above = tuple(folder + "/" for folder in folders_of(self.synced) & set(folders)) if folders else ()
        return [path for path in self.synced if path.startswith(above)] if above else []

    def check_source(self) -> None:
        """Raise if the source folder is missing: its files may have been moved, not deleted."""
        if not os.path.isdir(self.root):
            raise OutlastError(
                f"{self.root} no longer exists",
                hint="nothing was deleted on the machine; sync again once the folder is back",
            )

    def _drop(self, path: str) -> None:
        self._busy[path] = False
        self._in_flight[self._channel.send("drop", path=path)] = (path, None)

    def _send(self, wanted: dict[str, Fingerprint]) -> None:
        for path in [path for path in wanted if path in self._busy]:
            self._busy[path] = True
            del wanted[path]
        small = {path: fingerprint for path, fingerprint in wanted.items() if fingerprint[1] <= _LARGE_BYTES}
        if len(small) > _BURST_FILES or sum(fingerprint[1] for fingerprint in small.values()) > _BURST_BYTES:
            small = {}
        for path in small:
            self._put(path)
        self._copy_in_background({path: fingerprint for path, fingerprint in wanted.items() if path not in small})

    def _put(self, path: str) -> None:
        """Send one file. If it changes while it is read, examine it again later."""
        whole = os.path.join(self.root, path)
        try:
            info = os.lstat(whole)
            if stat.S_ISLNK(info.st_mode):
                number = self._channel.send("link", path=path, target=os.readlink(whole))
            else:
                if info.st_size == 0 and path not in self._recheck_at and time.time() - info.st_mtime < _SETTLE_S:
                    self._recheck_at[path] = time.monotonic() + _SETTLE_S
                    return
                with open(os.open(whole, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb", 0) as file:
                    body = file.read()
                    after = os.fstat(file.fileno())
                if fingerprint_of(after) != fingerprint_of(info) or len(body) != info.st_size:
                    self._recheck_at[path] = time.monotonic() + _SETTLE_S
                    return
                number = self._channel.send(
                    "put", body, path=path, mode=stat.S_IMODE(info.st_mode), mtime_ns=info.st_mtime_ns
                )
        except FileNotFoundError:
            return  # the event of its deletion follows
        except OSError as problem:
            self._report_problem(path, str(problem.strerror))
            return
        self._busy[path] = False
        self._in_flight[number] = (path, fingerprint_of(info))

    def _copy_in_background(self, fingerprints: dict[str, Fingerprint]) -> None:
        """Copy with rsync in a thread, so that other changes do not wait for it."""
        if not fingerprints:
            return
        paths = self._claim(fingerprints)
        self._busy.update(dict.fromkeys(paths, False))

        def work() -> None:
            began = time.monotonic()
            try:
                outcome: CopyResult | OutlastError = self._copy(paths)
            except OutlastError as problem:
                outcome = problem
            self.inbox.put(((self, paths, fingerprints), (outcome, time.monotonic() - began)))

        threading.Thread(target=work, daemon=True).start()

    def _copied(
        self, paths: list[str], fingerprints: dict[str, Fingerprint], item: tuple[CopyResult | OutlastError, float]
    ) -> None:
        outcome, seconds = item
        if isinstance(outcome, OutlastError):
            raise outcome
        again = {path for path in paths if self._busy.pop(path, False)}
        self._record_copied(paths, fingerprints, outcome)
        self.emit(events.Copied(files=len(paths), sent=outcome.sent, bytes=outcome.bytes, seconds=seconds))
        self.examine(again | {path for path in paths if self._differs(path)})

    def _exists_locally(self, path: str) -> bool:
        return os.path.lexists(os.path.join(self.root, path))

    def _differs(self, path: str) -> bool:
        try:
            return fingerprint_of(os.lstat(os.path.join(self.root, path))) != self.synced.get(path)
        except OSError:
            return True

    def _on_answer(self, answer: dict[str, Any]) -> None:
        if not answer:
            raise LinkLost(self._channel.why())
        self._answered_at = time.monotonic()
        path, fingerprint = self._in_flight.pop(answer["n"], ("", None))
        if not path:
            return
        again = self._busy.pop(path, False)
        if "refused" in answer:
            if fingerprint is not None:
                self._refused[path] = fingerprint
            self._report_problem(path, answer["refused"])
        elif fingerprint is None:
            self.synced.pop(path, None)
            self.emit(events.Deleted(path=path))
        else:
            self.synced[path] = fingerprint
            self.problems.pop(path, None)
            since_s = time.time() - fingerprint[3] / 1e9
            self.emit(events.Arrived(path=path, bytes=fingerprint[1], ms=since_s * 1e3 if 0 <= since_s < 60 else 0.0))
        if again or (fingerprint is not None and "refused" not in answer and self._differs(path)):
            self.examine({path})

    def _report_problem(self, path: str, why: str) -> None:
        if self.problems.get(path) != why:
            self.problems[path] = why
            self.emit(events.Problem(path=path, why=why))

    @property
    def pending(self) -> int:
        return len(self._busy) + len(self._recheck_at)

    @property
    def unsent(self) -> int:
        """The number of files that are pending or could not be sent."""
        return self.pending + len(self.problems)

    def close(self) -> None:
        if self._rsync is not None:
            self._rsync.stop()
        self._channel.close()
