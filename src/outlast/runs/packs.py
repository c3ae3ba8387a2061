"""Upload of files: large ones in separate parts, small ones together in packs. No body is uploaded twice.

A pack is a part that contains many small files in sequence. An unchanged file stays in its pack, so a commit uploads
only changed files. When too many packs are mostly unused, their files are packed again (`sparse_packs`).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial

from outlast.runs.folder_listing import Mark
from outlast.store import direct_io, parts
from outlast.store.hashing import read_hashed
from outlast.store.parallel import ParallelMap, in_parallel
from outlast.store.parts import Part, Parts, StoredFile

# Files above this share of a part get separate parts.
_SMALL_SHARE = 4
# Packs that are filled while as many are stored. The memory is twice this number of parts.
_AT_ONCE = 8
# This many packs may be less than half in use before their files are packed again.
_SPARSE_MAX = 16


class Changed(OSError):
    """A file changed since it was listed."""


# A small file: path, sha256, size, and whether it is executable.
_Small = tuple[str, bytes, int, bool]
_Places = dict[bytes, tuple[Part, int]]


class _Pack:
    """A pack in memory, and the offset of each file in it by the file's sha256."""

    def __init__(self, room: memoryview) -> None:
        self.room = room
        self.size = 0
        self.offsets: dict[bytes, int] = {}


def upload_files(
    own: Parts,
    folder: str,
    paths: Sequence[str],
    *,
    each: ParallelMap = in_parallel,
    seen: Mapping[str, Mark] | None = None,
    stored: Mapping[str, tuple[Part, ...]] | None = None,
    once_read: Callable[[], None] = lambda: None,
) -> tuple[StoredFile, ...]:
    """Upload all files and make them durable. Raises OSError if a file was deleted or is not readable.

    A file that changes meanwhile is stored as it was read; a small one listed in `seen` raises Changed instead. Large
    files in `stored` are known to consist of these parts, and are not read.
    `once_read` is called when all files are read, while they are made durable: the caller can check for changes there.
    """
    places, seen = own.places(), seen or {}
    small, large = _upload_small(own, places, folder, paths, each, seen=seen)
    if sparse := sparse_packs(_bytes_in_use(small, places)):
        again = [one[0] for one in small if one[2] and places[one[1]][0].key in sparse]
        repacked, grown = _upload_small(own, places, folder, again, each, seen=seen, avoid=sparse)
        fresh = {one[0]: one for one in repacked}
        small = [fresh.get(one[0], one) for one in small if one[0] not in grown]
        large |= grown
    bodies: dict[str, Sequence[Part]] = {path: of for path, of in (stored or {}).items() if path in large}
    bodies |= _upload_large(own, folder, [path for path in paths if path in large and path not in bodies], each)
    each(lambda job: job(), [own.make_durable, once_read])
    files = {one[0]: _small_file(one, places) for one in small}
    for path, of in bodies.items():
        files[path] = StoredFile(path=path, parts=tuple(of), executable=large[path])
    return tuple(files[path] for path in paths)


def is_small(size: int) -> bool:
    """Return whether a file of this size goes into a pack."""
    return size <= parts.PART_BYTES // _SMALL_SHARE


def sparse_packs(in_use: Mapping[Part, int]) -> frozenset[str]:
    """Return the keys of the packs whose files should be packed again: none, or all that are less than half in use.

    `in_use` maps each pack to the bytes of it that the checkpoint needs. Storage and restores stay within twice the
    bytes of the files, and a restore needs few requests more than it would from full packs.
    """
    sparse = [part for part, size in in_use.items() if size < parts.PART_BYTES // 2]
    unused = sum(part.bytes for part in in_use) - sum(in_use.values())
    if len(sparse) > _SPARSE_MAX or unused > sum(in_use.values()):
        return frozenset(part.key for part in sparse)
    return frozenset()


def _bytes_in_use(small: Iterable[_Small], places: _Places) -> dict[Part, int]:
    packs: dict[str, Part] = {}
    in_use: dict[str, int] = {}
    for digest, size in {digest: size for _, digest, size, _ in small if size}.items():
        part = places[digest][0]
        packs[part.key] = part
        in_use[part.key] = in_use.get(part.key, 0) + size
    return {packs[key]: size for key, size in in_use.items()}


def _small_file(small: _Small, places: _Places) -> StoredFile:
    path, digest, size, executable = small
    if not size:
        return StoredFile(path=path, executable=executable)
    part, at = places[digest]
    if size == part.bytes:
        return StoredFile(path=path, parts=(part,), executable=executable)
    return StoredFile(path=path, parts=(part,), executable=executable, at=at, size=size)


def _upload_small(
    own: Parts,
    places: _Places,
    folder: str,
    paths: Sequence[str],
    each: ParallelMap,
    *,
    seen: Mapping[str, Mark],
    avoid: Collection[str] = (),
) -> tuple[list[_Small], dict[str, bool]]:
    """Read the small files and store those that the bucket lacks, or has only in a pack to `avoid`.

    Also returns the paths of large files, each with whether it is executable. Packs are stored while the next ones are
    filled. One thread reads: the files are in the page cache, and more threads would only wait for each other.
    """
    reader = _Reader(places, folder, paths, seen=seen, avoid=avoid)

    def store(pack: _Pack) -> list[_Pack]:
        if pack.size:
            own.store_pack(pack.room[: pack.size], pack.offsets)
        reader.rooms.append(pack.room)
        return []

    packs = reader.fill()
    while packs:
        jobs: list[Callable[[], list[_Pack]]] = [] if reader.is_done else [reader.fill]
        jobs += [partial(store, pack) for pack in packs]
        packs = [pack for filled in each(lambda job: job(), jobs) for pack in filled]
    return reader.small, reader.large


class _Reader:
    """Reads files in order, fills packs with small ones that are in no pack yet, and collects the large ones."""

    def __init__(
        self,
        places: _Places,
        folder: str,
        paths: Sequence[str],
        *,
        seen: Mapping[str, Mark],
        avoid: Collection[str],
    ) -> None:
        self._places = places
        self._seen = seen
        self._folder = folder
        self._paths = paths
        self._avoid = avoid
        self._next = 0
        self._packed: set[bytes] = set()
        self.rooms: list[memoryview] = []
        self.small: list[_Small] = []
        self.large: dict[str, bool] = {}

    @property
    def is_done(self) -> bool:
        return self._next >= len(self._paths)

    def fill(self) -> list[_Pack]:
        """Fill the next packs, at most `_AT_ONCE`. Raises Changed."""
        packs: list[_Pack] = []
        room, size_max = memoryview(b""), 0
        for number in range(self._next, len(self._paths)):
            path = self._paths[number]
            mark = self._seen.get(path)
            handle = os.open(f"{self._folder}/{path}", os.O_RDONLY | os.O_CLOEXEC)
            try:
                size = os.fstat(handle).st_size if mark is None else mark[0]
                if not is_small(size):
                    self.large[path] = bool(os.fstat(handle).st_mode & 0o100)
                    continue
                if not packs or packs[-1].size + size > size_max:
                    if len(packs) == _AT_ONCE:
                        self._next = number
                        return packs
                    packs.append(_Pack(self.rooms.pop() if self.rooms else direct_io.room(parts.PART_BYTES)))
                    room, size_max = packs[-1].room, parts.PART_BYTES
                at = packs[-1].size
                body = room[at : at + size]
                if os.readv(handle, [body]) != size:
                    body = body[: _read_again(handle, body)]
                # Checked after the read: an unchanged mark means unchanged bytes.
                info = os.fstat(handle)
            finally:
                os.close(handle)
            if mark is not None and (info.st_size, info.st_mtime_ns, info.st_ino) != mark:
                raise Changed(f"`{path}` changed while it was read")
            self._take(path, body, info.st_mode, packs[-1])
        self._next = len(self._paths)
        return packs

    def _take(self, path: str, body: memoryview, mode: int, pack: _Pack) -> None:
        """Add a file that was read, and keep its bytes in the pack unless they are in another one."""
        digest, size = hashlib.sha256(body).digest(), len(body)
        self.small.append((path, digest, size, mode & 0o100 != 0))
        if size and digest not in self._packed and not self._is_stored(digest):
            self._packed.add(digest)
            pack.offsets[digest] = pack.size
            pack.size += size

    def _is_stored(self, digest: bytes) -> bool:
        place = self._places.get(digest)
        return place is not None and place[0].key not in self._avoid


def _read_again(handle: int, into: memoryview) -> int:
    """Read the whole file again from its beginning; return its size."""
    size = 0
    while size < len(into) and (count := os.preadv(handle, [into[size:]], size)):
        size += count
    return size


def _upload_large(own: Parts, folder: str, paths: Sequence[str], each: ParallelMap) -> dict[str, list[Part]]:
    """Store large files in parts, in parallel."""
    pieces = [(path, at) for path in paths for at in _offsets(os.path.join(folder, path))]
    # One page-aligned buffer per thread, reused so that its pages stay mapped.
    rooms: list[memoryview] = []
    stored = each(lambda piece: _store(own, os.path.join(folder, piece[0]), piece[1], rooms), pieces)
    found: dict[str, list[Part]] = {path: [] for path in paths}
    for (path, _), part in zip(pieces, stored, strict=True):
        if part.bytes:
            found[path].append(part)
    return found


def _offsets(path: str) -> range:
    return range(0, os.stat(path).st_size, parts.PART_BYTES)


def _store(own: Parts, path: str, at: int, rooms: list[memoryview]) -> Part:
    room = rooms.pop() if rooms else direct_io.room(parts.PART_BYTES)
    try:
        with open(path, "rb", buffering=0) as file:
            file.seek(at)
            size, digest = read_hashed(file, room[: parts.PART_BYTES])
        return own.store(room[:size], digest) if size else Part("", "", 0)
    finally:
        rooms.append(room)
