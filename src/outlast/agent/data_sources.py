"""Sources of data: a folder, a file, or a prefix of a store, each as a list of files. Read-only."""

from __future__ import annotations

import os
import posixpath
import shutil
from collections.abc import Callable, Iterator
from typing import Protocol

import msgspec

from outlast.errors import Missing
from outlast.runs.data import local_path
from outlast.store.bucket import Bucket, Entry, check_key


class SourcePart(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a source. `below`: the source is a folder and `key` a path in it; else the source is the file."""

    key: str
    bytes: int
    modified_ns: int
    below: bool = True
    executable: bool = False


class DataSource(Protocol):
    """A readable source. Safe for use by several threads."""

    def parts(self) -> list[SourcePart]:
        """List all files, sorted; none if the source does not exist."""

    def fetch(self, part: SourcePart, path: str) -> None:
        """Copy the file to `path`. Raises WorkspaceError or OSError."""

    def unchanged(self, part: SourcePart) -> bool:
        """Return whether the file is still the one that was listed."""


def open_source(address: str, opened: Callable[[str], Bucket]) -> DataSource:
    path = local_path(address)
    return LocalSource(path) if path else StoreSource(address, opened)


class LocalSource:
    """A folder or file of this machine. Links are followed: data are often on another disk."""

    def __init__(self, path: str) -> None:
        self._path = path

    def parts(self) -> list[SourcePart]:
        if not os.path.isdir(self._path):
            return [self._part(self._path, "", below=False)] if os.path.exists(self._path) else []
        return sorted(self._walk(self._path, "", frozenset()), key=lambda part: part.key)

    def _walk(self, folder: str, prefix: str, above: frozenset[str]) -> Iterator[SourcePart]:
        real = os.path.realpath(folder)
        if real in above:
            return  # a link to a parent folder
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir():
                    yield from self._walk(entry.path, f"{prefix}{entry.name}/", above | {real})
                elif entry.is_file():
                    yield self._part(entry.path, prefix + entry.name, below=True)

    def _part(self, path: str, key: str, *, below: bool) -> SourcePart:
        info = os.stat(path)
        executable = bool(info.st_mode & 0o100)
        return SourcePart(key=key, bytes=info.st_size, modified_ns=info.st_mtime_ns, below=below, executable=executable)

    def _where(self, part: SourcePart) -> str:
        return os.path.join(self._path, part.key) if part.below else self._path

    def fetch(self, part: SourcePart, path: str) -> None:
        shutil.copyfile(self._where(part), path)

    def unchanged(self, part: SourcePart) -> bool:
        info = os.stat(self._where(part))
        return (info.st_size, info.st_mtime_ns) == (part.bytes, part.modified_ns)


class StoreSource:
    """A prefix or one object of a store."""

    def __init__(self, address: str, opened: Callable[[str], Bucket]) -> None:
        self._address = address.rstrip("/")
        self._opened = opened
        self._bucket = opened(self._address)

    def parts(self) -> list[SourcePart]:
        found = list(self._bucket.list(""))
        folders = {folder for entry in found for folder in _folders(entry.key)}
        # Web consoles create empty objects for folders.
        parts = [_part(entry, below=True) for entry in found if entry.key not in folders]
        return parts or self._single()

    def _single(self) -> list[SourcePart]:
        """Treat the address as that of one object, whose bucket or prefix is one level up."""
        above, _, name = self._address.rpartition("/")
        if above.endswith("/") or not name:
            return []
        self._bucket = self._opened(above)
        try:
            return [_part(self._bucket.head(name), below=False)]
        except Missing:
            return []

    def fetch(self, part: SourcePart, path: str) -> None:
        self._bucket.download(part.key, path)

    def unchanged(self, part: SourcePart) -> bool:
        return _part(self._bucket.head(part.key), below=part.below) == part


def _part(entry: Entry, *, below: bool) -> SourcePart:
    return SourcePart(
        key=check_key(entry.key), bytes=entry.bytes, modified_ns=round(entry.modified_at * 1e9), below=below
    )


def _folders(key: str) -> Iterator[str]:
    while key := posixpath.dirname(key):
        yield key
