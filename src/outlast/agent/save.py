"""Commits the checkpoint folder of a program that knows nothing of outlast, and copies its outputs."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from outlast.agent.attempt import Attempt
from outlast.agent.place import Place
from outlast.agent.process import Command
from outlast.agent.whole import SETTLED_S, Snapshot, look, open_for_writing, ready, step_of
from outlast.errors import Missing, StoreUnreachable, WorkspaceError
from outlast.spec.spec import CheckpointSpec
from outlast.workspace.checkpoints import Each, Manifest, Parts, files_of, in_parallel, prune, upload_parts, write_manifest

_LOOK_S = 0.1
# At most this part of the time goes into commits when the user did not say how often.
_SHARE = 0.1
# At most this part of an attempt is lost when it vanishes without notice; also what keeps the story short.
_LOSS = 0.01
_QUICK_BYTES = 16 << 20
_OUTPUTS_EVERY_S = 20.0


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
        self.outputs = place.outputs
        self.every_s = rule.every_s
        self.keep = rule.keep
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
        self._sent: dict[str, tuple[int, int]] = {}
        self._outputs_at = time.monotonic()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def restored(self, manifest: Manifest) -> None:
        """What was just put into the folder needs no commit and no second upload."""
        self.parts.learn(manifest)
        self.committed = look(self.folder)

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
        seen = look(self.folder)
        changed_since = 0.0
        next_at = 0.0
        while not self._stop.wait(_LOOK_S):
            snapshot = look(self.folder)
            if snapshot.files != seen.files:
                seen, self.last_change_at = snapshot, time.monotonic()
                changed_since = changed_since or time.monotonic()
            self._follow_outputs()
            if self._is_committed(snapshot):
                changed_since = 0.0
                continue
            restless_s = time.monotonic() - changed_since if changed_since else 0.0
            if time.monotonic() < next_at or not ready(
                snapshot, now=time.time(), restless_s=restless_s, writers=command.members(), folder=self.folder
            ):
                continue
            began = time.monotonic()
            if self.commit(snapshot):
                changed_since = 0.0
                next_at = began + (self.every_s or self._pause_s(time.monotonic() - began))

    def _pause_s(self, took_s: float) -> float:
        """Until the next commit, if the user did not say: a small part of the time, and of what could be lost."""
        age_s = time.monotonic() - self._began
        return max(1.0, took_s / _SHARE, age_s * _LOSS)

    def commit_quickly(self, command: Command) -> None:
        """At the notice: many programs just die of it. What they have is committed first, if that takes no time."""
        for _ in range(5):
            snapshot = look(self.folder)
            if self._is_committed(snapshot) or sum(size for size, _, _ in snapshot.files.values()) > _QUICK_BYTES:
                return
            whole = ready(snapshot, now=time.time(), restless_s=0.0, writers=command.members(), folder=self.folder)
            if whole and self.commit(snapshot):
                return
            time.sleep(0.01)

    def _is_committed(self, snapshot: Snapshot) -> bool:
        return self.committed is not None and snapshot.files == self.committed.files

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
            if self._is_committed(snapshot) or not snapshot.files:
                return False
            try:
                return self._commit(snapshot)
            except (StoreUnreachable, OSError) as problem:
                self.say(f"checkpoint not committed: {problem}")
                return False

    def _commit(self, snapshot: Snapshot) -> bool:
        parts = upload_parts(self.parts, self.folder, snapshot.paths, each=self.each)
        if look(self.folder).files != snapshot.files:
            # Changed under our hands: a part may carry a body that is not its name's.
            for part in parts:
                self.parts.forget(part.key)
            return False
        step = step_of(snapshot)
        name = f"{self.attempt.number:04d}-{self._count + 1:05d}"
        manifest = Manifest(run=self.attempt.run, checkpoint=name, attempt=self.attempt.number, parts=parts, step=step)
        write_manifest(self.attempt.workspace.bucket, manifest)
        self._count += 1
        if not self.attempt.saved(name, step=step, size=manifest.bytes):
            return False
        self.committed, self.step = snapshot, step
        self._prune()
        return True

    def _prune(self) -> None:
        state = self.attempt.story.state
        try:
            prune(self.attempt.workspace.bucket, self.attempt.run, state.checkpoints, keep=self.keep, parts=self.parts)
        except (Missing, WorkspaceError) as problem:
            self.say(f"old checkpoints stay for now: {problem}")

    def suspect(self, command: Command) -> None:
        """Look, just before the command is told to leave, whether it is in the middle of writing."""
        self._writing = open_for_writing(self.folder, command.members())

    def commit_last(self, *, orderly: bool, died_at: float) -> bool:
        """After the command's end. One that left in order left whole files; one that was killed or crashed may have
        been in the middle of writing, and then only what had settled before is taken."""
        snapshot = look(self.folder)
        if not orderly and (self._writing or died_at - snapshot.changed_at < SETTLED_S):
            return False
        for _ in range(3):
            if self._is_committed(snapshot) or self.commit(snapshot):
                return True
            snapshot = look(self.folder)
        return False

    # Outputs

    def send_outputs(self) -> int:
        """Copy new and changed files to the attempt's own place; how many there are in all. A zombie cannot overwrite
        a later attempt's."""
        bucket, number = self.attempt.workspace.bucket, self.attempt.number
        files = files_of(self.outputs)
        for path, info in files.items():
            mark = (info.st_size, info.st_mtime_ns)
            if self._sent.get(path) == mark:
                continue
            bucket.upload(f"runs/{self.attempt.run}/outputs/{number}/{path}", os.path.join(self.outputs, path))
            self._sent[path] = mark
        return len(files)
