"""Checkpoint files in pieces with separate hashes, so that several threads write and verify them in parallel."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from outlast.errors import OutlastError
from outlast.store.direct_io import read_large, room, write_large
from outlast.store.hashing import sha256_of

PIECE_BYTES = 16 << 20
_THREADS = 4
# Python has no name for it; Linux and macOS agree.
_MAP_FIXED = 0x10
A = TypeVar("A")
B = TypeVar("B")


class BadCheckpoint(OutlastError):
    """A checkpoint is damaged; the message gives the reason."""


def write(path: str, content: memoryview) -> dict[str, Any]:
    """Write a new file durably. Returns its entry for the marker: size and hashes."""
    with open(path, "xb", buffering=0) as file:
        file.truncate(len(content))

    def one(at: int) -> str:
        piece = content[at : at + PIECE_BYTES]
        # Both release the interpreter lock: one thread hashes while another waits for the disk.
        digest = sha256_of(piece)
        with open(path, "r+b", buffering=0) as file:
            file.seek(at)
            write_large(file, piece)
        return digest

    digests = each(one, range(0, len(content), PIECE_BYTES))
    sync(path)
    return {"bytes": len(content), "piece": PIECE_BYTES, "sha256": digests}


def write_piece(path: str, content: memoryview) -> dict[str, Any]:
    """Write a new file of one piece durably. Returns its entry for the marker."""
    digest = sha256_of(content)
    with open(path, "xb", buffering=0) as file:
        file.truncate(len(content))
        write_large(file, content)
        os.fsync(file.fileno())
    # At least a block, as `_checked` requires.
    return {"bytes": len(content), "piece": max(4096, -(-len(content) // 4096) * 4096), "sha256": [digest]}


def describe(path: str) -> dict[str, Any]:
    """Make a file of the user's code durable. Returns its entry for the marker."""
    size = os.path.getsize(path)
    digests = each(lambda at: _digest(path, at, min(PIECE_BYTES, size - at)), range(0, size, PIECE_BYTES))
    sync(path)
    return {"bytes": size, "piece": PIECE_BYTES, "sha256": digests}


def read(files: Mapping[str, Any]) -> memoryview:
    """Read and verify files, path to entry, one after the other into writable memory. Raises BadCheckpoint."""
    places, total = _laid_out(files)
    content = room(total)

    def one(piece: _Piece) -> bool:
        part = content[piece.target : piece.target + piece.size]
        with open(piece.path, "rb", buffering=0) as file:
            file.seek(piece.at)
            complete = read_large(file, part) == len(part)
        return complete and sha256_of(part) == piece.sha256

    _require(places, each(one, places))
    return content


def mapped(files: Mapping[str, Any]) -> memoryview:
    """Verify files and return their content as writable memory that is backed by them. Raises BadCheckpoint.

    It needs no memory that the kernel cannot drop; changes stay in this process. Do not keep it: the files may be on a
    network, where another machine deletes them.
    """
    places, total = _laid_out(files)
    content = room(total)
    # Every file but the last must end with a page.
    if not total or any(piece.target % mmap.PAGESIZE for piece in places) or not _overlay(content, places):
        return read(files)
    matches = each(lambda one: sha256_of(content[one.target : one.target + one.size]) == one.sha256, places)
    _require(places, matches)
    return content


def _overlay(content: memoryview, places: list[_Piece]) -> bool:
    """Map the files over this memory; return whether that is possible."""
    try:
        import ctypes

        call = ctypes.CDLL(None, use_errno=True).mmap
    except (ImportError, AttributeError, OSError):
        return False
    call.restype = ctypes.c_void_p
    call.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_int64)
    begin = ctypes.addressof(ctypes.c_char.from_buffer(content))
    for piece in places:
        with open(piece.path, "rb") as file:
            rights, flags = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | _MAP_FIXED
            if call(begin + piece.target, piece.size, rights, flags, file.fileno(), piece.at) != begin + piece.target:
                return False
    return True


@dataclass(frozen=True, kw_only=True, slots=True)
class _Piece:
    """A piece of a file, and the offset of its bytes in memory."""

    path: str
    at: int
    size: int
    target: int
    sha256: str


def _laid_out(files: Mapping[str, Any]) -> tuple[list[_Piece], int]:
    """Return the pieces of files that follow each other in memory, and their size. Raises BadCheckpoint."""
    places, total = [], 0
    for path, known in files.items():
        size, piece, digests = _checked(path, known)
        for at, digest in zip(range(0, size, piece), digests, strict=True):
            places.append(_Piece(path=path, at=at, size=min(piece, size - at), target=total + at, sha256=digest))
        total += size
    return places, total


def verify(path: str, known: Any) -> None:
    """Verify a file against its entry. Raises BadCheckpoint."""
    places, _ = _laid_out({path: known})
    _require(places, each(lambda one: _digest(path, one.at, one.size) == one.sha256, places))


def sync(path: str) -> None:
    """Flush a file's content, or a folder's entries, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _digest(path: str, at: int, size: int) -> str:
    with open(path, "rb", buffering=0) as file:
        file.seek(at)
        body = room(size)
        return sha256_of(body[: read_large(file, body)])


def _checked(path: str, known: Any) -> tuple[int, int, list[str]]:
    """Return size, piece size and hashes of an entry that is consistent with the file. Raises BadCheckpoint."""
    try:
        size, piece, digests = known["bytes"], known["piece"], known["sha256"]
        if type(size) is not int or type(piece) is not int or type(digests) is not list:
            raise BadCheckpoint(f"{path}: its marker has values of the wrong type")
        # A multiple of a block, so that every piece begins at one.
        if piece < 4096 or piece % 4096 or len(digests) != -(-size // piece):
            raise BadCheckpoint(f"{path}: its marker has inconsistent sizes")
        found = os.path.getsize(path)
    except OSError as problem:
        raise BadCheckpoint(f"{path}: {problem.strerror}") from problem
    except (TypeError, LookupError) as problem:
        raise BadCheckpoint(f"{path}: its marker has missing or invalid fields") from problem
    if found != size:
        raise BadCheckpoint(f"{path}: it has {found} bytes, but {size} were saved")
    return size, piece, digests


def _require(places: list[_Piece], matches: list[bool]) -> None:
    if not all(matches):
        path = places[matches.index(False)].path
        raise BadCheckpoint(f"{path}: its content differs from the saved one")


def each(work: Callable[[A], B], items: Sequence[A]) -> list[B]:
    """Map a function over items, in threads."""
    if len(items) < 2:
        return [work(item) for item in items]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(min(_THREADS, len(items))) as pool:
        return list(pool.map(work, items))
