"""Data in buckets: files of this computer copied to where `[data]` finds them."""

from __future__ import annotations

import os
from collections.abc import Mapping

import msgspec

from outlast.errors import UsageError
from outlast.store.bucket import Entry, check_key, open_bucket
from outlast.store.parallel import in_parallel


class PutResult(msgspec.Struct, frozen=True, kw_only=True):
    """The files that were copied, and the number of those that were there already."""

    files: int
    bytes: int
    skipped: int


def put_data(source: str, destination: str) -> PutResult:
    """Copy a folder or a file to a bucket or a folder; may be repeated. Deletes nothing. Raises UsageError."""
    bucket = open_bucket(destination)
    files = files_below(source)
    if not files:
        raise UsageError(f"SOURCE: `{source}` contains no files")
    sent = changed(files, {entry.key: entry for entry in bucket.list("")})
    in_parallel(lambda file: bucket.upload(file.key, file.path), sent)
    return PutResult(files=len(sent), bytes=sum(file.bytes for file in sent), skipped=len(files) - len(sent))


class LocalFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file to copy: its path, its key below the destination, size and time of the last change."""

    path: str
    key: str
    bytes: int
    modified_at: float


def files_below(source: str) -> list[LocalFile]:
    """Return all files of a folder, or the file itself. Raises UsageError."""
    if not os.path.exists(source):
        raise UsageError(f"SOURCE: `{source}` does not exist", hint="pass a file or folder of this computer")
    root = source if os.path.isdir(source) else os.path.dirname(os.path.abspath(source))
    paths = [os.path.join(place, name) for place, _, names in os.walk(source, followlinks=True) for name in names]
    found = []
    for path in sorted(paths) if os.path.isdir(source) else [os.path.abspath(source)]:
        info = os.stat(path)
        key = check_key(os.path.relpath(path, root))
        found.append(LocalFile(path=path, key=key, bytes=info.st_size, modified_at=info.st_mtime))
    return found


def changed(files: list[LocalFile], there: Mapping[str, Entry]) -> list[LocalFile]:
    """Return the files that the bucket lacks, or has in another size or from before the last change."""
    return [
        file
        for file in files
        if (entry := there.get(file.key)) is None or entry.bytes != file.bytes or entry.modified_at < file.modified_at
    ]
