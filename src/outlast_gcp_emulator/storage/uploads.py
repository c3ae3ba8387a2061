"""Uploads in several requests: sessions that survive restarts, and parts that become one object. Knows no HTTP.

A session's bytes are a file that grows. What of it counts is a multiple of 256 KiB, as with Google, so bytes that were
cut off in the middle are simply sent again.
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
from outlast_gcp_emulator.storage.bodies import Staged
from outlast_gcp_emulator.storage.checksums import Checksums, crc32c_text, md5_text
from outlast_gcp_emulator.storage.database import tick_us
from outlast_gcp_emulator.storage.request_params import Piece
from outlast_gcp_emulator.storage.rows import object_from_json, object_to_json
from outlast_gcp_emulator.storage.store import ObjectStore
from outlast_gcp_emulator.storage.values import Conditions, Stored, check_object_name

GRAIN_BYTES = 256 * 1024
_LIFE_US = 7 * 24 * 3600 * 1_000_000
Kind = Literal["session", "parts"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Upload:
    id: str
    kind: str
    bucket: str
    name: str
    meta: Mapping[str, Any]
    conditions: Conditions
    # What became of it, so that a client whose answer was lost gets it again.
    result: Stored | None


@dataclass(frozen=True, kw_only=True, slots=True)
class UploadPart:
    number: int
    size: int
    md5: bytes
    file: str
    updated_us: int


class Uploads:
    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._root = f"{store.root}/uploads"
        os.makedirs(self._root, exist_ok=True)
        self._forget_old()

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
            asked = "SELECT * FROM uploads WHERE id = ? AND kind = ?"
            row = connection.execute(asked, (upload, kind)).fetchone()
        if row is None:
            raise ApiError(404, "noSuchUpload", "The upload does not exist: it is over, was cancelled, or never began.")
        name, _, bucket, key, meta, only, _, result = row
        return Upload(
            id=name,
            kind=kind,
            bucket=bucket,
            name=key.decode(),
            meta=json.loads(meta),
            conditions=Conditions(**json.loads(only)),
            result=None if result is None else object_from_json(result),
        )

    def cancel(self, upload: Upload) -> None:
        with self._store.database.writing() as connection:
            connection.execute("DELETE FROM uploads WHERE id = ?", (upload.id,))
            files = self._drop_parts(connection, upload.id)
        _unlink([self._path(upload.id), *files])

    # Sessions

    def received(self, upload: Upload, *, whole: int | None) -> Stored | int:
        """How many bytes of a session count; the object if they are known to be all."""
        with self._file(upload) as file:
            if whole is not None and whole == os.fstat(file.fileno()).st_size:
                return self._finish(upload, file)
            return _received(file)

    def append(self, upload: Upload, piece: Piece, data: Iterable[bytes]) -> Stored | int:
        """Take bytes from an offset on. The object if that was all of it, else how many bytes count now."""
        start = piece.first or 0
        with self._file(upload) as file:
            have = _received(file)
            if start > have:
                return have
            file.truncate(have)
            file.seek(have)
            skipped = have - start
            for some in data:
                file.write(some[skipped:])
                skipped = max(0, skipped - len(some))
            file.flush()
            size = file.tell()
            whole = size if piece.is_last else piece.size
            if whole is None or size < whole:
                return _received(file)
            if size > whole:
                raise invalid(f"The session has {size} bytes, which is more than the {whole} that were announced.")
            return self._finish(upload, file)

    def _finish(self, upload: Upload, file: BinaryIO) -> Stored:
        os.fsync(file.fileno())
        file.seek(0)
        sums = Checksums()
        while piece := file.read(PIECE_BYTES):
            sums.update(piece)
        path = self._path(upload.id)
        staged = Staged(size=sums.size, md5=sums.md5, crc32c=sums.crc32c, path=path)
        check_sums(staged, upload.meta)

        def remember(connection: sqlite3.Connection, stored: Stored) -> None:
            told = object_to_json(stored)
            connection.execute("UPDATE uploads SET result = ? WHERE id = ?", (told, upload.id))

        meta = {name: value for name, value in upload.meta.items() if name not in ("md5Hash", "crc32c")}
        where = (upload.bucket, upload.name)
        return self._store.put(*where, staged, meta, conditions=upload.conditions, also=remember)

    # Parts

    def put_part(self, upload: Upload, number: int, staged: Staged) -> None:
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
            asked = "SELECT file FROM parts WHERE upload = ? AND number = ?"
            old = connection.execute(asked, (upload.id, number)).fetchone()
            row = (upload.id, number, staged.size, staged.md5, file, tick_us(connection))
            connection.execute("INSERT OR REPLACE INTO parts VALUES (?, ?, ?, ?, ?, ?)", row)
        if old is not None:
            _unlink([f"{self._root}/{old[0]}"])

    def parts(self, upload: Upload) -> list[UploadPart]:
        asked = "SELECT number, size, md5, file, updated_us FROM parts WHERE upload = ? ORDER BY number"
        with self._store.database.reading() as connection:
            rows = connection.execute(asked, (upload.id,)).fetchall()
        return [UploadPart(number=row[0], size=row[1], md5=row[2], file=row[3], updated_us=row[4]) for row in rows]

    def join(self, upload: Upload, wanted: Sequence[UploadPart], only: Conditions) -> Stored:
        """The parts as one object, in this order; then the upload is over."""
        gone: list[str] = [self._path(upload.id)]

        def forget(connection: sqlite3.Connection, _: Stored) -> None:
            connection.execute("DELETE FROM uploads WHERE id = ?", (upload.id,))
            gone.extend(self._drop_parts(connection, upload.id))

        paths = [f"{self._root}/{part.file}" for part in wanted]
        with self._store.staging(_read_all(paths)) as staged:
            stored = self._store.put(
                upload.bucket,
                upload.name,
                staged,
                upload.meta,
                conditions=only,
                components=len(wanted),
                also=forget,
            )
        _unlink(gone)
        return stored

    def _drop_parts(self, connection: sqlite3.Connection, upload: str) -> list[str]:
        rows = connection.execute("SELECT file FROM parts WHERE upload = ?", (upload,)).fetchall()
        connection.execute("DELETE FROM parts WHERE upload = ?", (upload,))
        return [f"{self._root}/{row[0]}" for row in rows]

    def _forget_old(self) -> None:
        """Google forgets a session after a week."""
        before = time.time_ns() // 1000 - _LIFE_US
        with self._store.database.writing() as connection:
            asked = "SELECT id FROM uploads WHERE created_us < ?"
            old = [row[0] for row in connection.execute(asked, (before,)).fetchall()]
            files = [path for upload in old for path in self._drop_parts(connection, upload)]
            connection.execute("DELETE FROM uploads WHERE created_us < ?", (before,))
        _unlink([*files, *(self._path(upload) for upload in old)])

    @contextmanager
    def _file(self, upload: Upload) -> Iterator[BinaryIO]:
        """The bytes of a session, which is one writer's at a time."""
        try:
            file = open(self._path(upload.id), "r+b")  # noqa: SIM115
        except FileNotFoundError as problem:
            self._ended(upload)
            raise ApiError(503, "backendError", "The upload has just ended; ask again.") from problem
        with file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file

    def _ended(self, upload: Upload) -> None:
        """The bytes are gone: they became an object, or a server was killed on the way to it and they are lost."""
        with self._store.database.writing() as connection:
            connection.execute("DELETE FROM uploads WHERE id = ? AND result IS NULL", (upload.id,))
        self.find("session", upload.id)

    def _path(self, upload: str) -> str:
        return f"{self._root}/{upload}"


def check_sums(staged: Staged, told: Mapping[str, Any]) -> None:
    """Raises if the client announced other sums: the body was damaged on its way."""
    for name, actual in (("md5Hash", md5_text(staged.md5)), ("crc32c", crc32c_text(staged.crc32c))):
        if told.get(name) and told[name] != actual:
            shown = name.removesuffix("Hash")
            raise ApiError(
                400, "badDigest", f'Provided {shown} hash "{told[name]}" doesn\'t match calculated {shown} "{actual}".'
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
