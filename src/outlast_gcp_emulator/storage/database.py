"""The metadata tables: SQLite, whose transactions isolate threads and processes from each other.

Object names are stored as bytes, so that they sort as in Cloud Storage.
"""

from __future__ import annotations

import errno
import os
import queue
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

_SCHEMA = """
CREATE TABLE IF NOT EXISTS buckets (
    name TEXT PRIMARY KEY, project TEXT NOT NULL, metageneration INTEGER NOT NULL,
    created_us INTEGER NOT NULL, updated_us INTEGER NOT NULL, meta TEXT NOT NULL, policy TEXT
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS objects (
    bucket TEXT NOT NULL, name BLOB NOT NULL, generation INTEGER NOT NULL, metageneration INTEGER NOT NULL,
    size INTEGER NOT NULL, md5 BLOB, crc32c INTEGER NOT NULL, body TEXT NOT NULL, components INTEGER,
    updated_us INTEGER NOT NULL, meta TEXT NOT NULL, PRIMARY KEY (bucket, name)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS objects_by_body ON objects (body);
CREATE TABLE IF NOT EXISTS bodies (id TEXT PRIMARY KEY, data BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS uploads (
    id TEXT PRIMARY KEY, kind TEXT NOT NULL, bucket TEXT NOT NULL, name BLOB NOT NULL, meta TEXT NOT NULL,
    conditions TEXT NOT NULL, created_us INTEGER NOT NULL, result TEXT
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS parts (
    upload TEXT NOT NULL, number INTEGER NOT NULL, size INTEGER NOT NULL, md5 BLOB NOT NULL, file TEXT NOT NULL,
    updated_us INTEGER NOT NULL, PRIMARY KEY (upload, number)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS clock (one INTEGER PRIMARY KEY CHECK (one = 1), last_us INTEGER NOT NULL);
INSERT OR IGNORE INTO clock VALUES (1, 0);
"""
_BUSY_MS = 60_000


class MetadataDatabase:
    """A pool of connections, each used by one thread at a time."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._idle: queue.SimpleQueue[sqlite3.Connection] = queue.SimpleQueue()
        self._writer = threading.Lock()
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with self._connection() as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.executescript(_SCHEMA)

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Open a read transaction: all its queries see the same state."""
        with self._connection() as connection:
            connection.execute("BEGIN")
            try:
                yield connection
            finally:
                connection.execute("ROLLBACK")

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Open an exclusive write transaction. A commit is durable on disk."""
        # Threads queue here, because polling for the file lock would starve some of them.
        with self._writer, self._connection() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except sqlite3.OperationalError as problem:
                raise OSError(errno.EIO, str(problem)) from problem
            finally:
                # A commit, or a full disk, has already ended the transaction.
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        try:
            connection = self._idle.get_nowait()
        except queue.Empty:
            connection = sqlite3.connect(
                self._path, isolation_level=None, check_same_thread=False, timeout=_BUSY_MS / 1000
            )
            connection.execute("PRAGMA synchronous = FULL")
        try:
            yield connection
        finally:
            self._idle.put(connection)

    def close(self) -> None:
        while True:
            try:
                self._idle.get_nowait().close()
            except queue.Empty:
                return


def tick_us(connection: sqlite3.Connection) -> int:
    """Return a generation: the time in microseconds, later than all before. Call only inside of `writing`."""
    (last,) = connection.execute("SELECT last_us FROM clock").fetchone()
    now = max(time.time_ns() // 1000, last + 1)
    connection.execute("UPDATE clock SET last_us = ?", (now,))
    return int(now)
