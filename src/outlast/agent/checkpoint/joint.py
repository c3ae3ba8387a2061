"""Commits of a distributed run: every machine stores its files, and the leader commits those of one step together.

A checkpoint without the files of every machine that writes some is never committed. A machine writes some if it has
done so in this run. Programs in which rank 0 saves everything are recognised by a second save of rank 0 during which
another machine has still written nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from outlast.agent.checkpoint.commit import Committer, links_of, times_of
from outlast.agent.checkpoint.snapshot import FolderSnapshot, highest_step, step_of
from outlast.agent.node import Node
from outlast.errors import WorkspaceError
from outlast.runs.manifest import Manifest, read_keys
from outlast.runs.nodes import NodeShard
from outlast.runs.retention import kept
from outlast.store.parts import Parts, StoredFile, parts_prefix

# Saves of rank 0 after which a machine that has written nothing is taken for one that never writes.
_SAVES = 2
# The file in which `torch.distributed.checkpoint` records the parts of a checkpoint.
_DCP_INDEX = ".metadata"
_DCP_PART = re.compile(rb"__\d+_\d+\.distcp")
# Exit codes of a command that succeeded, or that handled SIGTERM or SIGINT.
_ORDERLY = (0, 143, 130)


class Incomplete(msgspec.Struct, frozen=True):
    """Why the stored files are not a checkpoint yet."""

    why: str


def matches(own: NodeShard, other: NodeShard) -> bool:
    """Return whether the files of two machines belong to one checkpoint: of the same step, or copies of each other."""
    if own.step is not None and own.step == other.step:
        return True
    return all(own.digests.get(path) == digest for path, digest in other.digests.items())


def merged(shards: Mapping[int, NodeShard]) -> tuple[StoredFile, ...]:
    """Return the files of a checkpoint. A file that several machines wrote equally is there once."""
    files: list[StoredFile] = []
    digests: dict[str, set[str]] = {}
    for rank, shard in sorted(shards.items()):
        for file in shard.files:
            digest = shard.digests.get(file.path, "") or f"link {file.link}"
            known = digests.setdefault(file.path, set())
            if digest not in known:
                known.add(digest)
                files.append(msgspec.structs.replace(file, node=rank))
    return tuple(files)


class JointCommitter(Committer):
    """Stores the files that this machine has written, and not those that it restored for others."""

    def __init__(self, *arguments: Any, node: Node, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.node, self.nodes = node, node.nodes
        # Path → the rank that wrote it, of restored files; and the folder as it was restored.
        self.owners: dict[str, int] = {}
        self.base: FolderSnapshot | None = None

    def restored(self, manifest: Manifest, snapshot: FolderSnapshot) -> None:
        super().restored(manifest, snapshot)
        self.owners = {file.path: file.node for file in manifest.files}
        self.base = snapshot

    def _paths(self, snapshot: FolderSnapshot) -> list[str]:
        return [path for path in snapshot.paths if not self._is_foreign(path, snapshot)]

    def _is_foreign(self, path: str, snapshot: FolderSnapshot) -> bool:
        """Return whether another machine wrote this file, and it is unchanged since it was restored."""
        if self.base is None or self.owners.get(path, self.node.rank) == self.node.rank:
            return False
        return path in self.base.files and snapshot.files.get(path) == self.base.files[path]

    def _shard(self, snapshot: FolderSnapshot, files: tuple[StoredFile, ...]) -> NodeShard:
        times = times_of(snapshot)
        return NodeShard(
            files=files + links_of(snapshot),
            folders=tuple(sorted(snapshot.folders)),
            step=step_of(snapshot),
            changed_ns={file.path: times[file.path] for file in files if file.path in times},
            digests=_digests(self.parts, files),
        )


class MemberCommitter(JointCommitter):
    """Stores shards for the leader. Each has separate parts: the leader deletes those that no checkpoint needs."""

    def commit(self, snapshot: FolderSnapshot, *, copy_first: bool = False) -> bool:
        if not self._paths(snapshot) and not snapshot.databases:
            self.committed = snapshot
            return True
        number, bucket = self.node.shards + 1, self.attempt.workspace.bucket
        place = f"{self.attempt.number}.{self.node.rank}.{number}"
        if self.parts.attempt != place:
            # A repeated commit keeps its parts: to write durable ones again would make them volatile for a moment, in
            # which the leader may already commit them.
            self.parts = Parts(bucket, self.attempt.run, place)
        files = self._upload(snapshot, copy_first=copy_first)
        if files is None:
            return False
        self.outputs.send_few()
        self.node.report_shard(number, self._shard(snapshot, files))
        self.committed, self.step = snapshot, step_of(snapshot)
        return True


class _Stored(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of the leader that is stored and waits for the shards of the others."""

    snapshot: FolderSnapshot
    shard: NodeShard
    # How many snapshots and how many saves were stored with it, and the signs of life of each rank at that time.
    number: int
    saves: int
    beats: dict[int, int]
    # The parts that the index of `torch.distributed.checkpoint` in it names, as (folder, name).
    indexed: frozenset[tuple[str, str]] = frozenset()


class LeaderCommitter(JointCommitter):
    """Commits the leader's files together with the shards of the same step."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        # Ranks that have written files in this run, and ranks that are known to write none.
        self.writers: set[int] = set()
        self.quiet: set[int] = set()
        # Stored snapshots, oldest first: a slow machine may still store the step before the newest.
        self.stored: list[_Stored] = []
        self._numbers = self._saves = 0
        # The snapshot that was stored last; `stored` forgets those that were committed.
        self._last: FolderSnapshot | None = None
        # The number of each rank's shard in the newest checkpoint.
        self._joined: dict[int, int] = {}
        self._shards: dict[tuple[int, int], NodeShard | None] = {}

    def restored(self, manifest: Manifest, snapshot: FolderSnapshot) -> None:
        super().restored(manifest, snapshot)
        if manifest.nodes != self.node.nodes:
            return  # other machines write: they are recognised as in the first attempt
        self.writers = set(manifest.writers - {0})
        self.quiet = set(self.node.others) - self.writers

    def commit(self, snapshot: FolderSnapshot, *, copy_first: bool = False) -> bool:
        if not self.stored or not self.stored[-1].snapshot.equals(snapshot):
            files = self._upload(snapshot, copy_first=copy_first)
            if files is None:
                return False
            self.outputs.send_few()
            self._remember(snapshot, files)
        self.waiting = ""
        self.node.refresh()
        for stored in reversed(self.stored):
            numbers = self._complete(stored)
            if isinstance(numbers, Incomplete):
                self.waiting = self.waiting or numbers.why
                continue
            done = self._commit(stored, numbers)
            newest = stored.snapshot.equals(snapshot)
            if done and newest:
                self.committed, self.waiting = snapshot, ""
            return done and newest
        return False

    def _remember(self, snapshot: FolderSnapshot, files: tuple[StoredFile, ...]) -> None:
        self._numbers += 1
        # A save that was seen before its last file was written is one save with two snapshots.
        self._saves += self._last is None or is_other_save(self._last, snapshot)
        self._last = snapshot
        stored = _Stored(
            snapshot=snapshot,
            shard=self._shard(snapshot, files),
            number=self._numbers,
            saves=self._saves,
            beats={rank: self.node.beats(rank) for rank in self.node.others},
            indexed=indexed_parts(self.folder, snapshot),
        )
        self.stored = [*self.stored[-1:], stored]

    def _complete(self, stored: _Stored) -> dict[int, int] | Incomplete:
        """Return the number of each writer's shard for this snapshot, by rank, or why they are not complete."""
        found: dict[int, int] = {}
        for rank in self.node.others:
            numbers = [n for n in self.node.shard_numbers(rank) if n >= self._joined.get(rank, 0)]
            if not numbers and rank not in self.writers:
                if not self._is_quiet(rank, stored):
                    return Incomplete(f"node {rank} may still write its part of the checkpoint")
                continue
            self.writers.add(rank)
            chosen = next((n for n in reversed(numbers) if self._matches(stored, rank, n)), None)
            if chosen is None:
                step = "" if stored.shard.step is None else f" of step {stored.shard.step}"
                return Incomplete(f"node {rank} has not stored its part{step}" + _hint(stored.shard))
            found[rank] = chosen
        shards = (stored.shard, *(self._shards[one] for one in found.items()))
        present = {
            part for shard in shards if shard is not None for file in shard.files if (part := part_of(file.path))
        }
        if missing := sorted(stored.indexed - present):
            return Incomplete(f"no node has stored `{missing[0][1]}` of `{missing[0][0]}` yet")
        return found

    def _matches(self, stored: _Stored, rank: int, number: int) -> bool:
        if (rank, number) not in self._shards:
            self._shards[rank, number] = self.node.shard(rank, number)
        shard = self._shards[rank, number]
        return shard is not None and matches(stored.shard, shard)

    def _is_quiet(self, rank: int, stored: _Stored) -> bool:
        """Return whether a machine that has stored no shard has none for this snapshot either."""
        end = self.node.end_of(rank)
        if end is not None:
            # A rank that failed because its peer had left may have been about to write its first part.
            orderly = not end.cut and end.exit_code in _ORDERLY
            return not (end.shards or end.unsaved) and (
                orderly or rank in self.quiet or (not end.cut and stored.saves >= _SAVES)
            )
        # Its sign of life must have been written after the snapshot was taken.
        alive = self.node.alive(rank) if self.node.beats(rank) >= stored.beats[rank] + 2 else None
        if alive is None or alive.writes or (rank not in self.quiet and stored.saves < _SAVES):
            return False
        self.quiet.add(rank)
        return True

    def _commit(self, stored: _Stored, numbers: Mapping[int, int]) -> bool:
        shards = {0: stored.shard}
        for rank, number in numbers.items():
            shard = self._shards[rank, number]
            assert shard is not None  # it matched
            shards[rank] = shard
        folders = frozenset(folder for shard in shards.values() for folder in shard.folders)
        files = merged(shards)
        folders -= {file.path for file in files}
        self.stored = [one for one in self.stored if one.number > stored.number]
        times = {path: at for shard in shards.values() for path, at in shard.changed_ns.items()}
        needed = self._needed_nodes(files)
        if not self._record(stored.snapshot, files, folders, changed_ns=times, needed_nodes=needed):
            return False
        self.step = stored.shard.step
        self._joined |= numbers
        self._drop_superseded()
        return True

    def _needed_nodes(self, files: tuple[StoredFile, ...]) -> int:
        """Return the number of nodes with which these files can be resumed; 0: any number.

        A file of another node than the first is a part, of which each node needs its own. With an index,
        `torch.distributed.checkpoint` reads the parts of any number of nodes.
        """
        parts = any(file.node for file in files)
        indexed = any(os.path.basename(file.path) == _DCP_INDEX for file in files)
        return self.node.nodes if parts and not indexed else 0

    def _pending(self) -> frozenset[str]:
        return frozenset(part.key for one in self.stored for file in one.shard.files for part in file.parts)

    def _drop_superseded(self) -> None:
        """Delete the parts of shards that are older than those in the newest checkpoint, unless one needs them."""
        bucket, run = self.attempt.workspace.bucket, self.attempt.run
        named = self.parts.named
        try:
            names = [one.id for one in kept(self.attempt.story.state.checkpoints, self.rule)]
            needed = frozenset[str]().union(*(named.get(name) or read_keys(bucket, run, name) for name in names))
            for rank, joined in self._joined.items():
                for number in [n for n in self.node.shard_numbers(rank) if n < joined]:
                    prefix = f"{parts_prefix(run)}{self.attempt.number}.{rank}.{number}/"
                    for entry in list(bucket.list(prefix)):
                        if entry.key not in needed:
                            bucket.delete(entry.key)
                    self.node.forget_shard(rank, number)
                    self._shards.pop((rank, number), None)
        except WorkspaceError as problem:
            self.report(f"old parts could not be deleted now: {problem}")


def is_other_save(before: FolderSnapshot, after: FolderSnapshot) -> bool:
    """Return whether a later snapshot shows another save: of another step, or with a file that was written again."""
    steps = step_of(before), step_of(after)
    if steps[0] != steps[1]:
        return True
    changed = any(path in after.files and after.files[path] != mark for path, mark in before.files.items())
    return changed or before.databases != after.databases


def part_of(path: str) -> tuple[str, str] | None:
    """Return folder and name of a part of `torch.distributed.checkpoint`; None for any other file."""
    folder, name = os.path.split(path)
    found = _DCP_PART.search(name.encode(errors="surrogateescape"))
    return (folder, found[0].decode()) if found else None


def indexed_parts(folder: str, snapshot: FolderSnapshot) -> frozenset[tuple[str, str]]:
    """Return the parts that the index of the newest checkpoint names, of all nodes; empty without an index.

    An older one may lack parts that other nodes have deleted already.
    """
    indexes = [path for path in snapshot.files if os.path.basename(path) == _DCP_INDEX]
    newest = step_of(snapshot)
    found: set[tuple[str, str]] = set()
    for path in indexes:
        if newest is None or highest_step([path]) == newest:
            try:
                with open(os.path.join(folder, path), "rb") as file:
                    names = _DCP_PART.findall(file.read())
            except OSError:
                continue  # deleted since: the next snapshot lacks it
            found |= {(os.path.dirname(path), name.decode()) for name in names}
    return frozenset(found)


def _hint(own: NodeShard) -> str:
    if own.step is not None:
        return ""
    return ", or other content under the same name: put the step into the names of checkpoint files, such as step-100"


def _digests(parts: Parts, files: tuple[StoredFile, ...]) -> dict[str, str]:
    """Return the sha256 of each file: of its bytes if it is small, else of its parts."""
    small = {(part.key, at): digest.hex() for digest, (part, at) in parts.places().items()}
    found: dict[str, str] = {}
    for file in files:
        if file.size is not None:
            found[file.path] = small.get((file.parts[0].key, file.at), f"{file.parts[0].key} {file.at}")
        else:
            found[file.path] = " ".join(part.sha256 for part in file.parts) or "empty"
    return found
