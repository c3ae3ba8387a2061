"""Commits of a checkpoint folder: file bodies, manifest, then the `Saved` event; old checkpoints are pruned."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Mapping

from outlast.agent.attempt import AttemptWriter
from outlast.agent.checkpoint.database import copy_database
from outlast.agent.checkpoint.metric import metric_of
from outlast.agent.checkpoint.snapshot import FolderSnapshot, is_unchanged, step_of
from outlast.agent.outputs import OutputSender
from outlast.agent.paths import AttemptPaths
from outlast.errors import WorkspaceError
from outlast.runs.folder_listing import Mark
from outlast.runs.manifest import Manifest, write_manifest
from outlast.runs.packs import Changed, upload_files
from outlast.runs.retention import prune
from outlast.spec.spec import CheckpointSpec
from outlast.store.parallel import ParallelMap, in_parallel
from outlast.store.parts import Part, Parts, StoredFile

# From linux/fs.h: the new file shares the blocks of the old one, where the file system supports that.
_FICLONE = 0x40049409


class Committer:
    """Stores one snapshot at a time for one attempt. The caller serialises commits."""

    def __init__(
        self,
        attempt: AttemptWriter,
        *,
        paths: AttemptPaths,
        rule: CheckpointSpec,
        outputs: OutputSender,
        report: Callable[[str], None],
        each: ParallelMap = in_parallel,
    ) -> None:
        self.attempt = attempt
        self.folder = paths.checkpoints
        self.metrics_file = paths.metrics_file
        self.rule = rule
        self.outputs = outputs
        self.report = report
        self.each = each
        self.parts = Parts(attempt.workspace.bucket, attempt.run, attempt.number)
        self.committed: FolderSnapshot | None = None
        self.step: int | None = None
        # The folder changed before the store had all of it: the next commit stores a copy.
        self.outrun = False
        self._copy = os.path.join(paths.home, "checkpoint-copy")
        self._count = 0
        self._reported_metric = False
        # The machines that save together.
        self.nodes = 1
        # Mark → parts of the large files of the last commit that are never written again.
        self._final: dict[Mark, tuple[Part, ...]] = {}
        # Why a stored snapshot is not committed yet: other machines of the run have not stored theirs.
        self.waiting = ""

    def is_committed(self, snapshot: FolderSnapshot) -> bool:
        return self.committed is not None and snapshot.same(self.committed)

    def is_committed_exactly(self, snapshot: FolderSnapshot) -> bool:
        return self.committed is not None and snapshot.equals(self.committed)

    def commit(self, snapshot: FolderSnapshot, *, copy_first: bool = False) -> bool:
        """Store the snapshot. Returns False if the folder changed meanwhile or a later attempt has fenced this one."""
        files = self._upload(snapshot, copy_first=copy_first)
        if files is None:
            return False
        # A program that resumes from this checkpoint does not write again the outputs that it wrote before it.
        self.outputs.send_few()
        if not self._record(snapshot, files + links_of(snapshot)):
            return False
        self.committed, self.step = snapshot, step_of(snapshot)
        return True

    def restored(self, manifest: Manifest, snapshot: FolderSnapshot) -> None:
        """Record that the folder holds this checkpoint, which needs neither a commit nor an upload."""
        self.parts.learn(manifest.files, manifest.digests)
        self._remember(snapshot, manifest.files)
        self.committed = snapshot

    def _remember(self, snapshot: FolderSnapshot, files: tuple[StoredFile, ...]) -> None:
        """Keep the parts of large final files: an equal mark of a final file later means equal content.

        The trainer library links the pieces of a state that did not change from one checkpoint to the next.
        """
        parts = {file.path: file.parts for file in files if file.parts and file.size is None}
        marks = {path: snapshot.files[path] for path in snapshot.final if path in parts}
        sizes = {path: sum(part.bytes for part in parts[path]) for path in marks}
        self._final = {mark: parts[path] for path, mark in marks.items() if mark[0] == sizes[path]}

    def _stored(self, snapshot: FolderSnapshot) -> dict[str, tuple[Part, ...]]:
        """Return the parts of files that need not be read again."""
        marks = {path: snapshot.files[path] for path in snapshot.final}
        known = {path: self._final[mark] for path, mark in marks.items() if mark in self._final}
        return {path: of for path, of in known.items() if self.parts.are_stored(of)}

    def _record(
        self,
        snapshot: FolderSnapshot,
        files: tuple[StoredFile, ...],
        folders: frozenset[str] = frozenset(),
        *,
        changed_ns: Mapping[str, int] | None = None,
        needed_nodes: int = 0,
    ) -> bool:
        """Write the manifest and `Saved`, and prune. Returns False if a later attempt has fenced this one.

        `changed_ns`: when files of other nodes were changed. `needed_nodes`: the number of nodes with which the
        checkpoint can be resumed; 0: any number.
        """
        step = step_of(snapshot)
        # A new name for each try: the store may have written the last manifest although its answer was lost.
        self._count += 1
        name = f"{self.attempt.number:04d}-{self._count:05d}"
        manifest = Manifest(
            run=self.attempt.run,
            checkpoint=name,
            attempt=self.attempt.number,
            files=files,
            folders=tuple(sorted(snapshot.folders | folders)),
            step=step,
            nodes=self.nodes,
            changed_ns={**(changed_ns or {}), **times_of(snapshot)},
        )
        write_manifest(self.attempt.workspace.bucket, manifest, self.parts)
        if not self.attempt.saved(
            name,
            step=step,
            size=manifest.bytes,
            changed_at=snapshot.changed_at,
            metrics=self._metrics(snapshot, step),
            nodes=needed_nodes,
        ):
            return False
        self._prune(name)
        return True

    def _paths(self, snapshot: FolderSnapshot) -> list[str]:
        """Return the files to store."""
        return snapshot.paths

    def _pending(self) -> frozenset[str]:
        """Return parts that a later commit needs although no checkpoint has them yet."""
        return frozenset()

    def _upload(self, snapshot: FolderSnapshot, *, copy_first: bool) -> tuple[StoredFile, ...] | None:
        """Store all bodies. Returns None if the folder changed meanwhile."""
        # Files before databases: files stay unchanged for a moment only, databases are always consistent.
        files = self._upload_copy(snapshot) if copy_first else self._upload_in_place(snapshot)
        if files is None:
            return None
        self._remember(snapshot, files)
        return files + self._upload_databases(snapshot)

    def _upload_databases(self, snapshot: FolderSnapshot) -> tuple[StoredFile, ...]:
        folder = f"{self._copy}-databases"
        try:
            for path in snapshot.databases:
                copy_database(os.path.join(self.folder, path), os.path.join(folder, path))
            return upload_files(self.parts, folder, list(snapshot.databases), each=self.each)
        finally:
            _discard(folder)

    def _upload_copy(self, snapshot: FolderSnapshot) -> tuple[StoredFile, ...] | None:
        try:
            if not _copy_folder(self.folder, snapshot, self._copy):
                return None
            stored = self._stored(snapshot)
            files = upload_files(self.parts, self._copy, self._paths(snapshot), each=self.each, stored=stored)
        finally:
            _discard(self._copy)
        self.outrun = not is_unchanged(self.folder, snapshot)
        return files

    def _upload_in_place(self, snapshot: FolderSnapshot) -> tuple[StoredFile, ...] | None:
        def compare() -> None:
            self.outrun = not is_unchanged(self.folder, snapshot, read=True)

        try:
            files = upload_files(
                self.parts,
                self.folder,
                self._paths(snapshot),
                each=self.each,
                seen=snapshot.files,
                stored=self._stored(snapshot),
                once_read=compare,
            )
        except Changed:
            self.outrun = True
        return None if self.outrun else files

    def _metrics(self, snapshot: FolderSnapshot, step: int | None) -> dict[str, float]:
        """Return the value by which `keep_best` compares this checkpoint with others."""
        name = self.rule.keep_best.partition(":")[2]
        if not name:
            return {}
        value = metric_of(name, folder=self.folder, paths=snapshot.paths, log=self.metrics_file, step=step)
        if value is not None:
            return {name: value}
        if not self._reported_metric:
            self._reported_metric = True
            self.report(f"keep_best: `{name}` has no logged value up to this step; the checkpoint cannot be the best")
        return {}

    def _prune(self, committed: str) -> None:
        state = self.attempt.story.state
        if not state.checkpoints or state.checkpoints[-1].id != committed:
            return  # a later attempt has taken over, and prunes from now on
        try:
            prune(
                self.attempt.workspace.bucket,
                self.attempt.run,
                state.checkpoints,
                rule=self.rule,
                parts=self.parts,
                pending=self._pending(),
                each=self.each,
            )
        except WorkspaceError as problem:
            self.report(f"old checkpoints could not be deleted now: {problem}")


def times_of(snapshot: FolderSnapshot) -> dict[str, int]:
    """Return when each file was changed, in nanoseconds."""
    return {path: changed_ns for path, (_, changed_ns, _) in snapshot.files.items()}


def links_of(snapshot: FolderSnapshot) -> tuple[StoredFile, ...]:
    return tuple(StoredFile(path=path, link=target) for path, target in sorted(snapshot.links.items()))


def _copy_folder(folder: str, snapshot: FolderSnapshot, target: str) -> bool:
    """Copy the snapshot's files to the folder `target`. Returns False if they changed meanwhile. Raises OSError."""
    _discard(target)
    # The trainer library never writes to a file again: a hard link is as good as a copy.
    copy_one = _link_file if snapshot.from_trainer else _copy_file
    try:
        for path in snapshot.paths:
            new = os.path.join(target, path)
            os.makedirs(os.path.dirname(new), exist_ok=True)
            copy_one(os.path.join(folder, path), new)
    except FileNotFoundError:
        return False
    return is_unchanged(folder, snapshot)


def _discard(folder: str) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def _link_file(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:  # another file system, or one without hard links
        _copy_file(source, target)


def _copy_file(source: str, target: str) -> None:
    with open(source, "rb") as old, open(target, "wb") as new:
        try:
            fcntl.ioctl(new.fileno(), _FICLONE, old.fileno())
        except OSError:
            shutil.copyfileobj(old, new, length=1 << 20)
    shutil.copymode(source, target)
