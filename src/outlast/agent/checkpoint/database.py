"""SQLite databases that a program keeps open in its checkpoint folder: how to recognise and to copy them.

In the middle of a transaction the bytes of the file are useless, so SQLite itself makes the copy.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
import urllib.parse
from collections.abc import Collection, Iterable

_HEADER = b"SQLite format 3\0"
_SIDECARS = ("-journal", "-wal", "-shm")
# Without a write-ahead log, writers wait while the copy reads: it reads this much at a time.
_STEP_BYTES = 4 << 20
_TIMEOUT_S = 5.0
_RESTARTS_MAX = 10
# From sqlite3.h: the status of one step of a copy.
_OK, _DONE = 0, 101


def databases_among(folder: str, paths: Iterable[str], *, known: Collection[str] = ()) -> frozenset[str]:
    """Return which of these open files are databases.

    Does not open known databases and SQLite's sidecar files: closing a file releases this process's locks on it, and
    with them those of a copy in progress.
    """
    return frozenset(
        path
        for path in paths
        if path in known or (not path.endswith(_SIDECARS) and _has_header(os.path.join(folder, path)))
    )


def with_sidecar_files(databases: Iterable[str]) -> frozenset[str]:
    """Return the databases and the files that SQLite keeps beside them while they are open."""
    return frozenset(path + suffix for path in databases for suffix in ("", *_SIDECARS))


def copy_database(source: str, target: str) -> None:
    """Copy the database as it was between two transactions. Raises OSError if that is not possible now."""
    try:
        import sqlite3
    except ImportError as problem:  # a Python that was built without it
        raise OSError(f"`{source}`: {problem}") from problem
    os.makedirs(os.path.dirname(target), exist_ok=True)
    address = f"file:{urllib.parse.quote(source)}?mode=ro"
    try:
        with (
            contextlib.closing(sqlite3.connect(address, uri=True, timeout=1.0)) as old,
            contextlib.closing(sqlite3.connect(target)) as new,
        ):
            new.execute("PRAGMA synchronous = OFF")
            [mode] = old.execute("PRAGMA journal_mode").fetchone()
            [page_bytes] = old.execute("PRAGMA page_size").fetchone()
            # With a write-ahead log no writer waits for a reader, so one step reads everything.
            pages = -1 if mode == "wal" else max(1, _STEP_BYTES // page_bytes)
            old.backup(new, pages=pages, progress=_CopyTimeout(source), sleep=0.01)
            [result] = new.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.Error as problem:
        raise OSError(f"`{source}`: {problem}") from problem
    if result != "ok":
        raise OSError(f"database `{source}` is damaged: {result}")


class _CopyTimeout:
    """Stops a copy that is locked out, or that writes restart again and again; not one that only takes long."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._give_up_at = time.monotonic() + _TIMEOUT_S
        self._left = sys.maxsize
        self._restarts = 0

    def __call__(self, status: int, left: int, _pages: int) -> None:
        if status in (_OK, _DONE):
            self._restarts += left > self._left
            self._left, self._give_up_at = left, time.monotonic() + _TIMEOUT_S
        if self._restarts > _RESTARTS_MAX:
            raise TimeoutError(f"`{self._source}` is written to all the time")
        if time.monotonic() > self._give_up_at:
            raise TimeoutError(f"`{self._source}` is locked all the time")


def _has_header(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(len(_HEADER)) == _HEADER
    except OSError:
        return False
