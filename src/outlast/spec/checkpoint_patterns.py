"""Matching of files by the names and patterns of `[checkpoint] path`.

A `*` matches within one name. The name of a folder stands for everything in it. No names match everything.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Iterable

# Files that SQLite keeps beside a database, and that TensorFlow writes for a checkpoint's name.
_BESIDE = ("", "-journal", "-wal", "-shm", ".index", ".data-*")
# The checkpoints of outlast's own trainer library.
_TRAINERS = "step-" + "[0-9]" * 9


def with_sidecars(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names and those of the files that belong to the same checkpoint."""
    found = tuple(name + beside for name in names for beside in _BESIDE)
    return (*found, _TRAINERS) if found else ()


def is_meant(path: str, names: Collection[str]) -> bool:
    """Return whether the path is one of these or inside one of these."""
    return not names or any(_meets(path, name) and path.count("/") >= name.count("/") for name in names)


def may_hold(path: str, names: Collection[str]) -> bool:
    """Return whether the folder may contain one of these."""
    return not names or any(_meets(path, name) for name in names)


def insides(path: str, names: Collection[str]) -> list[str]:
    """Return the part of the path below each name that matches it; without names the whole path."""
    parts = path.split("/")
    return ["/".join(parts[name.count("/") + 1 :]) for name in names if is_meant(path, [name])] if names else [path]


def _meets(path: str, name: str) -> bool:
    """Return whether the common leading parts match."""
    return all(map(fnmatch.fnmatchcase, path.split("/"), name.split("/")))
