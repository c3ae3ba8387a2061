"""Buckets and objects in a folder. Each change is one transaction: a create-only put has one winner among all threads
and processes, and a killed process leaves the old object or the new one."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, BinaryIO

from outlast_gcp_emulator.errors import ApiError, not_found
from outlast_gcp_emulator.storage.bodies import BodyStore, StagedBody
from outlast_gcp_emulator.storage.database import MetadataDatabase, tick_us
from outlast_gcp_emulator.storage.listing import list_objects
from outlast_gcp_emulator.storage.values import (
    NO_CONDITIONS,
    OBJECT_COLUMNS,
    Conditions,
    ObjectPage,
    ObjectQuery,
    StoredBucket,
    StoredObject,
    check_object_name,
)

Meta = Mapping[str, Any]
Change = Callable[[Meta], Meta]


class ObjectStore:
    """The buckets of one folder, which any number of threads and processes may use."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.database = MetadataDatabase(f"{root}/storage.sqlite")
        self.bodies = BodyStore(root)
        with self.database.writing() as connection:
            self.bodies.remove_orphans(connection)

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
                message = "Your previous request to create the named bucket succeeded and you already own it."
                raise ApiError(409, "conflict", message) from problem
            return StoredBucket.from_row(row)

    def bucket(self, name: str) -> StoredBucket:
        with self.database.reading() as connection:
            return _bucket(connection, name)

    def buckets(self, *, prefix: str, start: str, count: int, project: str) -> list[StoredBucket]:
        """List buckets by name from `start` on, of one project, or of all if `project` is empty."""
        query = "SELECT * FROM buckets WHERE name >= ? AND substr(name, 1, ?) = ? AND (? = '' OR project = ?)"
        with self.database.reading() as connection:
            values = (start, len(prefix), prefix, project, project, count)
            return [StoredBucket.from_row(row) for row in connection.execute(f"{query} ORDER BY name LIMIT ?", values)]

    def change_bucket(
        self, name: str, change: Change, *, policy: Meta | None, metageneration: int | None
    ) -> StoredBucket:
        """Change the metadata or the policy. Raises ApiError if the metageneration is not the given one."""
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

    @contextmanager
    def staging(self, pieces: Iterable[bytes]) -> Iterator[StagedBody]:
        """Receive a body completely. On exit a body that no object took over is removed."""
        writer = self.bodies.stage()
        try:
            for piece in pieces:
                writer.write(piece)
            yield writer.finish()
        finally:
            writer.discard()

    def put(
        self,
        bucket: str,
        name: str,
        staged: StagedBody,
        meta: Meta,
        *,
        conditions: Conditions = NO_CONDITIONS,
        components: int | None = None,
        also: Callable[[sqlite3.Connection, StoredObject], None] | None = None,
    ) -> StoredObject:
        """Create or replace an object. `also` runs in the same transaction."""
        with self._changing() as (connection, unneeded):
            check_object_name(name)
            found = _replaceable(connection, bucket, name, conditions)
            body = self.bodies.store(connection, staged)
            generation = tick_us(connection)
            stored = StoredObject(
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

    def get(self, bucket: str, name: str, *, generation: int | None = None) -> StoredObject:
        with self.database.reading() as connection:
            return _live(connection, bucket, name, generation)

    def open(self, bucket: str, name: str, *, generation: int | None = None) -> tuple[StoredObject, BinaryIO]:
        """Return the object and its open body, which stays readable if the object is replaced."""
        while True:
            with self.database.reading() as connection:
                stored = _live(connection, bucket, name, generation)
                # The object was replaced meanwhile and its old body deleted: retry.
                with suppress(FileNotFoundError):
                    return stored, self.bodies.open(connection, stored.body)

    def change(
        self, bucket: str, name: str, change: Change, *, generation: int | None, only: Conditions
    ) -> StoredObject:
        """Change the metadata of an object; its body and generation stay."""
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
    ) -> StoredObject:
        """Create an object that shares the body of another. With `move`, delete the other."""
        with self._changing() as (connection, unneeded):
            check_object_name(target[1])
            original = _live(connection, *source)
            source_only.check(original)
            found = _replaceable(connection, *target, target_only)
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

    def page(self, bucket: str, listing: ObjectQuery) -> ObjectPage:
        with self.database.reading() as connection:
            _bucket(connection, bucket)
            return list_objects(connection, bucket, listing)

    # Within a transaction

    @contextmanager
    def _changing(self) -> Iterator[tuple[sqlite3.Connection, list[str]]]:
        """Run a transaction; afterwards delete the files that were added to the list."""
        unneeded: list[str] = []
        with self.database.writing() as connection:
            yield connection, unneeded
        for path in unneeded:
            with suppress(FileNotFoundError):
                os.unlink(path)

    def _write(
        self, connection: sqlite3.Connection, stored: StoredObject, found: StoredObject | None, unneeded: list[str]
    ) -> None:
        _insert(connection, stored)
        if found is not None:
            unneeded += self.bodies.release(connection, found.body)


def _insert(connection: sqlite3.Connection, stored: StoredObject) -> None:
    row = stored.to_row()
    values = ", ".join("?" * len(row))
    connection.execute(f"INSERT OR REPLACE INTO objects ({OBJECT_COLUMNS}) VALUES ({values})", row)


def _bucket(connection: sqlite3.Connection, name: str) -> StoredBucket:
    row = connection.execute("SELECT * FROM buckets WHERE name = ?", (name,)).fetchone()
    if row is None:
        raise ApiError(404, "noSuchBucket", "The specified bucket does not exist.")
    return StoredBucket.from_row(row)


def _find(connection: sqlite3.Connection, bucket: str, name: str) -> StoredObject | None:
    query = f"SELECT {OBJECT_COLUMNS} FROM objects WHERE bucket = ? AND name = ?"
    row = connection.execute(query, (bucket, name.encode("utf-8", "replace"))).fetchone()
    return None if row is None else StoredObject.from_row(row)


def _live(connection: sqlite3.Connection, bucket: str, name: str, generation: int | None) -> StoredObject:
    found = _find(connection, bucket, name)
    if found is None or generation not in (None, found.generation):
        _bucket(connection, bucket)
        raise not_found(f"No such object: {bucket}/{name}")
    return found


def _replaceable(connection: sqlite3.Connection, bucket: str, name: str, only: Conditions) -> StoredObject | None:
    """Return the object that a write replaces, if any. Raises ApiError if the conditions forbid the write."""
    _bucket(connection, bucket)
    found = _find(connection, bucket, name)
    only.check(found)
    if found is not None:
        _check_held(found)
    return found


def _check_held(found: StoredObject) -> None:
    if found.meta.get("temporaryHold") or found.meta.get("eventBasedHold"):
        name = f"{found.bucket}/{found.name}"
        message = f"Object '{name}' is under active hold and cannot be deleted, overwritten or archived."
        raise ApiError(403, "forbidden", message)
