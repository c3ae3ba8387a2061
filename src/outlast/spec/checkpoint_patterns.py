"""Which files of a folder are meant where not all of them are: by names and patterns, as `[checkpoint] path` has them.

A `*` stays within a name. A folder that is named stands for everything in it.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Iterable

# What SQLite keeps beside a database, and what TensorFlow makes of the name that it is told.
_BESIDE = ("", "-journal", "-wal", "-shm", ".index", ".data-*")
# What our own library saves, whatever else is saved.
_TRAINERS = "step-" + "[0-9]" * 9


def with_sidecars(names: Iterable[str]) -> tuple[str, ...]:
    """The names, and those of what else is a part of a checkpoint that has them. No names mean everything."""
    found = tuple(name + beside for name in names for beside in _BESIDE)
    return (*found, _TRAINERS) if found else ()


def is_meant(path: str, names: Collection[str]) -> bool:
    """Is it one of these, or in one of these? No names mean everything."""
    return not names or any(_meets(path, name) and path.count("/") >= name.count("/") for name in names)


def may_hold(path: str, names: Collection[str]) -> bool:
    """May something below this folder be one of these?"""
    return not names or any(_meets(path, name) for name in names)


def insides(path: str, names: Collection[str]) -> list[str]:
    """What of the path is below that which is meant, for each name by which it is; with no names all of it."""
    parts = path.split("/")
    return ["/".join(parts[name.count("/") + 1 :]) for name in names if is_meant(path, [name])] if names else [path]


def _meets(path: str, name: str) -> bool:
    """As far as both go."""
    return all(map(fnmatch.fnmatchcase, path.split("/"), name.split("/")))
