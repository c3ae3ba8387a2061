"""Buckets and objects on a folder. Each change is one transaction: a create-only put has one winner among all threads
and processes, and a process that is killed leaves the old object or the new one. Knows no HTTP."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, BinaryIO

from outlast_gcp_emulator.errors import ApiError, not_found
from outlast_gcp_emulator.storage.bodies import Bodies, Stage, Staged
from outlast_gcp_emulator.storage.database import MetadataDatabase, tick_us
from outlast_gcp_emulator.storage.listing import list_objects
from outlast_gcp_emulator.storage.rows import OBJECT_COLUMNS, bucket_of, object_of
from outlast_gcp_emulator.storage.values import (
    NO_CONDITIONS,
    Conditions,
    Listing,
    ObjectPage,
    Stored,
    StoredBucket,
    check_object_name,
)

Meta = Mapping[str, Any]
Change = Callable[[Meta], Meta]


class ObjectStore:
    """Everything that is stored below one folder. Any number of threads and processes may use the same folder."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.database = MetadataDatabase(f"{root}/storage.sqlite")
        self.bodies = Bodies(root)
        with self.database.writing() as connection:
            self.bodies.sweep(connection)

    def close(self) -> None:
        self.bodies.close()
        self.database.close()

    # Buckets

    def create_bucket(self, name: str, *, project: str, meta: Meta) -> StoredBucket:
        with self.database.writing() as connection:
            now = tick_us(connection)
            row = (name, project, 1, now, now, json.dumps(meta), None)
            try:
                connection.execute("INSERT INTO buckets VALUES (?, ?, ?, ?, ?, ?, ?)", row)
            except sqlite3.IntegrityError as problem:
                told = "Your previous request to create the named bucket succeeded and you already own it."
                raise ApiError(409, "conflict", told) from problem
            return bucket_of(row)

    def bucket(self, name: str) -> StoredBucket:
        with self.database.reading() as connection:
            return _bucket(connection, name)

    def buckets(self, *, prefix: str, start: str, count: int, project: str) -> list[StoredBucket]:
        """In the order of their names, from `start` on; of one project, or of all."""
        asked = "SELECT * FROM buckets WHERE name >= ? AND substr(name, 1, ?) = ? AND (? = '' OR project = ?)"
        with self.database.reading() as connection:
            values = (start, len(prefix), prefix, project, project, count)
            return [bucket_of(row) for row in connection.execute(f"{asked} ORDER BY name LIMIT ?", values)]

    def change_bucket(
        self, name: str, change: Change, *, policy: Meta | None, metageneration: int | None
    ) -> StoredBucket:
        """Change what the client may set, or the policy, if the metageneration is still the one that is given."""
        with self.database.writing() as connection:
            found = _bucket(connection, name)
            if metageneration is not None and metageneration != found.metageneration:
                Conditions(metageneration_match=metageneration).check(None)
            changed = replace(
                found,
                meta=change(found.meta),
                policy=policy if policy is not None else found.policy,
                metageneration=found.metageneration + 1,
                updated_us=tick_us(connection),
            )
            connection.execute(
                "UPDATE buckets SET meta = ?, policy = ?, metageneration = ?, updated_us = ? WHERE name = ?",
                (
                    json.dumps(changed.meta),
                    None if changed.policy is None else json.dumps(changed.policy),
                    changed.metageneration,
                    changed.updated_us,
                    name,
                ),
            )
            return changed

    def delete_bucket(self, name: str, *, metageneration: int | None = None) -> None:
        with self.database.writing() as connection:
            found = _bucket(connection, name)
            if metageneration is not None and metageneration != found.metageneration:
                Conditions(metageneration_match=metageneration).check(None)
            if connection.execute("SELECT 1 FROM objects WHERE bucket = ? LIMIT 1", (name,)).fetchone():
                raise ApiError(409, "notEmpty", "The bucket you tried to delete is not empty.")
            connection.execute("DELETE FROM buckets WHERE name = ?", (name,))

    # Objects

    def stage(self) -> Stage:
        return self.bodies.stage()

    @contextmanager
    def staging(self, pieces: Iterable[bytes]) -> Iterator[Staged]:
        """A body that arrived whole; what no object took is removed."""
        stage = self.bodies.stage()
        staged = None
        try:
            for piece in pieces:
                stage.write(piece)
            staged = stage.finish()
            yield staged
        finally:
            stage.discard()

    def put(
        self,
        bucket: str,
        name: str,
        staged: Staged,
        meta: Meta,
        *,
        conditions: Conditions = NO_CONDITIONS,
        components: int | None = None,
        also: Callable[[sqlite3.Connection, Stored], None] | None = None,
    ) -> Stored:
        """Create or replace. `also` is done in the same transaction."""
        with self._changing() as (connection, unneeded):
            check_object_name(name)
            found = _allowed(connection, bucket, name, conditions)
            body = self.bodies.keep(connection, staged)
            generation = tick_us(connection)
            stored = Stored(
                bucket=bucket,
                name=name,
                generation=generation,
                metageneration=1,
                size=staged.size,
                md5=None if components else staged.md5,
                crc32c=staged.crc32c,
                body=body,
                components=components,
                updated_us=generation,
                meta=meta,
            )
            self._write(connection, stored, found, unneeded)
            if also is not None:
                also(connection, stored)
        return stored

    def get(self, bucket: str, name: str, *, generation: int | None = None) -> Stored:
        with self.database.reading() as connection:
            return _live(connection, bucket, name, generation)

    def open(self, bucket: str, name: str, *, generation: int | None = None) -> tuple[Stored, BinaryIO]:
        """The object and its body, which stays readable whatever happens to the object."""
        while True:
            with self.database.reading() as connection:
                stored = _live(connection, bucket, name, generation)
                # A file of a body that was replaced since is gone: look again.
                with suppress(FileNotFoundError):
                    return stored, self.bodies.open(connection, stored.body)

    def change(self, bucket: str, name: str, change: Change, *, generation: int | None, only: Conditions) -> Stored:
        """Change what the client may set of an object; its body and its generation stay."""
        with self.database.writing() as connection:
            found = _live(connection, bucket, name, generation)
            only.check(found)
            changed = replace(
                found,
                meta=change(found.meta),
                metageneration=found.metageneration + 1,
                updated_us=tick_us(connection),
            )
            _insert(connection, changed)
            return changed

    def delete(self, bucket: str, name: str, *, generation: int | None, only: Conditions) -> None:
        with self._changing() as (connection, unneeded):
            found = _live(connection, bucket, name, generation)
            only.check(found)
            _check_held(found)
            connection.execute("DELETE FROM objects WHERE bucket = ? AND name = ?", (bucket, name.encode()))
            unneeded += self.bodies.release(connection, found.body)

    def copy(
        self,
        source: tuple[str, str, int | None],
        target: tuple[str, str],
        change: Change,
        *,
        source_only: Conditions,
        target_only: Conditions,
        move: bool = False,
    ) -> Stored:
        """Another object with the same body, which both share until one is replaced."""
        with self._changing() as (connection, unneeded):
            check_object_name(target[1])
            original = _live(connection, *source)
            source_only.check(original)
            found = _allowed(connection, *target, target_only)
            generation = tick_us(connection)
            copied = replace(
                original,
                bucket=target[0],
                name=target[1],
                generation=generation,
                metageneration=1,
                updated_us=generation,
                meta=change(original.meta),
            )
            self._write(connection, copied, found, unneeded)
            if move and source[:2] != target:
                _check_held(original)
                where = (source[0], source[1].encode())
                connection.execute("DELETE FROM objects WHERE bucket = ? AND name = ?", where)
        return copied

    def page(self, bucket: str, listing: Listing) -> ObjectPage:
        with self.database.reading() as connection:
            _bucket(connection, bucket)
            return list_objects(connection, bucket, listing)

    # Within a transaction

    @contextmanager
    def _changing(self) -> Iterator[tuple[sqlite3.Connection, list[str]]]:
        """A transaction, and the files that nobody needs once it is through."""
        unneeded: list[str] = []
        with self.database.writing() as connection:
            yield connection, unneeded
        for path in unneeded:
            with suppress(FileNotFoundError):
                os.unlink(path)

    def _write(self, connection: sqlite3.Connection, stored: Stored, found: Stored | None, unneeded: list[str]) -> None:
        _insert(connection, stored)
        if found is not None:
            unneeded += self.bodies.release(connection, found.body)


def _insert(connection: sqlite3.Connection, stored: Stored) -> None:
    row = (
        stored.bucket,
        stored.name.encode(),
        stored.generation,
        stored.metageneration,
        stored.size,
        stored.md5,
        stored.crc32c,
        stored.body,
        stored.components,
        stored.updated_us,
        json.dumps(stored.meta),
    )
    connection.execute(f"INSERT OR REPLACE INTO objects ({OBJECT_COLUMNS}) VALUES ({', '.join('?' * 11)})", row)


def _bucket(connection: sqlite3.Connection, name: str) -> StoredBucket:
    row = connection.execute("SELECT * FROM buckets WHERE name = ?", (name,)).fetchone()
    if row is None:
        raise ApiError(404, "noSuchBucket", "The specified bucket does not exist.")
    return bucket_of(row)


def _find(connection: sqlite3.Connection, bucket: str, name: str) -> Stored | None:
    asked = f"SELECT {OBJECT_COLUMNS} FROM objects WHERE bucket = ? AND name = ?"
    row = connection.execute(asked, (bucket, name.encode("utf-8", "replace"))).fetchone()
    return None if row is None else object_of(row)


def _live(connection: sqlite3.Connection, bucket: str, name: str, generation: int | None) -> Stored:
    found = _find(connection, bucket, name)
    if found is None or generation not in (None, found.generation):
        _bucket(connection, bucket)
        raise not_found(f"No such object: {bucket}/{name}")
    return found


def _allowed(connection: sqlite3.Connection, bucket: str, name: str, only: Conditions) -> Stored | None:
    """The object that a write replaces, if it may."""
    _bucket(connection, bucket)
    found = _find(connection, bucket, name)
    only.check(found)
    if found is not None:
        _check_held(found)
    return found


def _check_held(found: Stored) -> None:
    if found.meta.get("temporaryHold") or found.meta.get("eventBasedHold"):
        told = (
            f"Object '{found.bucket}/{found.name}' is under active hold and cannot be deleted, overwritten or archived."
        )
        raise ApiError(403, "forbidden", told)
