"""SQLite databases that a program keeps open in its checkpoint folder: which files they are, and a copy that is whole.

Their bytes are never copied as they are: in the middle of a transaction they mean nothing. SQLite makes the copy.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
import urllib.parse
from collections.abc import Collection, Iterable

_HEADER = b"SQLite format 3\0"
_SIDES = ("-journal", "-wal", "-shm")
# Without a write-ahead log whoever writes waits while we read: so much is read at once, and more in steps of as much.
_STEP_BYTES = 4 << 20
_PATIENCE_S = 5.0
_BEGUN_MAX = 10
# Of sqlite3.h, as the steps of a copy end.
_OK, _DONE = 0, 101


def databases_among(folder: str, paths: Iterable[str], *, known: Collection[str] = ()) -> frozenset[str]:
    """Which of these open files are databases. Those that are known, and what SQLite keeps beside databases, are not
    opened: to close a file gives up the locks that this process has on it, and with them a copy that is being made."""
    return frozenset(
        path
        for path in paths
        if path in known or (not path.endswith(_SIDES) and _begins_as_one(os.path.join(folder, path)))
    )


def with_sides(databases: Iterable[str]) -> frozenset[str]:
    """The databases and the files that SQLite keeps beside them while they are open."""
    return frozenset(path + side for path in databases for side in ("", *_SIDES))


def copy_database(source: str, target: str) -> None:
    """As it was between two transactions. Raises OSError if that cannot be had now."""
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
            # With a write-ahead log nobody waits for a reader, and the whole is read as it was at one moment.
            pages = -1 if mode == "wal" else max(1, _STEP_BYTES // page_bytes)
            old.backup(new, pages=pages, progress=_Patience(source), sleep=0.01)
            [told] = new.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.Error as problem:
        raise OSError(f"`{source}`: {problem}") from problem
    if told != "ok":
        raise OSError(f"`{source}` is no whole database: {told}")


class _Patience:
    """Gives up what is locked, or begun anew again and again, as a copy is with every write; not what takes long."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._give_up_at = time.monotonic() + _PATIENCE_S
        self._left = sys.maxsize
        self._begun = 0

    def __call__(self, status: int, left: int, _pages: int) -> None:
        if status in (_OK, _DONE):
            self._begun += left > self._left
            self._left, self._give_up_at = left, time.monotonic() + _PATIENCE_S
        if self._begun > _BEGUN_MAX:
            raise TimeoutError(f"`{self._source}` is written to all the time")
        if time.monotonic() > self._give_up_at:
            raise TimeoutError(f"`{self._source}` is locked all the time")


def _begins_as_one(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(len(_HEADER)) == _HEADER
    except OSError:
        return False
