"""Parts: the bodies of checkpoints, named by their sha256 and uploaded once.

A file is cut at fixed offsets, so that a change in place affects few parts. Each part is read once, and the hashed
bytes are the stored bytes: a file that changes meanwhile invalidates the commit, never a part. Small files share parts,
which are called packs (`packs.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping

import msgspec

from outlast.store.bucket import Bucket
from outlast.store.hashing import sha256_of

# Smaller parts deduplicate better and cost more requests. The memory is this size times the threads of `each`.
PART_BYTES = 4 << 20


# Without garbage collection of cycles, which took 10 % of a commit with 100,000 parts.
class Part(msgspec.Struct, frozen=True, gc=False):
    """A piece of a file: the key of its body, and its hash and size."""

    key: str
    sha256: str
    bytes: int


class StoredFile(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One file of a checkpoint: its path, and its parts in order; an empty file has none."""

    path: str
    parts: tuple[Part, ...] = ()
    executable: bool = False
    # The target of a symbolic link, which has no parts.
    link: str = ""
    # A small file: `size` bytes from offset `at` of its only part, a pack with other files.
    at: int = 0
    size: int | None = None
    # The rank of the machine that wrote it, in a distributed run. Machines may write different files to one path.
    node: int = 0

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts) if self.size is None else self.size


def parts_prefix(run: str) -> str:
    return f"runs/{run}/parts/"


class Parts:
    """The parts that one attempt may reuse without an upload: its own, and those of the restored checkpoint.

    Other parts in the bucket cannot be reused: another attempt may be about to delete them.
    """

    def __init__(self, bucket: Bucket, run: str, attempt: int | str) -> None:
        self.bucket = bucket
        self.run = run
        # The part of the keys that separates writers.
        self.attempt = attempt
        # Keys that this attempt wrote or tried to write, and has not deleted.
        self.own: set[str] = set()
        # Checkpoint id → keys of its parts, for kept checkpoints; see `prune`.
        self.named: dict[str, frozenset[str]] = {}
        self._known: dict[str, str] = {}
        # Small files in packs: see `places`.
        self._places: dict[bytes, tuple[Part, int]] = {}
        # Written, but not yet durable.
        self._fresh: dict[str, str] = {}
        self._lock = threading.Lock()

    def learn(self, files: Iterable[StoredFile], digests: Mapping[str, bytes] | None = None) -> None:
        """Add the parts of the restored checkpoint; drop those of an earlier restore, which may be deleted by now.

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
        """Return the stored small files: sha256 → pack and offset. `store_pack` adds to this dictionary.

        Call it again for each upload: entries of parts that were deleted, or are not durable, are dropped.
        """
        with self._lock:
            keys = {*self._known.values(), *self._fresh.values()}
            self._places = {digest: place for digest, place in self._places.items() if place[0].key in keys}
            return self._places

    def are_stored(self, parts: Iterable[Part]) -> bool:
        """Return whether all parts are durable and may be reused."""
        with self._lock:
            return all(self._known.get(part.sha256) == part.key for part in parts)

    def store_pack(self, body: memoryview, offsets: Mapping[bytes, int]) -> None:
        """Store a pack; `offsets` maps the sha256 of each file in it to its offset."""
        part = self.store(body)
        with self._lock:
            self._places.update({digest: (part, at) for digest, at in offsets.items()})

    def forget(self, key: str) -> None:
        """Forget a deleted part: its body must be uploaded again when needed."""
        digest = key.rsplit("/", 1)[-1]
        with self._lock:
            self.own.discard(key)
            for names in (self._known, self._fresh):
                if names.get(digest) == key:
                    del names[digest]

    def store(self, body: bytes | memoryview, digest: str = "") -> Part:
        """Store one body unless it is known; it is durable after `make_durable`. Concurrent duplicates are harmless.

        `digest` is its sha256, if the caller has computed it.
        """
        digest = digest or sha256_of(body)
        key = self._known.get(digest) or self._fresh.get(digest)
        if key is None:
            key = f"{parts_prefix(self.run)}{self.attempt}/{digest}"
            with self._lock:
                self.own.add(key)
            self.bucket.write(key, body)
            # Only after the write: a failed upload must be repeated.
            with self._lock:
                self._fresh[digest] = key
        return Part(key, digest, len(body))

    def make_durable(self) -> None:
        """Make all stored parts survive a power cut. After a failure they count as not stored."""
        with self._lock:
            fresh, self._fresh = self._fresh, {}
        if fresh:
            self.bucket.make_durable(sorted(fresh.values()))
        with self._lock:
            self._known |= fresh
