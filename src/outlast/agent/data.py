"""Fetches `[data]` to the machine through a cache that outlives the attempt. Writes below the code folder only.

Placed files share their bytes with the cache (a clone if the file system supports it, else a hard link): a copy would
double the disk and the time to start. They are read-only. A trainer that writes to one anyway changes its modification
time, and a cached file whose size or time differs from the source's is fetched again: the next attempt is not
affected. The cache has no index: the name of a cached file is derived from the source's key, size and time.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager

from outlast.agent.data_sources import DataSource, SourcePart, open_source
from outlast.errors import SpecError, WorkspaceError
from outlast.runs.data import check_places, field
from outlast.store.blobs import forget
from outlast.store.bucket import Bucket, open_bucket

_THREADS = 16
_TRIES = 3
_FICLONE = 0x40049409


def fetch_data(
    sources: Mapping[str, str],
    *,
    destination: str,
    cache: str,
    progress: Callable[[str], None],
    opened: Callable[[str], Bucket] = open_bucket,
) -> None:
    """Place every source at its path below the destination. May be repeated; cached files are not fetched again.

    Raises SpecError for paths that lead outside and sources that do not exist, WorkspaceError if a fetch fails.
    """
    problems = check_places(sources)
    if problems:
        raise SpecError(problems)
    for place, address in sources.items():

        def report(text: str, name: str = place) -> None:
            progress(f"{field(name)}: {text}")

        try:
            source = open_source(address, opened)
            parts = source.parts()
            if not parts:
                raise SpecError([f"{field(place)}: `{address}` does not exist, or is empty"])
            kept = os.path.join(cache, hashlib.sha256(address.encode()).hexdigest()[:32])
            with _locked(kept):
                _fetch(source, parts, kept, report)
                _place(parts, kept, destination, place)
                _prune(parts, kept)
        except WorkspaceError as problem:
            raise type(problem)(f"{field(place)}: {problem.message}", hint=problem.hint) from problem
        except OSError as problem:
            why = f"{problem.strerror}: {problem.filename}" if problem.filename else str(problem)
            raise WorkspaceError(f"{field(place)}: could not fetch `{address}`: {why}") from problem


@contextmanager
def _locked(kept: str) -> Iterator[None]:
    """Lock the cache of one source: two attempts on one machine must not prune each other's files."""
    os.makedirs(kept, mode=0o700, exist_ok=True)
    with open(kept + ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _cached_path(kept: str, part: SourcePart) -> str:
    described = f"{part.key}\0{part.bytes}\0{part.modified_ns}".encode(errors="surrogateescape")
    return os.path.join(kept, hashlib.sha256(described).hexdigest())


def _holds(path: str, part: SourcePart) -> bool:
    try:
        info = os.stat(path)
    except FileNotFoundError:
        return False
    return (info.st_size, info.st_mtime_ns) == (part.bytes, _whole_second(part))


def _whole_second(part: SourcePart) -> int:
    """Return the modification time of a cached file: the source's, in seconds, which every file system supports."""
    return part.modified_ns // 10**9 * 10**9


def _fetch(source: DataSource, parts: list[SourcePart], kept: str, progress: Callable[[str], None]) -> None:
    """Fetch the files that are not cached, in parallel. The first error ends it; fetched files stay cached."""
    wanted = [part for part in parts if not _holds(_cached_path(kept, part), part)]
    total = sum(part.bytes for part in wanted)
    if not wanted:
        progress(f"{len(parts)} files, all cached")
        return
    progress(f"fetching {len(wanted)} of {len(parts)} files, {_size(total)}")
    done = reported = 0
    pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="data")
    try:
        pending = {pool.submit(_fetch_one, source, part, _cached_path(kept, part)): part for part in wanted}
        for count, future in enumerate(as_completed(pending), 1):
            future.result()
            done += pending[future].bytes
            tenth = 10 * done // total if total else 10
            if tenth > reported or count == len(wanted):
                reported = tenth
                progress(f"{count} of {len(wanted)} files, {_size(done)} of {_size(total)}")
    finally:
        pool.shutdown(cancel_futures=True)


def _fetch_one(source: DataSource, part: SourcePart, path: str) -> None:
    for _ in range(_TRIES):
        forget(path)
        source.fetch(part, path)
        size = os.stat(path).st_size
        # A file that was replaced meanwhile is another version, and must not be cached under this name.
        if size == part.bytes and source.unchanged(part):
            os.chmod(path, 0o555 if part.executable else 0o444)
            os.utime(path, ns=(_whole_second(part), _whole_second(part)))
            return
    forget(path)
    raise WorkspaceError(f"`{part.key}` changed while it was fetched: {part.bytes} bytes were listed, {size} were read")


def _place(parts: list[SourcePart], kept: str, destination: str, place: str) -> None:
    root = os.path.realpath(destination)
    target = os.path.join(root, place.removesuffix("/"))
    if os.path.islink(target):
        os.unlink(target)  # the code may contain a link to another copy of the data
    for folder in sorted({os.path.dirname(_target(target, part)) for part in parts}):
        if not (os.path.realpath(folder) + "/").startswith(root + "/"):
            raise SpecError([f"{field(place)}: a link in the code leads outside the code folder"])
        os.makedirs(folder, exist_ok=True)
    for part in parts:
        _share(_cached_path(kept, part), _target(target, part))


def _target(target: str, part: SourcePart) -> str:
    return os.path.join(target, part.key) if part.below else target


def _share(cached: str, target: str) -> None:
    """Place the cached file without a copy, if possible; the module docstring gives the reason."""
    forget(target)
    if _clone(cached, target):
        return
    try:
        os.link(cached, target)
    except OSError:
        shutil.copy2(cached, target)  # another file system, or one without hard links


def _clone(cached: str, target: str) -> bool:
    """Share the bytes, copy on write. Returns False if the file system cannot."""
    try:
        with open(cached, "rb") as source, open(target, "wb") as copy:
            fcntl.ioctl(copy.fileno(), _FICLONE, source.fileno())
        shutil.copystat(cached, target)
    except OSError:
        forget(target)
        return False
    return True


def _prune(parts: list[SourcePart], kept: str) -> None:
    """Delete older versions, and incomplete files of a killed attempt."""
    current = {os.path.basename(_cached_path(kept, part)) for part in parts}
    for name in os.listdir(kept):
        if name not in current:
            forget(os.path.join(kept, name))


def _size(count: int) -> str:
    for unit, one in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= one:
            return f"{count / one:,.1f} {unit}"
    return f"{count} bytes"
