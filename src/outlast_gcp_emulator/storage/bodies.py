"""The bodies of objects: small ones in the database, large ones in files. A stored body never changes."""

from __future__ import annotations

import io
import os
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import BinaryIO

from outlast.clouds.local.files import try_lock
from outlast_gcp_emulator.storage.checksums import Checksums

SMALL_BYTES_MAX = 64 * 1024
_IN_DATABASE = "s"
_IN_FILE = "f"


@dataclass(frozen=True, kw_only=True, slots=True)
class StagedBody:
    """A completely received body that belongs to no object yet, in memory or in a file."""

    size: int
    md5: bytes
    crc32c: int
    data: bytes = b""
    path: str = ""


class BodyWriter:
    """Receives a body piece by piece. A body that grows too large for memory moves to a file."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._memory = bytearray()
        self._file: BinaryIO | None = None
        self._sums = Checksums()

    def write(self, piece: bytes) -> None:
        self._sums.update(piece)
        if self._file is None and self._sums.size <= SMALL_BYTES_MAX:
            self._memory += piece
            return
        if self._file is None:
            self._file = open(self._path, "xb")  # noqa: SIM115
            self._file.write(self._memory)
            self._memory.clear()
        self._file.write(piece)

    def finish(self) -> StagedBody:
        """Return the complete body; a large one is durable on disk."""
        sums = self._sums
        if self._file is None:
            return StagedBody(size=sums.size, md5=sums.md5, crc32c=sums.crc32c, data=bytes(self._memory))
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        return StagedBody(size=sums.size, md5=sums.md5, crc32c=sums.crc32c, path=self._path)

    def discard(self) -> None:
        if self._file is not None:
            self._file.close()
            with suppress(FileNotFoundError):
                os.unlink(self._path)


class BodyStore:
    """Stores bodies. Each process stages in a separate folder, whose lock shows that the process is alive."""

    def __init__(self, root: str) -> None:
        self._root = f"{root}/bodies"
        self._staging_root = f"{root}/staging"
        self._staging = f"{self._staging_root}/{os.getpid()}-{secrets.token_hex(4)}"
        os.makedirs(self._root, exist_ok=True)
        os.makedirs(self._staging)
        lock = f"{self._staging}/lock"
        with open(lock, "x"):
            pass
        self._lock = try_lock(lock)

    def stage(self) -> BodyWriter:
        return BodyWriter(f"{self._staging}/{secrets.token_hex(16)}")

    def store(self, connection: sqlite3.Connection, staged: StagedBody) -> str:
        """Store a staged body and return its id. The object that refers to it must be in the same transaction."""
        name = secrets.token_hex(16)
        if not staged.path:
            connection.execute("INSERT INTO bodies VALUES (?, ?)", (_IN_DATABASE + name, staged.data))
            return _IN_DATABASE + name
        target = self._path(_IN_FILE + name)
        folder = os.path.dirname(target)
        if not os.path.isdir(folder):
            os.makedirs(folder, exist_ok=True)
            _sync_folder(self._root)
        os.rename(staged.path, target)
        _sync_folder(folder)
        return _IN_FILE + name

    def open(self, connection: sqlite3.Connection, body: str) -> BinaryIO:
        """Open a body. Raises FileNotFoundError if its object was replaced since the id was read."""
        if body.startswith(_IN_FILE):
            return open(self._path(body), "rb")
        row = connection.execute("SELECT data FROM bodies WHERE id = ?", (body,)).fetchone()
        if row is None:
            raise FileNotFoundError(body)
        return io.BytesIO(row[0])

    def release(self, connection: sqlite3.Connection, body: str) -> list[str]:
        """Release a body after its object changed. Returns the files to delete after the transaction."""
        if connection.execute("SELECT 1 FROM objects WHERE body = ? LIMIT 1", (body,)).fetchone():
            return []
        if body.startswith(_IN_FILE):
            return [self._path(body)]
        connection.execute("DELETE FROM bodies WHERE id = ?", (body,))
        return []

    def remove_orphans(self, connection: sqlite3.Connection) -> None:
        """Remove the bodies that killed processes left. As the writer, we cannot meet a rename without its row."""
        for name in os.listdir(self._staging_root):
            folder = f"{self._staging_root}/{name}"
            if folder != self._staging and (lock := try_lock(f"{folder}/lock")) is not None:
                _remove_flat(folder)
                os.close(lock)
        for path in self._files():
            body = os.path.basename(path)
            if not connection.execute("SELECT 1 FROM objects WHERE body = ? LIMIT 1", (body,)).fetchone():
                with suppress(FileNotFoundError):
                    os.unlink(path)

    def close(self) -> None:
        _remove_flat(self._staging)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _files(self) -> Iterator[str]:
        for folder, _, names in os.walk(self._root):
            yield from (f"{folder}/{name}" for name in names)

    def _path(self, body: str) -> str:
        return f"{self._root}/{body[1:3]}/{body}"


def _sync_folder(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove_flat(folder: str) -> None:
    for name in os.listdir(folder):
        os.unlink(f"{folder}/{name}")
    os.rmdir(folder)
