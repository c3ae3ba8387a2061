"""Commits the checkpoint folder of a program that knows nothing of outlast, and copies its outputs."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator

from outlast.agent.attempt import Attempt
from outlast.agent.database import copy_database, databases_among, with_sides
from outlast.agent.place import Place
from outlast.agent.process import Command
from outlast.agent.score import metric_of
from outlast.agent.still import copy, discard, has_room
from outlast.agent.whole import SETTLED_S, Snapshot, is_there, look, rests, step_of
from outlast.agent.writing import OpenFiles, being_written, but_idle
from outlast.errors import WorkspaceError
from outlast.spec.names import is_meant, with_company
from outlast.spec.spec import CheckpointSpec
from outlast.workspace.bucket import check_key
from outlast.workspace.checkpoints import Manifest, files_of, write_manifest
from outlast.workspace.each import Each, in_parallel
from outlast.workspace.keep import prune
from outlast.workspace.outputs import OF_ATTEMPT
from outlast.workspace.parts import File, Parts, upload_files

_LOOK_S = 0.1
# At most this part of the time goes into commits when the user did not say how often.
_SHARE = 0.1
# At most this part of an attempt is lost when it vanishes without notice; also what keeps the story short.
_LOSS = 0.01
_QUICK_BYTES = 16 << 20
_OUTPUTS_EVERY_S = 20.0
_TROUBLE_S = 1.0


class Saver:
    """The checkpoints and outputs of one attempt. One commit at a time, whoever asks."""

    def __init__(
        self,
        attempt: Attempt,
        *,
        place: Place,
        rule: CheckpointSpec,
        say: Callable[[str], None],
        each: Each = in_parallel,
    ) -> None:
        self.attempt = attempt
        self.folder = place.checkpoints
        self.names = with_company(rule.names)
        self.outputs = place.outputs
        self.metrics_file = place.metrics_file
        self.every_s = rule.every_s
        self.rule = rule
        self.say = say
        self.each = each
        self.parts = Parts(attempt.workspace.bucket, attempt.run, attempt.number)
        self.committed: Snapshot | None = None
        self.last_change_at = time.monotonic()
        self.step: int | None = None
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self._writing = False
        self._count = 0
        self._unjudged = False
        self._sent: dict[str, tuple[int, int]] = {}
        # Outputs that cannot be copied, and why.
        self.unsent: dict[str, str] = {}
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
        self._wondered = False
        self._outputs_at = time.monotonic()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def restored(self, manifest: Manifest) -> None:
        """What was just put into the folder needs no commit and no second upload."""
        self.parts.learn(manifest.files)
        self.committed = look(self.folder, names=self.names)

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
        seen = look(self.folder, names=self.names)
        changed_since = 0.0
        next_at = 0.0
        for pause_s in _pauses_s():
            if self._stop.wait(pause_s):
                return
            snapshot = self._look()
            self._remember_filled(snapshot)
            if not snapshot.same(seen):
                changed_since = changed_since or time.monotonic()
            if snapshot != seen:
                seen, self.last_change_at = snapshot, time.monotonic()
            self._follow_outputs()
            if snapshot.empty or self._is_committed(snapshot):
                changed_since = 0.0
                continue
            restless_s = time.monotonic() - changed_since if changed_since else 0.0
            if time.monotonic() < next_at or not self._is_ready(snapshot, command, restless_s=restless_s):
                continue
            began = time.monotonic()
            if self.commit(snapshot):
                changed_since = 0.0
                next_at = began + (self.every_s or self._pause_s(time.monotonic() - began))
            elif self.trouble:
                next_at = time.monotonic() + _TROUBLE_S

    def _look(self, *, over: bool = False) -> Snapshot:
        return look(self.folder, names=self.names, logs=self._open.logs, databases=self._databases, over=over)

    def _remember_filled(self, snapshot: Snapshot) -> None:
        self._filled = {path for path, (size, _, _) in snapshot.files.items() if size or path in self._filled}

    def _is_ready(self, snapshot: Snapshot, command: Command, *, restless_s: float = 0.0) -> bool:
        if snapshot.named_whole and not snapshot.databases:
            return True
        if snapshot.waits:
            return False
        # Asked each time: what is a log is told by how long it is open, and a database may be closed by now.
        if self._is_being_written(command):
            return False
        if not (self._databases | self._open.logs).isdisjoint(snapshot.files):
            return False  # what has just been opened is taken for what it is at the next look
        return self._databases.issuperset(snapshot.databases) and rests(
            snapshot, now=time.time(), restless_s=restless_s, filled=self._filled
        )

    def _is_being_written(self, command: Command) -> bool:
        found = being_written(self.folder, command.members())
        meant = [path for path in found if is_meant(path, self.names)]
        paths = but_idle(self.folder, meant, now=time.time(), names=self.names)
        self._databases = databases_among(self.folder, paths, known=self._databases)
        self._open.see(paths - with_sides(self._databases), now=time.monotonic())
        if self._open.strange and not self._wondered:
            self._wondered = True
            self.say(f"`{self._open.strange[0]}` stays open for writing: nothing is committed before it is closed")
        return not self._open.paths <= self._open.logs

    def _pause_s(self, took_s: float) -> float:
        """Until the next commit, if the user did not say: a small part of the time, and of what could be lost."""
        age_s = time.monotonic() - self._began
        return max(1.0, took_s / _SHARE, age_s * _LOSS)

    def commit_quickly(self, command: Command) -> None:
        """At the notice: many programs just die of it. What they have is committed first, if that takes no time."""
        for _ in range(5):
            snapshot = self._look()
            if snapshot.empty or self._is_committed(snapshot):
                return  # nothing to save: the command is told at once
            if snapshot.bytes > _QUICK_BYTES:
                return
            if self._is_ready(snapshot, command) and self.commit(snapshot):
                return
            time.sleep(0.01)

    def _is_committed(self, snapshot: Snapshot) -> bool:
        return self.committed is not None and snapshot.same(self.committed)

    def _follow_outputs(self) -> None:
        if time.monotonic() - self._outputs_at < _OUTPUTS_EVERY_S:
            return
        try:
            self.send_outputs()
        except (WorkspaceError, OSError) as problem:
            self.say(f"outputs could not be copied now: {problem}")
        self._outputs_at = time.monotonic()

    # Commits

    def commit(self, snapshot: Snapshot) -> bool:
        """Parts, manifest, `Saved`. False if the folder changed meanwhile, the store is away, or we are fenced."""
        with self._lock:
            if self._is_committed(snapshot) or snapshot.empty:
                return False
            try:
                self.trouble, self.away = "", False
                return self._commit(snapshot)
            except (WorkspaceError, OSError, ValueError) as problem:
                # Whatever it is (a name that is no text, a file that may not be read, a store that says no), the
                # next checkpoint may do without, and a saver that has died saves none.
                self.trouble, self.away = str(problem), isinstance(problem, WorkspaceError)
                self.say(f"checkpoint not committed: {problem}")
                return False

    def _commit(self, snapshot: Snapshot) -> bool:
        if unnamed := [ascii(path) for path in (*snapshot.paths, *snapshot.databases) if _is_no_text(path)]:
            raise ValueError(f"the name of {unnamed[0]} is no text; give it another one")
        files = self._upload(snapshot)
        if files is None:
            return False
        self._send_outputs_so_far()
        links = tuple(File(path=path, link=target) for path, target in sorted(snapshot.links.items()))
        step = step_of(snapshot)
        # A new name for each try: the answer to the last one may have been lost, and its manifest be there.
        self._count += 1
        name = f"{self.attempt.number:04d}-{self._count:05d}"
        manifest = Manifest(
            run=self.attempt.run, checkpoint=name, attempt=self.attempt.number, files=files + links, step=step
        )
        write_manifest(self.attempt.workspace.bucket, manifest)
        if not self.attempt.saved(name, step=step, size=manifest.bytes, metrics=self._metrics(snapshot, step)):
            return False
        self.committed, self.step = snapshot, step
        self._prune(name)
        return True

    def _upload(self, snapshot: Snapshot) -> tuple[File, ...] | None:
        """All bodies, stored. None if the folder changed meanwhile."""
        # The files first: they are as they were seen for a moment only, and databases are whole at any time.
        files = self._upload_files(snapshot)
        return None if files is None else files + self._upload_databases(snapshot)

    def _upload_databases(self, snapshot: Snapshot) -> tuple[File, ...]:
        place = f"{self._still}-databases"
        if snapshot.databases and not has_room(snapshot, place):
            raise OSError("there is no room for a copy of its database: raise `[machine] disk`")
        try:
            for path in snapshot.databases:
                copy_database(os.path.join(self.folder, path), os.path.join(place, path))
            return upload_files(self.parts, place, list(snapshot.databases), each=self.each)
        finally:
            discard(place)

    def _upload_files(self, snapshot: Snapshot) -> tuple[File, ...] | None:
        if self._outrun and self._may_copy(snapshot):
            try:
                if not copy(self.folder, snapshot, self._still):
                    return None
                files = upload_files(self.parts, self._still, snapshot.paths, each=self.each)
            finally:
                discard(self._still)
            self._outrun = not is_there(self.folder, snapshot)
            return files
        files = upload_files(self.parts, self.folder, snapshot.paths, each=self.each)
        self._outrun = not is_there(self.folder, snapshot)
        return None if self._outrun else files

    def _may_copy(self, snapshot: Snapshot) -> bool:
        if has_room(snapshot, self._still):
            return True
        if not self._cramped:
            self.say(
                "checkpoints change before they are stored, and there is no room for copies: raise `[machine] disk`"
            )
        self._cramped = True
        return False

    def _metrics(self, snapshot: Snapshot, step: int | None) -> dict[str, float]:
        """What `keep_best` will judge this checkpoint by."""
        name = self.rule.keep_best.partition(":")[2]
        if not name:
            return {}
        value = metric_of(name, folder=self.folder, paths=snapshot.paths, log=self.metrics_file, step=step)
        if value is None:
            if not self._unjudged:
                self.say(f"keep_best: no number was logged as `{name}` up to here; such checkpoints are not the best")
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
            self.say(f"old checkpoints stay for now: {problem}")

    def suspect(self, command: Command) -> None:
        """Look, just before the command is told to leave, whether it is in the middle of writing."""
        self._writing = self._is_being_written(command)

    def cut_short(self, command: Command) -> None:
        """Kill it, in the middle of whatever it is writing."""
        self.suspect(command)
        command.kill()

    def commit_last(self, *, orderly: bool, died_at: float, within_s: float = 0.0) -> bool:
        """After the command's end. One that left in order left whole files; one that was killed or crashed may have
        been in the middle of writing, and then only what had settled before is taken. A store that is away is waited
        for: there is no later commit that could make up for this one."""
        # Nobody writes any more, and what SQLite left beside a database is a part of it.
        self._outrun, self._databases = False, frozenset()
        snapshot = self._look(over=orderly)
        if not orderly and not snapshot.named_whole and (self._writing or died_at - snapshot.changed_at < SETTLED_S):
            return False
        give_up_at, tries = time.monotonic() + within_s, 3
        while tries and not snapshot.empty and not snapshot.waits:
            if self._is_committed(snapshot) or self.commit(snapshot):
                return True
            if self.away and time.monotonic() < give_up_at:
                time.sleep(min(_TROUBLE_S, within_s / 10))
            else:
                tries -= 1
            snapshot = self._look(over=orderly)
        return False

    # Outputs

    def send_outputs(self) -> int:
        """Copy new and changed files to the attempt's own place; how many there are in all. A zombie cannot overwrite
        a later attempt's. What can never be copied is in `unsent`, and why; the rest is copied all the same."""
        files = files_of(self.outputs)
        for path, info in files.items():
            self._send_output(path, info)
        return len(files)

    def _send_output(self, path: str, info: os.stat_result) -> None:
        mark = (info.st_size, info.st_mtime_ns)
        if self._sent.get(path) == mark:
            return
        source = os.path.join(self.outputs, path)
        # A name that is no text gets one that is.
        shown = os.fsencode(path).decode("utf-8", "backslashreplace")
        key = OF_ATTEMPT.format(run=self.attempt.run, attempt=self.attempt.number) + shown
        try:
            check_key(key)
            with open(source, "rb"):
                pass
        except FileNotFoundError:
            return  # it went away while we looked
        except (WorkspaceError, OSError) as problem:
            self.unsent[shown] = problem.message if isinstance(problem, WorkspaceError) else str(problem.strerror)
            return
        self.attempt.workspace.bucket.upload(key, source)
        self.unsent.pop(shown, None)
        self._sent[path] = mark

    def _send_outputs_so_far(self) -> None:
        """Before a checkpoint is committed: whoever resumes from it will not write again what was written before it.
        A lot of it waits for its turn, so that commits stay short."""
        try:
            files = files_of(self.outputs)
            new = [path for path, info in files.items() if self._sent.get(path) != (info.st_size, info.st_mtime_ns)]
            if sum(files[path].st_size for path in new) <= _QUICK_BYTES:
                for path in new:
                    self._send_output(path, files[path])
        except (WorkspaceError, OSError) as problem:
            self.say(f"outputs could not be copied now: {problem}")


def _is_no_text(name: str) -> bool:
    return any("\ud800" <= sign <= "\udfff" for sign in name)


def _pauses_s() -> Iterator[float]:
    """Between two looks: about `_LOOK_S`, and never the same for long. A program that saves as regularly as we look
    would else be seen in the same moment again and again, which may be the wrong one."""
    for count in itertools.count():
        yield _LOOK_S * (0.6 + 0.8 * (count * 0.618034 % 1.0))
