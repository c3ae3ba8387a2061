"""Files of checkpoints in pieces, each with its own hash, so that several threads write and verify them at a time."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from typing import Any, TypeVar

from outlast.errors import OutlastError
from outlast.store.direct_io import read_large, room, write_large

_PIECE_BYTES = 16 << 20
_THREADS = 4
A = TypeVar("A")


class BadCheckpoint(OutlastError):
    """A checkpoint that does not hold; the message says why."""


def write(path: str, content: memoryview) -> dict[str, Any]:
    """A new file, on disk when this returns; what is to be remembered of it."""
    with open(path, "wb", buffering=0) as file:
        file.truncate(len(content))

    def one(at: int) -> str:
        piece = content[at : at + _PIECE_BYTES]
        # Both leave the interpreter's lock; while one thread waits for the disk another one hashes.
        digest = hashlib.sha256(piece).hexdigest()
        with open(path, "r+b", buffering=0) as file:
            file.seek(at)
            write_large(file, piece)
        return digest

    digests = _each(one, len(content), _PIECE_BYTES)
    sync(path)
    return {"bytes": len(content), "piece": _PIECE_BYTES, "sha256": digests}


def taken(path: str) -> dict[str, Any]:
    """Of a file that somebody else wrote: see that it is on disk, and what is to be remembered of it."""
    size = os.path.getsize(path)
    digests = _each(lambda at: _digest(path, at, min(_PIECE_BYTES, size - at)), size, _PIECE_BYTES)
    sync(path)
    return {"bytes": size, "piece": _PIECE_BYTES, "sha256": digests}


def read(path: str, known: Any) -> memoryview:
    """All of a file, verified while it is read, in memory that may be written. Raises BadCheckpoint."""
    size, piece, digests = _checked(path, known)
    content = room(size)

    def one(at: int) -> bool:
        part = content[at : at + piece]
        with open(path, "rb", buffering=0) as file:
            file.seek(at)
            whole = read_large(file, part) == len(part)
        return whole and hashlib.sha256(part).hexdigest() == digests[at // piece]

    _demand(path, _each(one, size, piece))
    return content


def verify(path: str, known: Any) -> None:
    """That a file is what it was. Raises BadCheckpoint."""
    size, piece, digests = _checked(path, known)
    _demand(path, _each(lambda at: _digest(path, at, min(piece, size - at)) == digests[at // piece], size, piece))


def sync(path: str) -> None:
    """A file's content, or a folder's names."""
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
    """What is remembered of a file, if it can be true of the one that is there."""
    try:
        size, piece, digests = known["bytes"], known["piece"], known["sha256"]
        if type(size) is not int or type(piece) is not int or type(digests) is not list:
            raise BadCheckpoint(f"{path}: its marker has values of the wrong type")
        # A multiple of a block, so that every piece begins at one.
        if piece < 4096 or piece % 4096 or len(digests) != -(-size // piece):
            raise BadCheckpoint(f"{path}: what its marker says of it cannot be")
        found = os.path.getsize(path)
    except OSError as problem:
        raise BadCheckpoint(f"{path}: {problem.strerror}") from problem
    except (TypeError, LookupError) as problem:
        raise BadCheckpoint(f"{path}: what its marker says of it cannot be read") from problem
    if found != size:
        raise BadCheckpoint(f"{path}: it has {found} bytes, and {size} were saved")
    return size, piece, digests


def _demand(path: str, held: list[bool]) -> None:
    if not all(held):
        raise BadCheckpoint(f"{path}: its bytes are not what was saved")


def _each(work: Callable[[int], A], size: int, piece: int) -> list[A]:
    """For each piece, by where it begins."""
    begins = range(0, size, piece)
    if len(begins) < 2:
        return [work(at) for at in begins]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(min(_THREADS, len(begins))) as pool:
        return list(pool.map(work, begins))
