"""Checkpoint files in pieces with separate hashes, so that several threads write and verify them in parallel."""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Callable
from typing import Any, TypeVar

from outlast.errors import OutlastError
from outlast.store.direct_io import read_large, room, write_large

_PIECE_BYTES = 16 << 20
_THREADS = 4
A = TypeVar("A")


class BadCheckpoint(OutlastError):
    """A checkpoint is damaged; the message gives the reason."""


def write(path: str, content: memoryview) -> dict[str, Any]:
    """Write a new file durably. Returns its entry for the marker: size and hashes."""
    with open(path, "wb", buffering=0) as file:
        file.truncate(len(content))

    def one(at: int) -> str:
        piece = content[at : at + _PIECE_BYTES]
        # Both release the interpreter lock: one thread hashes while another waits for the disk.
        digest = hashlib.sha256(piece).hexdigest()
        with open(path, "r+b", buffering=0) as file:
            file.seek(at)
            write_large(file, piece)
        return digest

    digests = _each(one, len(content), _PIECE_BYTES)
    sync(path)
    return {"bytes": len(content), "piece": _PIECE_BYTES, "sha256": digests}


def describe(path: str) -> dict[str, Any]:
    """Make a file of the user's code durable. Returns its entry for the marker."""
    size = os.path.getsize(path)
    digests = _each(lambda at: _digest(path, at, min(_PIECE_BYTES, size - at)), size, _PIECE_BYTES)
    sync(path)
    return {"bytes": size, "piece": _PIECE_BYTES, "sha256": digests}


def read(path: str, known: Any) -> memoryview:
    """Read and verify a file into writable memory. Raises BadCheckpoint."""
    size, piece, digests = _checked(path, known)
    content = room(size)

    def one(at: int) -> bool:
        part = content[at : at + piece]
        with open(path, "rb", buffering=0) as file:
            file.seek(at)
            complete = read_large(file, part) == len(part)
        return complete and hashlib.sha256(part).hexdigest() == digests[at // piece]

    _require(path, _each(one, size, piece))
    return content


def mapped(path: str, known: Any) -> memoryview:
    """Verify a file and return its content as writable memory that is backed by the file. Raises BadCheckpoint.

    It needs no memory that the kernel cannot drop; changes stay in this process. Do not keep it: the file may be on a
    network, where another machine deletes it.
    """
    size, piece, digests = _checked(path, known)
    if not size:
        return memoryview(bytearray())
    with open(path, "rb") as file:
        content = memoryview(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY))
    matches = _each(
        lambda at: hashlib.sha256(content[at : at + piece]).hexdigest() == digests[at // piece], size, piece
    )
    _require(path, matches)
    return content


def verify(path: str, known: Any) -> None:
    """Verify a file against its entry. Raises BadCheckpoint."""
    size, piece, digests = _checked(path, known)
    _require(path, _each(lambda at: _digest(path, at, min(piece, size - at)) == digests[at // piece], size, piece))


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
        return hashlib.sha256(body[: read_large(file, body)]).hexdigest()


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


def _require(path: str, matches: list[bool]) -> None:
    if not all(matches):
        raise BadCheckpoint(f"{path}: its content differs from the saved one")


def _each(work: Callable[[int], A], size: int, piece: int) -> list[A]:
    """Call `work` with the offset of each piece, in threads."""
    begins = range(0, size, piece)
    if len(begins) < 2:
        return [work(at) for at in begins]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(min(_THREADS, len(begins))) as pool:
        return list(pool.map(work, begins))
