"""Commits the checkpoint folder of a program that knows nothing of outlast, and copies its outputs."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from outlast.agent.attempt import AttemptWriter, Ending
from outlast.agent.checkpoint.copy import copy, discard, has_room
from outlast.agent.checkpoint.database import copy_database, databases_among, with_sides
from outlast.agent.checkpoint.metric import metric_of
from outlast.agent.checkpoint.open_files import OpenFiles, being_written, but_idle
from outlast.agent.checkpoint.ready import (
    FolderSnapshot,
    is_there,
    name_without_text,
    step_of,
    take_snapshot,
    why_incomplete,
    why_left_out,
    why_not,
)
from outlast.agent.checkpoint.unsaved import Unsaved, rest_after_s
from outlast.agent.clock import Clock
from outlast.agent.outputs import OutputSender
from outlast.agent.paths import AttemptPaths
from outlast.agent.process import Command
from outlast.errors import WorkspaceError
from outlast.runs.manifest import Manifest, write_manifest
from outlast.runs.packs import Changed, upload_files
from outlast.runs.retention import prune
from outlast.spec.checkpoint_patterns import is_meant, with_sidecars
from outlast.spec.spec import CheckpointSpec
from outlast.store.parallel import ParallelMap, in_parallel
from outlast.store.parts import Parts, StoredFile

_LOOK_S = 0.1
# At most this part of the time goes into commits when the user did not say how often.
_SHARE = 0.1
# At most this part of an attempt is lost when it vanishes without notice; also what keeps the story short.
_LOSS = 0.01
_QUICK_BYTES = 16 << 20
_OUTPUTS_EVERY_S = 20.0
_TROUBLE_S = 1.0


class Checkpointer:
    """The checkpoints and outputs of one attempt. One commit at a time, whoever asks."""

    def __init__(
        self,
        attempt: AttemptWriter,
        *,
        place: AttemptPaths,
        rule: CheckpointSpec,
        report: Callable[[str], None],
        each: ParallelMap = in_parallel,
        clock: Clock = time,
        lock: AbstractContextManager[object] | None = None,
    ) -> None:
        self.attempt = attempt
        self.clock = clock
        self.folder = place.checkpoints
        self.names = with_sidecars(rule.names)
        self.outputs = place.outputs
        self.metrics_file = place.metrics_file
        self.every_s = rule.every_s
        self.rule = rule
        self.report = report
        self.each = each
        self.parts = Parts(attempt.workspace.bucket, attempt.run, attempt.number)
        self.committed: FolderSnapshot | None = None
        self.last_change_at = self.clock.monotonic()
        self.step: int | None = None
        self._lock = lock or threading.Lock()
        # Files that were open for writing when the command was last signalled, and when that was.
        self._open_at_signal: frozenset[str] = frozenset()
        self._signalled_at = 0.0
        self._count = 0
        self._unjudged = self._wondered = False
        self._sender = OutputSender(attempt.workspace.bucket, attempt.run, attempt.number, folder=place.outputs)
        self.unsent = self._sender.unsent
        # What stood in the way of the last commit, and whether it was the store.
        self.trouble, self.away = "", False
        # Whether the folder changed before the store had taken it: then a copy of it is stored.
        self._outrun = self._cramped = False
        self._still = os.path.join(place.home, "still")
        # Files that were seen with something in them.
        self._filled: set[str] = set()
        self._open = OpenFiles()
        # SQLite's, among the open files.
        self._databases: frozenset[str] = frozenset()
        self.unsaved = Unsaved(self.report, clock=clock.monotonic)
        self._began = self._outputs_at = self.clock.monotonic()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def restored(self, manifest: Manifest) -> None:
        """What was just put into the folder needs no commit and no second upload."""
        self.parts.learn(manifest.files, manifest.digests)
        self.committed = take_snapshot(self.folder, names=self.names)

    # While the command runs

    def follow(self, command: Command) -> None:
        """Commit whole checkpoints in a thread until stopped."""
        self._thread = threading.Thread(target=self._follow, args=(command,), name="saver", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _follow(self, command: Command) -> None:
        seen = take_snapshot(self.folder, names=self.names)
        changed_since = next_at = rest_s = 0.0
        for pause_s in _pauses_s():
            if self._stop.wait(pause_s + rest_s):
                return
            looked_at, began = self.clock.time(), self.clock.monotonic()
            snapshot = self._look()
            rest_s = rest_after_s(self.clock.monotonic() - began)
            self._remember_filled(snapshot)
            if not snapshot.same(seen):
                changed_since = changed_since or self.clock.monotonic()
            if snapshot != seen:
                seen, self.last_change_at = snapshot, self.clock.monotonic()
            self._follow_outputs()
            if snapshot.empty or self._is_committed(snapshot):
                changed_since = 0.0
                self.unsaved.note(why_left_out(snapshot))
                continue
            if self.clock.monotonic() < next_at:
                continue
            restless_s = self.clock.monotonic() - changed_since if changed_since else 0.0
            if why := self._why_not(snapshot, command, now=looked_at, restless_s=restless_s):
                self.unsaved.note(why)
                continue
            began = self.clock.monotonic()
            if self.commit(snapshot):
                changed_since = 0.0
                next_at = began + (self.every_s or self._pause_s(self.clock.monotonic() - began))
            elif self.trouble:
                next_at = self.clock.monotonic() + _TROUBLE_S

    def _look(self, *, over: bool = False) -> FolderSnapshot:
        return take_snapshot(self.folder, names=self.names, logs=self._open.logs, databases=self._databases, over=over)

    def _remember_filled(self, snapshot: FolderSnapshot) -> None:
        self._filled = {path for path, (size, _, _) in snapshot.files.items() if size or path in self._filled}

    def _why_not(self, snapshot: FolderSnapshot, command: Command, *, now: float, restless_s: float = 0.0) -> str:
        """Why this snapshot must not be committed now; empty if it may be. `now`: when it was taken."""
        # Asked each time: what is a log is told by how long it is open, and a database may be closed by now.
        writing = self._being_written(command)
        why = why_not(
            snapshot,
            writing=writing,
            databases=self._databases,
            logs=self._open.logs,
            now=now,
            restless_s=restless_s,
            filled=self._filled,
        )
        # A command that has died holds no file open, however incomplete: `commit_last` judges what it left.
        return why or ("" if snapshot.named_whole or command.is_alive() else "the command has ended")

    def _being_written(self, command: Command) -> frozenset[str]:
        """The files that the program has open for writing and that are no logs."""
        found = being_written(self.folder, command.members())
        meant = [path for path in found if is_meant(path, self.names)]
        paths = but_idle(self.folder, meant, now=self.clock.time(), names=self.names)
        self._databases = databases_among(self.folder, paths, known=self._databases)
        self._open.see(paths - with_sides(self._databases), now=self.clock.monotonic())
        if self._open.strange and not self._wondered:
            self._wondered = True
            self.report(f"`{self._open.strange[0]}` stays open for writing: nothing is committed before it is closed")
        return self._open.paths - self._open.logs

    def _pause_s(self, took_s: float) -> float:
        """Until the next commit, if the user did not say: a small part of the time, and of what could be lost."""
        age_s = self.clock.monotonic() - self._began
        return max(1.0, took_s / _SHARE, age_s * _LOSS)

    def commit_quickly(self, command: Command) -> None:
        """At the notice: many programs just die of it. What they have is committed first, if that takes no time."""
        for _ in range(5):
            if self.commit_if_complete(command, most_bytes=_QUICK_BYTES):
                return
            self.clock.sleep(0.01)

    def commit_if_complete(self, command: Command, *, most_bytes: int) -> bool:
        """Commit the folder if it is complete now. Returns False if another try may succeed."""
        looked_at, snapshot = self.clock.time(), self._look()
        if snapshot.empty or self._is_committed(snapshot) or snapshot.bytes > most_bytes:
            return True
        return not self._why_not(snapshot, command, now=looked_at) and self.commit(snapshot)

    def _is_committed(self, snapshot: FolderSnapshot) -> bool:
        return self.committed is not None and snapshot.same(self.committed)

    def _is_committed_exactly(self, snapshot: FolderSnapshot) -> bool:
        return self.committed is not None and snapshot.equals(self.committed)

    def _follow_outputs(self) -> None:
        if self.clock.monotonic() - self._outputs_at < _OUTPUTS_EVERY_S:
            return
        try:
            self.send_outputs()
        except (WorkspaceError, OSError) as problem:
            self.report(f"outputs could not be copied now: {problem}")
        self._outputs_at = self.clock.monotonic()

    def _send_few_outputs(self) -> None:
        """Before a checkpoint is committed: a program that resumes from it will not write again what it wrote before. A
        lot of it waits for its turn, so that commits stay short."""
        try:
            self._sender.send_few(_QUICK_BYTES)
        except (WorkspaceError, OSError) as problem:
            self.report(f"outputs could not be copied now: {problem}")

    # Commits

    def commit(self, snapshot: FolderSnapshot) -> bool:
        """Parts, manifest, `Saved`. False if the folder changed meanwhile, the store is away, or we are fenced."""
        with self._lock:
            if self._is_committed_exactly(snapshot) or snapshot.empty:
                return False
            try:
                self.trouble, self.away = "", False
                done = self._commit(snapshot)
                self.unsaved.note("" if done else self._why_in_vain())
                return done
            except (WorkspaceError, OSError, ValueError) as problem:
                # Whatever it is (a name that is no text, a file that may not be read, a store that says no), the
                # next checkpoint may do without, and a saver that has died saves none.
                self.trouble, self.away = str(problem), isinstance(problem, WorkspaceError)
                self.report(f"checkpoint not committed: {problem}")
                self.unsaved.note(str(problem))
                return False

    def _why_in_vain(self) -> str:
        room = ", and the disk has no room for copies: raise `[machine] disk`" if self._cramped else ""
        return "files change before they are stored" + room if self._outrun else ""

    def _commit(self, snapshot: FolderSnapshot) -> bool:
        if unnamed := name_without_text(snapshot):
            raise ValueError(f"the name of {unnamed!a} is no text; give it another one")
        files = self._upload(snapshot)
        if files is None:
            return False
        self._send_few_outputs()
        links = tuple(StoredFile(path=path, link=target) for path, target in sorted(snapshot.links.items()))
        step = step_of(snapshot)
        # A new name for each try: the answer to the last one may have been lost, and its manifest be there.
        self._count += 1
        name = f"{self.attempt.number:04d}-{self._count:05d}"
        manifest = Manifest(
            run=self.attempt.run,
            checkpoint=name,
            attempt=self.attempt.number,
            files=files + links,
            folders=tuple(sorted(snapshot.folders)),
            step=step,
        )
        write_manifest(self.attempt.workspace.bucket, manifest, self.parts)
        if not self.attempt.saved(name, step=step, size=manifest.bytes, metrics=self._metrics(snapshot, step)):
            return False
        self.committed, self.step = snapshot, step
        self._prune(name)
        return True

    def _upload(self, snapshot: FolderSnapshot) -> tuple[StoredFile, ...] | None:
        """All bodies, stored. None if the folder changed meanwhile."""
        # The files first: they are as they were seen for a moment only, and databases are whole at any time.
        files = self._upload_files(snapshot)
        return None if files is None else files + self._upload_databases(snapshot)

    def _upload_databases(self, snapshot: FolderSnapshot) -> tuple[StoredFile, ...]:
        place = f"{self._still}-databases"
        if snapshot.databases and not has_room(snapshot, place):
            raise OSError("there is no room for a copy of its database: raise `[machine] disk`")
        try:
            for path in snapshot.databases:
                copy_database(os.path.join(self.folder, path), os.path.join(place, path))
            return upload_files(self.parts, place, list(snapshot.databases), each=self.each)
        finally:
            discard(place)

    def _upload_files(self, snapshot: FolderSnapshot) -> tuple[StoredFile, ...] | None:
        if self._outrun and self._may_copy(snapshot):
            try:
                if not copy(self.folder, snapshot, self._still):
                    return None
                files = upload_files(self.parts, self._still, snapshot.paths, each=self.each)
            finally:
                discard(self._still)
            self._outrun = not is_there(self.folder, snapshot)
            return files

        def compare() -> None:
            self._outrun = not is_there(self.folder, snapshot, read=True)

        try:
            files = upload_files(
                self.parts, self.folder, snapshot.paths, each=self.each, seen=snapshot.files, once_read=compare
            )
        except Changed:
            self._outrun = True
        return None if self._outrun else files

    def _may_copy(self, snapshot: FolderSnapshot) -> bool:
        if has_room(snapshot, self._still):
            return True
        if not self._cramped:
            self.report(
                "checkpoints change before they are stored, and there is no room for copies: raise `[machine] disk`"
            )
        self._cramped = True
        return False

    def _metrics(self, snapshot: FolderSnapshot, step: int | None) -> dict[str, float]:
        """What `keep_best` will judge this checkpoint by."""
        name = self.rule.keep_best.partition(":")[2]
        if not name:
            return {}
        value = metric_of(name, folder=self.folder, paths=snapshot.paths, log=self.metrics_file, step=step)
        if value is None:
            if not self._unjudged:
                self.report(
                    f"keep_best: no number was logged as `{name}` up to here; such checkpoints are not the best"
                )
            self._unjudged = True
            return {}
        return {name: value}

    def _prune(self, committed: str) -> None:
        state = self.attempt.story.state
        if not state.checkpoints or state.checkpoints[-1].id != committed:
            return  # somebody took over just now: what stays is no longer ours to say
        try:
            prune(
                self.attempt.workspace.bucket,
                self.attempt.run,
                state.checkpoints,
                rule=self.rule,
                parts=self.parts,
                each=self.each,
            )
        except WorkspaceError as problem:
            self.report(f"old checkpoints stay for now: {problem}")

    def suspect(self, command: Command) -> None:
        """Note, just before the command is asked to leave, whether it is in the middle of writing."""
        self._open_at_signal = self._being_written(command)
        self._signalled_at = self.clock.time()

    def cut_short(self, command: Command) -> None:
        """Kill it, in the middle of whatever it is writing."""
        self.suspect(command)
        command.kill()

    def commit_last(self, ending: Ending, *, died_at: float, within_s: float = 0.0) -> str:
        """Commit after the command's end. A store that is away is waited for: there is no later commit that could make
        up for this one. Returns why the folder's newest state is not committed; empty if it is."""
        # No process writes any more, and files that SQLite left beside a database are a part of it.
        self._outrun, self._databases = False, frozenset()
        snapshot = self._look(over=ending != "cut")
        if snapshot.empty or self._is_committed_exactly(snapshot):
            return ""
        if why := why_incomplete(
            snapshot, ending, died_at=died_at, open_at_signal=self._open_at_signal, signalled_at=self._signalled_at
        ):
            return why
        give_up_at, tries = self.clock.monotonic() + within_s, 3
        while tries and not snapshot.empty and not snapshot.waits:
            if self._is_committed_exactly(snapshot) or self.commit(snapshot):
                return ""
            if self.away and self.clock.monotonic() < give_up_at:
                self.clock.sleep(min(_TROUBLE_S, within_s / 10))
            else:
                tries -= 1
            snapshot = self._look(over=ending != "cut")
        return self.trouble or "the only checkpoint in the folder is incomplete"

    # Outputs

    def send_outputs(self) -> int:
        """Copy new and changed outputs; how many there are in all. `unsent` names those that cannot be copied."""
        return self._sender.send_all()


def _pauses_s() -> Iterator[float]:
    """Between two looks: about `_LOOK_S`, and never the same for long. A program that saves as regularly as we look
    would else be seen in the same moment again and again, which may be the wrong one."""
    for count in itertools.count():
        yield _LOOK_S * (0.6 + 0.8 * (count * 0.618034 % 1.0))
