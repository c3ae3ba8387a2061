"""Parts: the bodies of checkpoints, named by their own sha256, uploaded once. Refuses to name a body it did not hash.

A file is cut at fixed offsets, so that what changes in place changes few of its parts. Each part is read once, and the
bytes that were hashed are the bytes that are stored: a file that changes meanwhile spoils the commit, never a part.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterable, Sequence

import msgspec

from outlast.workspace import direct
from outlast.workspace.bucket import Bucket
from outlast.workspace.each import Each, in_parallel

# Smaller ones find more that is unchanged, and cost more calls: ARCHITECTURE.md has the figures. Times the threads of
# `each`: the memory.
PART_BYTES = 4 << 20


class Part(msgspec.Struct, frozen=True):
    """A piece of a file: where its body is, and what it must be."""

    key: str
    sha256: str
    bytes: int


class File(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a checkpoint: where it goes, and its parts in order; an empty file has none."""

    path: str
    parts: tuple[Part, ...] = ()
    executable: bool = False
    # A link to another place of the same checkpoint; it has no parts.
    link: str = ""

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts)


def parts_prefix(run: str) -> str:
    return f"runs/{run}/parts/"


class Parts:
    """The parts that one attempt may name without uploading them again: its own, and those of what it restored.

    Not those of the whole bucket: another attempt may be about to delete them.
    """

    def __init__(self, bucket: Bucket, run: str, attempt: int) -> None:
        self.bucket = bucket
        self.run = run
        self.attempt = attempt
        # Every key that this attempt wrote, or tried to, and that was not deleted since.
        self.own: set[str] = set()
        # What kept checkpoints name, by their ids: see `prune`.
        self.named: dict[str, frozenset[str]] = {}
        self._known: dict[str, str] = {}
        # In the bucket, and not yet settled.
        self._fresh: dict[str, str] = {}
        self._lock = threading.Lock()

    def learn(self, files: Iterable[File]) -> None:
        """What was just restored. Forgets what was restored before it, which may be old enough to be deleted by now."""
        restored = {part.sha256: part.key for file in files for part in file.parts}
        with self._lock:
            self._known = {digest: key for digest, key in self._known.items() if key in self.own} | restored

    def forget(self, key: str) -> None:
        """It was deleted: upload this body again when it is needed next."""
        digest = key.rsplit("/", 1)[-1]
        with self._lock:
            self.own.discard(key)
            for names in (self._known, self._fresh):
                if names.get(digest) == key:
                    del names[digest]

    def store(self, body: bytes | memoryview) -> Part:
        """One body into the bucket, once; to be settled. Two threads with the same body at the same time both write it:
        no harm."""
        digest = hashlib.sha256(body).hexdigest()
        key = self._known.get(digest) or self._fresh.get(digest)
        if key is None:
            key = f"{parts_prefix(self.run)}{self.attempt}/{digest}"
            with self._lock:
                self.own.add(key)
            self.bucket.write(key, body)
            # Only now: an upload that failed is to be made again.
            with self._lock:
                self._fresh[digest] = key
        return Part(key, digest, len(body))

    def settle(self) -> None:
        """What was stored survives a power cut from now on. If that fails nobody knows what is there: it is all to be
        uploaded again."""
        with self._lock:
            fresh, self._fresh = self._fresh, {}
        if fresh:
            self.bucket.settle(sorted(fresh.values()))
        with self._lock:
            self._known |= fresh


def upload_files(parts: Parts, folder: str, paths: Sequence[str], *, each: Each = in_parallel) -> tuple[File, ...]:
    """The bodies of all files into the bucket and settled there, large ones in several parts at a time. Raises OSError
    if a file went away. One that changes meanwhile is taken as it was read; that it changed is for the caller to see.
    """
    pieces = [(path, at) for path in paths for at in _offsets(os.path.join(folder, path))]
    # Memory for a part a thread, used again and again so that its pages are there; it begins at a page's beginning, as
    # disks like it.
    rooms: list[memoryview] = []
    stored = each(lambda piece: _store(parts, os.path.join(folder, piece[0]), piece[1], rooms), pieces)
    parts.settle()
    found: dict[str, list[Part]] = {path: [] for path in paths}
    for (path, _), part in zip(pieces, stored, strict=True):
        if part.bytes:
            found[path].append(part)
    return tuple(
        File(path=path, parts=tuple(of), executable=os.access(os.path.join(folder, path), os.X_OK))
        for path, of in found.items()
    )


def _offsets(path: str) -> range:
    # An empty file is opened, too: one that may not be read is to fail and not to come back empty.
    return range(0, max(1, os.stat(path).st_size), PART_BYTES)


def _store(parts: Parts, path: str, at: int, rooms: list[memoryview]) -> Part:
    room = rooms.pop() if rooms else direct.room(PART_BYTES)
    try:
        size = 0
        with open(path, "rb", buffering=0) as file:
            file.seek(at)
            while size < PART_BYTES and (count := file.readinto(room[size:])):
                size += count
        return parts.store(room[:size]) if size else Part("", "", 0)
    finally:
        rooms.append(room)
