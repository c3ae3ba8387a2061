"""SQLite databases that a program keeps open in its checkpoint folder: which files they are, and a copy that is whole.

Their bytes are never copied as they are: in the middle of a transaction they mean nothing. SQLite makes the copy.
"""

from __future__ import annotations

import contextlib
import os
import time
import urllib.parse
from collections.abc import Collection, Iterable

_HEADER = b"SQLite format 3\0"
_SIDES = ("-journal", "-wal", "-shm")
# So much at a time: whoever writes with a journal has to wait for it, and some give up after five seconds.
_PAGES = 1024
_PATIENCE_S = 5.0


def databases_among(folder: str, paths: Iterable[str], *, known: Collection[str] = ()) -> frozenset[str]:
    """Which of these open files are databases. Those that are known are not opened again: to close a file gives up the
    locks that this process has on it, and with them a copy that is being made."""
    return frozenset(path for path in paths if path in known or _begins_as_one(os.path.join(folder, path)))


def with_sides(databases: Iterable[str]) -> frozenset[str]:
    """The databases and the files that SQLite keeps beside them while they are open."""
    return frozenset(path + side for path in databases for side in ("", *_SIDES))


def copy_database(source: str, target: str) -> None:
    """As it was between two transactions. Raises OSError if that cannot be had now."""
    try:
        import sqlite3
    except ImportError as problem:  # a Python that was built without it
        raise OSError(f"`{source}`: {problem}") from problem
    give_up_at = time.monotonic() + _PATIENCE_S

    def go_on(*_: object) -> None:
        if time.monotonic() > give_up_at:
            raise TimeoutError(f"`{source}` is written to all the time")

    os.makedirs(os.path.dirname(target), exist_ok=True)
    address = f"file:{urllib.parse.quote(source)}?mode=ro"
    try:
        with (
            contextlib.closing(sqlite3.connect(address, uri=True, timeout=1.0)) as old,
            contextlib.closing(sqlite3.connect(target)) as new,
        ):
            new.execute("PRAGMA synchronous = OFF")
            [mode] = old.execute("PRAGMA journal_mode").fetchone()
            # With a write-ahead log nobody waits for a reader, and the whole is read as it was at one moment.
            old.backup(new, pages=-1 if mode == "wal" else _PAGES, progress=go_on, sleep=0.01)
    except sqlite3.Error as problem:
        raise OSError(f"`{source}`: {problem}") from problem


def _begins_as_one(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(len(_HEADER)) == _HEADER
    except OSError:
        return False
