"""The checkpoints of one attempt: a loop that scans the folder, decides and commits, and the last commit."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import assert_never

from outlast.agent.attempt import AttemptWriter
from outlast.agent.checkpoint.commit import Committer
from outlast.agent.checkpoint.decide import (
    ONLY_INCOMPLETE,
    Commit,
    CopyFirst,
    Decision,
    Impossible,
    KeepWaiting,
    decide,
    decide_last,
    how_to_commit,
    why_left_out,
)
from outlast.agent.checkpoint.scan import Processes, Scanner
from outlast.agent.checkpoint.snapshot import FolderSnapshot
from outlast.agent.clock import Clock
from outlast.agent.outputs import QUICK_BYTES, OutputSender
from outlast.agent.paths import AttemptPaths
from outlast.agent.process import Command
from outlast.errors import WorkspaceError
from outlast.runs.events import Ending
from outlast.runs.manifest import Manifest
from outlast.spec.checkpoint_patterns import with_sidecars
from outlast.spec.spec import CheckpointSpec
from outlast.store.parallel import ParallelMap, in_parallel

_SCAN_EVERY_S = 0.1
# Without `checkpoint.every`, commits take at most this share of the time.
_COMMIT_SHARE = 0.1
# Without `checkpoint.every`, at most this share of an attempt is lost without a notice; also keeps the story short.
_LOSS_SHARE = 0.01
_RETRY_S = 1.0
# Shorter waits are the ordinary wait for the end of a save.
REPORT_AFTER_S = 120.0
# Scans of the folder take at most this share of the time, with pauses of at most `_REST_MAX_S`.
_SCAN_SHARE = 0.1
_REST_MAX_S = 30.0


class Unsaved:
    """The reason that prevents the next commit, and since when there is one."""

    def __init__(self, report: Callable[[str], None], *, clock: Callable[[], float]) -> None:
        self._report = report
        self._clock = clock
        self._why = ""
        self._since = 0.0

    def note(self, why: str) -> None:
        """Set the reason; empty if a commit succeeded or nothing is to be committed."""
        if why and not self._why:
            self._since = self._clock()
        self._why = why
        if text := self.text:
            minutes = int((self._clock() - self._since) // 60)
            self._report(f"no checkpoint was committed for {minutes} minutes although the folder changes: {text}")

    @property
    def text(self) -> str:
        """The reason, once it has lasted; else empty."""
        return self._why if self._why and self._clock() - self._since >= REPORT_AFTER_S else ""


class Checkpointer:
    """Commits the folder of one attempt whenever it is complete. Commits are serialised, from any thread."""

    def __init__(
        self,
        attempt: AttemptWriter,
        *,
        paths: AttemptPaths,
        rule: CheckpointSpec,
        report: Callable[[str], None],
        each: ParallelMap = in_parallel,
        clock: Clock = time,
        lock: AbstractContextManager[object] | None = None,
        node: int = 0,
        committer_type: Callable[..., Committer] = Committer,
    ) -> None:
        self.clock = clock
        self.report = report
        self.scanner = Scanner(
            paths.checkpoints,
            names=with_sidecars(rule.names),
            home=paths.home,
            report=report,
            clock=clock,
            is_part=node > 0,
        )
        self.outputs = OutputSender(
            attempt.workspace.bucket, attempt.run, attempt.number, folder=paths.outputs, node=node, report=report
        )
        self.committer = committer_type(attempt, paths=paths, rule=rule, outputs=self.outputs, report=report, each=each)
        self.unsaved = Unsaved(report, clock=clock.monotonic)
        self.last_change_at = clock.monotonic()
        # Why the last commit failed, and whether the store was the cause.
        self.trouble, self.store_failed = "", False
        # How long the last commit took.
        self.commit_s = 0.0
        self._every_s = rule.every_s
        self._no_room = False
        self._lock = lock or threading.Lock()
        # Files that were open for writing when the command was last signalled, and when that was.
        self._open_at_signal: frozenset[str] = frozenset()
        self._signalled_at = 0.0
        self._began = clock.monotonic()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def restored(self, manifest: Manifest) -> None:
        """Record that the folder holds this checkpoint, which needs neither a commit nor an upload."""
        self.committer.restored(manifest, self.scanner.scan_folder())

    def has_changes(self) -> bool:
        """Return whether the folder holds more than was restored, complete or not."""
        snapshot, base = self.scanner.scan_folder(), self.committer.committed
        if snapshot.incomplete or snapshot.temporary or self.committer.waiting:
            return True
        return not snapshot.same(base) if base is not None else not snapshot.empty

    # While the command runs

    def follow(self, command: Command) -> None:
        """Commit complete checkpoints in a thread until stopped."""
        self._thread = threading.Thread(target=self._follow, args=(command,), name="saver", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _follow(self, command: Command) -> None:
        now = self.clock.monotonic
        seen = self.scanner.scan_folder()
        changed_since = next_at = rest_s = 0.0
        for pause_s in _pauses_s():
            if self._stop.wait(pause_s + rest_s):
                return
            taken_at, began = self.clock.time(), now()
            snapshot = self.scanner.scan_folder()
            rest_s = rest_after_s(now() - began)
            self.scanner.remember_filled(snapshot)
            if not snapshot.same(seen):
                changed_since = changed_since or now()
            if snapshot != seen:
                seen, self.last_change_at = snapshot, now()
            self.outputs.send_if_due(now)
            if snapshot.empty or self.committer.is_committed(snapshot):
                changed_since = 0.0
                self.unsaved.note(why_left_out(snapshot))
                continue
            if now() < next_at:
                continue
            changing_s = now() - changed_since if changed_since else 0.0
            decision = self._decide(snapshot, command, taken_at=taken_at, changing_s=changing_s)
            began = now()
            if self._carry_out(decision, snapshot):
                changed_since = 0.0
                next_at = began + (self._every_s or self._pause_s(now() - began))
            elif (self.trouble or self.committer.waiting) and not isinstance(decision, KeepWaiting):
                next_at = now() + _RETRY_S

    def _pause_s(self, commit_s: float) -> float:
        """Return the time until the next commit where the user did not set `checkpoint.every`."""
        age_s = self.clock.monotonic() - self._began
        return max(1.0, commit_s / _COMMIT_SHARE, age_s * _LOSS_SHARE)

    def commit_quickly(self, command: Processes) -> None:
        """Commit a small folder before the command receives the notice: many programs die of the signal."""
        for _ in range(5):
            if self.commit_if_complete(command, most_bytes=QUICK_BYTES):
                return
            self.clock.sleep(0.01)

    def commit_if_complete(self, command: Processes, *, most_bytes: int) -> bool:
        """Commit the folder if it is complete now. Returns False if another try may succeed."""
        taken_at, snapshot = self.clock.time(), self.scanner.scan_folder()
        if snapshot.empty or self.committer.is_committed(snapshot) or snapshot.bytes > most_bytes:
            return True
        return self._carry_out(self._decide(snapshot, command, taken_at=taken_at), snapshot)

    def _decide(
        self, snapshot: FolderSnapshot, command: Processes, *, taken_at: float, changing_s: float = 0.0
    ) -> Decision:
        outrun = self.committer.outrun
        return decide(self.scanner.scan(snapshot, command, taken_at=taken_at, changing_s=changing_s, outrun=outrun))

    # Commits

    def commit(self, snapshot: FolderSnapshot) -> bool:
        """Commit a folder that is complete. Returns False if it changed meanwhile, the store failed, or a later attempt
        has fenced this one."""
        free_bytes = self.scanner.free_bytes()
        return self._carry_out(how_to_commit(snapshot, outrun=self.committer.outrun, free_bytes=free_bytes), snapshot)

    def _carry_out(self, decision: Decision, snapshot: FolderSnapshot) -> bool:
        """Return whether the snapshot was committed; else `unsaved` has the reason."""
        match decision:
            case KeepWaiting(reason):
                self.unsaved.note(reason)
                return False
            case Impossible(reason):
                self._fail(reason)
                return False
            case Commit(no_room):
                if no_room and not self._no_room:
                    self.report("checkpoints change before they are stored, and the disk has no room for copies")
                self._no_room |= no_room
                return self._commit(snapshot, copy_first=False)
            case CopyFirst():
                return self._commit(snapshot, copy_first=True)
        assert_never(decision)

    def _commit(self, snapshot: FolderSnapshot, *, copy_first: bool) -> bool:
        with self._lock:
            if self.committer.is_committed_exactly(snapshot) or snapshot.empty:
                return False
            try:
                self.trouble, self.store_failed = "", False
                began = self.clock.monotonic()
                done = self.committer.commit(snapshot, copy_first=copy_first)
                self.commit_s = self.clock.monotonic() - began if done else self.commit_s
                self.unsaved.note("" if done else self.committer.waiting or self._why_outrun())
                return done
            except (WorkspaceError, OSError, ValueError) as problem:
                # An unreadable file or a store that refuses: the next checkpoint may succeed, so the loop must survive.
                self._fail(str(problem), store_failed=isinstance(problem, WorkspaceError))
                return False

    def _fail(self, reason: str, *, store_failed: bool = False) -> None:
        self.trouble, self.store_failed = reason, store_failed
        self.report(f"checkpoint not committed: {reason}")
        self.unsaved.note(reason)

    def _why_outrun(self) -> str:
        if not self.committer.outrun:
            return ""
        room = ", and the disk has no room for copies: raise `[machine] disk`" if self._no_room else ""
        return "files change before they are stored" + room

    # The end of the command

    def record_open_files(self, command: Command) -> None:
        """Record, just before the command receives a signal, which files it is writing."""
        self._open_at_signal = self.scanner.files_being_written(command)
        self._signalled_at = self.clock.time()

    def kill(self, command: Command) -> None:
        """Kill the command, possibly in the middle of a write."""
        self.record_open_files(command)
        command.kill()

    def commit_last(self, ending: Ending, *, died_at: float, within_s: float = 0.0) -> str:
        """Commit after the command's end. Returns why the folder's newest state is not committed; empty if it is.

        Retries for up to `within_s` while the store fails: no later commit can make up for this one.
        """
        self.committer.outrun = False
        self.scanner.forget_databases()
        snapshot = self.scanner.scan_folder(command_ended=ending != "cut")
        if snapshot.empty or self.committer.is_committed_exactly(snapshot):
            return ""
        decision = decide_last(
            snapshot,
            ending,
            died_at=died_at,
            open_at_signal=self._open_at_signal,
            signalled_at=self._signalled_at,
            free_bytes=self.scanner.free_bytes(),
        )
        if isinstance(decision, Impossible):
            return decision.reason
        give_up_at, tries = self.clock.monotonic() + within_s, 3
        while tries and not snapshot.empty and not snapshot.only_incomplete:
            if self.committer.is_committed_exactly(snapshot) or self.commit(snapshot):
                return ""
            if self.store_failed and self.clock.monotonic() < give_up_at:
                self.clock.sleep(min(_RETRY_S, within_s / 10))
            else:
                tries -= 1
            snapshot = self.scanner.scan_folder(command_ended=ending != "cut")
        return self.trouble or self.committer.waiting or ONLY_INCOMPLETE


def _pauses_s() -> Iterator[float]:
    """Yield the pauses between scans: about `_SCAN_EVERY_S`, and varied, so that a program that saves as regularly is
    not always scanned in the middle of its save."""
    for count in itertools.count():
        yield _SCAN_EVERY_S * (0.6 + 0.8 * (count * 0.618034 % 1.0))


def rest_after_s(scan_s: float) -> float:
    """Return the pause after a scan that took `scan_s`."""
    return min(_REST_MAX_S, scan_s * (1 / _SCAN_SHARE - 1))
