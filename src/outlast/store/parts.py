"""Parts: the bodies of checkpoints, named by their own sha256, uploaded once. Refuses to name a body it did not hash.

A file is cut at fixed offsets, so that what changes in place changes few of its parts. Each part is read once, and the
bytes that were hashed are the bytes that are stored: a file that changes meanwhile spoils the commit, never a part.
Small files share parts, which are called packs (`packs.py`).
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable, Mapping

import msgspec

from outlast.store.bucket import Bucket

# Smaller ones find more that is unchanged, and cost more calls: ARCHITECTURE.md has the figures. Times the threads of
# `each`: the memory.
PART_BYTES = 4 << 20


# No garbage collection of cycles: there are none, and with 100,000 of these it took a tenth of a commit.
class Part(msgspec.Struct, frozen=True, gc=False):
    """A piece of a file: where its body is, and what it must be."""

    key: str
    sha256: str
    bytes: int


class StoredFile(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One file of a checkpoint: where it goes, and its parts in order; an empty file has none."""

    path: str
    parts: tuple[Part, ...] = ()
    executable: bool = False
    # The target of a symbolic link, which has no parts.
    link: str = ""
    # A small file: `size` bytes from offset `at` of its only part, a pack that holds other files as well.
    at: int = 0
    size: int | None = None

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts) if self.size is None else self.size


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
        # Small files in packs: see `places`.
        self._places: dict[bytes, tuple[Part, int]] = {}
        # In the bucket, and not yet settled.
        self._fresh: dict[str, str] = {}
        self._lock = threading.Lock()

    def learn(self, files: Iterable[StoredFile], digests: Mapping[str, bytes] | None = None) -> None:
        """What was just restored. Forgets what was restored before it, which may be old enough to be deleted by now.

        `digests` maps the paths of small files to their sha256; without it, packs are known as a whole only.
        """
        files, digests = tuple(files), digests or {}
        restored = {part.sha256: part.key for file in files for part in file.parts}
        whole = {
            bytes.fromhex(f.parts[0].sha256): (f.parts[0], 0) for f in files if len(f.parts) == 1 and f.size is None
        }
        small = {digests[f.path]: (f.parts[0], f.at) for f in files if f.size is not None and f.path in digests}
        with self._lock:
            self._known = {digest: key for digest, key in self._known.items() if key in self.own} | restored
            self._places |= whole | small

    def places(self) -> dict[bytes, tuple[Part, int]]:
        """The small files that the bucket holds: sha256 → pack and offset. Packs that are stored are added to it.

        Ask again for each upload: entries of parts that were deleted or not settled since are dropped.
        """
        with self._lock:
            keys = {*self._known.values(), *self._fresh.values()}
            self._places = {digest: place for digest, place in self._places.items() if place[0].key in keys}
            return self._places

    def store_pack(self, body: memoryview, offsets: Mapping[bytes, int]) -> None:
        """Store a pack; `offsets` maps the sha256 of each file in it to its offset."""
        part = self.store(body)
        with self._lock:
            self._places.update({digest: (part, at) for digest, at in offsets.items()})

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

    def make_durable(self) -> None:
        """What was stored survives a power cut from now on. If that fails nobody knows what is there: it is all to be
        uploaded again."""
        with self._lock:
            fresh, self._fresh = self._fresh, {}
        if fresh:
            self.bucket.make_durable(sorted(fresh.values()))
        with self._lock:
            self._known |= fresh
