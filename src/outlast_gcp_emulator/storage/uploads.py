"""Uploads in several requests: resumable sessions that survive restarts, and multipart uploads.

The bytes of a session are a growing file. As with Google, only multiples of 256 KiB are acknowledged, so the client
repeats bytes that were cut off.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal

from outlast_gcp_emulator.errors import ApiError, invalid
from outlast_gcp_emulator.http_types import PIECE_BYTES
from outlast_gcp_emulator.storage.bodies import StagedBody
from outlast_gcp_emulator.storage.checksums import Checksums, crc32c_text, md5_text
from outlast_gcp_emulator.storage.database import tick_us
from outlast_gcp_emulator.storage.request_params import ContentRange
from outlast_gcp_emulator.storage.store import ObjectStore
from outlast_gcp_emulator.storage.values import Conditions, StoredObject, check_object_name

GRAIN_BYTES = 256 * 1024
_LIFE_US = 7 * 24 * 3600 * 1_000_000
Kind = Literal["session", "parts"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Upload:
    """An unfinished upload, or a finished session."""

    id: str
    kind: str
    bucket: str
    name: str
    meta: Mapping[str, Any]
    conditions: Conditions
    # The created object, for a client that lost the response and repeats its request.
    result: StoredObject | None


@dataclass(frozen=True, kw_only=True, slots=True)
class UploadPart:
    """One part of a multipart upload, in a file."""

    number: int
    size: int
    md5: bytes
    file: str
    updated_us: int


class Uploads:
    """The uploads of one object store. Raises ApiError for unknown uploads and invalid bytes."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._root = f"{store.root}/uploads"
        os.makedirs(self._root, exist_ok=True)
        self._drop_old()

    def start(self, kind: Kind, bucket: str, name: str, meta: Mapping[str, Any], only: Conditions) -> Upload:
        check_object_name(name)
        self._store.bucket(bucket)
        upload = secrets.token_urlsafe(48)
        with open(self._path(upload), "xb"):
            pass
        with self._store.database.writing() as connection:
            row = (upload, kind, bucket, name.encode(), json.dumps(meta), json.dumps(only.to_data()))
            connection.execute("INSERT INTO uploads VALUES (?, ?, ?, ?, ?, ?, ?, NULL)", (*row, tick_us(connection)))
        return self.find(kind, upload)

    def find(self, kind: Kind, upload: str) -> Upload:
        with self._store.database.reading() as connection:
            query = "SELECT * FROM uploads WHERE id = ? AND kind = ?"
            row = connection.execute(query, (upload, kind)).fetchone()
        if row is None:
            raise ApiError(
                404, "noSuchUpload", "The upload does not exist: it is finished, cancelled or was never started."
            )
        name, _, bucket, key, meta, only, _, result = row
        return Upload(
            id=name,
            kind=kind,
            bucket=bucket,
            name=key.decode(),
            meta=json.loads(meta),
            conditions=Conditions(**json.loads(only)),
            result=None if result is None else StoredObject.from_json(result),
        )

    def cancel(self, upload: Upload) -> None:
        with self._store.database.writing() as connection:
            connection.execute("DELETE FROM uploads WHERE id = ?", (upload.id,))
            files = self._drop_parts(connection, upload.id)
        _unlink([self._path(upload.id), *files])

    # Sessions

    def received(self, upload: Upload, *, whole: int | None) -> StoredObject | int:
        """Return how many bytes of a session are acknowledged, or the object if they are complete."""
        with self._file(upload) as file:
            if whole is not None and whole == os.fstat(file.fileno()).st_size:
                return self._finish(upload, file)
            return _received(file)

    def append(self, upload: Upload, piece: ContentRange, data: Iterable[bytes]) -> StoredObject | int:
        """Append bytes from an offset on. Returns the object if it is complete, else the acknowledged bytes."""
        start = piece.first or 0
        with self._file(upload) as file:
            have = _received(file)
            if start > have:
                return have
            file.truncate(have)
            file.seek(have)
            skipped = have - start
            for block in data:
                file.write(block[skipped:])
                skipped = max(0, skipped - len(block))
            file.flush()
            size = file.tell()
            whole = size if piece.is_last else piece.size
            if whole is None or size < whole:
                return _received(file)
            if size > whole:
                raise invalid(f"The session has {size} bytes, more than the announced {whole}.")
            return self._finish(upload, file)

    def _finish(self, upload: Upload, file: BinaryIO) -> StoredObject:
        os.fsync(file.fileno())
        file.seek(0)
        sums = Checksums()
        while piece := file.read(PIECE_BYTES):
            sums.update(piece)
        path = self._path(upload.id)
        staged = StagedBody(size=sums.size, md5=sums.md5, crc32c=sums.crc32c, path=path)
        check_checksums(staged, upload.meta)

        def record(connection: sqlite3.Connection, stored: StoredObject) -> None:
            connection.execute("UPDATE uploads SET result = ? WHERE id = ?", (stored.to_json(), upload.id))

        meta = {name: value for name, value in upload.meta.items() if name not in ("md5Hash", "crc32c")}
        where = (upload.bucket, upload.name)
        return self._store.put(*where, staged, meta, conditions=upload.conditions, also=record)

    # Parts

    def put_part(self, upload: Upload, number: int, staged: StagedBody) -> None:
        file = f"{upload.id[:16]}.{number}.{secrets.token_hex(8)}"
        path = f"{self._root}/{file}"
        if staged.path:
            os.rename(staged.path, path)
        else:
            with open(path, "xb") as written:
                written.write(staged.data)
                written.flush()
                os.fsync(written.fileno())
        with self._store.database.writing() as connection:
            query = "SELECT file FROM parts WHERE upload = ? AND number = ?"
            old = connection.execute(query, (upload.id, number)).fetchone()
            row = (upload.id, number, staged.size, staged.md5, file, tick_us(connection))
            connection.execute("INSERT OR REPLACE INTO parts VALUES (?, ?, ?, ?, ?, ?)", row)
        if old is not None:
            _unlink([f"{self._root}/{old[0]}"])

    def parts(self, upload: Upload) -> list[UploadPart]:
        query = "SELECT number, size, md5, file, updated_us FROM parts WHERE upload = ? ORDER BY number"
        with self._store.database.reading() as connection:
            rows = connection.execute(query, (upload.id,)).fetchall()
        return [UploadPart(number=row[0], size=row[1], md5=row[2], file=row[3], updated_us=row[4]) for row in rows]

    def join(self, upload: Upload, parts: Sequence[UploadPart], only: Conditions) -> StoredObject:
        """Join parts to one object, in this order, and end the upload."""
        gone: list[str] = [self._path(upload.id)]

        def drop(connection: sqlite3.Connection, _: StoredObject) -> None:
            connection.execute("DELETE FROM uploads WHERE id = ?", (upload.id,))
            gone.extend(self._drop_parts(connection, upload.id))

        paths = [f"{self._root}/{part.file}" for part in parts]
        with self._store.staging(_read_all(paths)) as staged:
            stored = self._store.put(
                upload.bucket,
                upload.name,
                staged,
                upload.meta,
                conditions=only,
                components=len(parts),
                also=drop,
            )
        _unlink(gone)
        return stored

    def _drop_parts(self, connection: sqlite3.Connection, upload: str) -> list[str]:
        rows = connection.execute("SELECT file FROM parts WHERE upload = ?", (upload,)).fetchall()
        connection.execute("DELETE FROM parts WHERE upload = ?", (upload,))
        return [f"{self._root}/{row[0]}" for row in rows]

    def _drop_old(self) -> None:
        """Drop uploads after a week, as Google does."""
        before = time.time_ns() // 1000 - _LIFE_US
        with self._store.database.writing() as connection:
            query = "SELECT id FROM uploads WHERE created_us < ?"
            old = [row[0] for row in connection.execute(query, (before,)).fetchall()]
            files = [path for upload in old for path in self._drop_parts(connection, upload)]
            connection.execute("DELETE FROM uploads WHERE created_us < ?", (before,))
        _unlink([*files, *(self._path(upload) for upload in old)])

    @contextmanager
    def _file(self, upload: Upload) -> Iterator[BinaryIO]:
        """Open and lock the file of a session."""
        try:
            file = open(self._path(upload.id), "r+b")  # noqa: SIM115
        except FileNotFoundError as problem:
            self._ended(upload)
            raise ApiError(503, "backendError", "The upload has just ended; retry the request.") from problem
        with file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file

    def _ended(self, upload: Upload) -> None:
        """Drop a session whose bytes are lost because a server was killed. Raises ApiError if it has no result."""
        with self._store.database.writing() as connection:
            connection.execute("DELETE FROM uploads WHERE id = ? AND result IS NULL", (upload.id,))
        self.find("session", upload.id)

    def _path(self, upload: str) -> str:
        return f"{self._root}/{upload}"


def check_checksums(staged: StagedBody, expected: Mapping[str, Any]) -> None:
    """Raise ApiError if a body does not have the checksums that the client sent."""
    for name, actual in (("md5Hash", md5_text(staged.md5)), ("crc32c", crc32c_text(staged.crc32c))):
        if expected.get(name) and expected[name] != actual:
            shown = name.removesuffix("Hash")
            raise ApiError(
                400,
                "badDigest",
                f'Provided {shown} hash "{expected[name]}" doesn\'t match calculated {shown} "{actual}".',
            )


def _received(file: BinaryIO) -> int:
    size = os.fstat(file.fileno()).st_size
    return size - size % GRAIN_BYTES


def _read_all(paths: Sequence[str]) -> Iterator[bytes]:
    for path in paths:
        with open(path, "rb") as file:
            while piece := file.read(PIECE_BYTES):
                yield piece


def _unlink(paths: Iterable[str]) -> None:
    for path in paths:
        with suppress(FileNotFoundError):
            os.unlink(path)
