"""`outlast volume populate`: copies files into a folder, many at a time. What is there already is not copied again.

A file is written in a folder of drafts and renamed to its place, so that an interrupted copy leaves no half file under
a real name, and the next one goes on where it ended. Each copy has drafts of its own: two at once do no harm, and those
of one that was killed are removed by the next. Size and time tell whether a file is the same.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress

import msgspec

from outlast.errors import OutlastError, UsageError, VolumeFull

_THREADS = 8
_DRAFTS = ".outlast-drafts-"


class PopulateResult(msgspec.Struct, frozen=True, kw_only=True):
    """What was copied, and what was there already."""

    files: int
    bytes: int
    same: int


class _Item(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    bytes: int
    modified_ns: int
    link: bool = False


def populate(source: str, target: str, *, room_bytes: float, report: Callable[[str], None]) -> PopulateResult:
    """Copy a file or what is in a folder. Raises VolumeFull before the first byte if it cannot fit."""
    if not os.path.exists(source):
        raise UsageError(f"SRC: there is no `{source}`", hint="name a file or a folder of this computer")
    root, items = _listed(source)
    todo = [item for item in items if not _is_there(item, target)]
    wanted = sum(item.bytes - _replaced(item, target) for item in todo)
    if wanted > room_bytes:
        raise VolumeFull(
            f"{wanted / 1e9:.3f} GB are to be copied, and the volume has room for {max(0.0, room_bytes) / 1e9:.3f} GB",
            hint="`outlast volume resize NAME --size SIZE`, or delete something; nothing was copied",
        )
    report(f"{len(todo)} of {len(items)} files, {wanted / 1e6:.1f} MB")
    _copy_all(root, todo, target, report)
    return PopulateResult(files=len(todo), bytes=sum(item.bytes for item in todo), same=len(items) - len(todo))


def _listed(source: str) -> tuple[str, list[_Item]]:
    if not os.path.isdir(source):
        folder, name = os.path.split(os.path.abspath(source))
        return folder, [_item(folder, name)]
    root = os.path.abspath(source)
    return root, sorted(_walk(root), key=lambda item: item.path)


def _walk(root: str) -> Iterator[_Item]:
    for place, folders, names in os.walk(root):
        below = os.path.relpath(place, root)
        links = [name for name in folders if os.path.islink(os.path.join(place, name))]
        for name in (*names, *links):
            yield _item(root, os.path.normpath(os.path.join(below, name)))


def _item(root: str, path: str) -> _Item:
    full = os.path.join(root, path)
    status = os.lstat(full)
    link = os.path.islink(full)
    return _Item(path=path, bytes=0 if link else status.st_size, modified_ns=status.st_mtime_ns, link=link)


def _is_there(item: _Item, target: str) -> bool:
    try:
        status = os.lstat(os.path.join(target, item.path))
    except OSError:
        return False
    if item.link:
        return False  # a link costs nothing to make again
    # In seconds: that is as fine as every file system keeps it.
    return (status.st_size, status.st_mtime_ns // 10**9) == (item.bytes, item.modified_ns // 10**9)


def _replaced(item: _Item, target: str) -> int:
    try:
        return os.lstat(os.path.join(target, item.path)).st_size
    except OSError:
        return 0


def _copy_all(root: str, todo: list[_Item], target: str, report: Callable[[str], None]) -> None:
    total = sum(item.bytes for item in todo)
    done, begun, told_at = 0, time.monotonic(), 0.0
    stop = threading.Event()
    numbers = itertools.count()
    pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="populate")
    try:
        os.makedirs(target, exist_ok=True)
        with _drafts(target) as folder:
            try:
                pending = {
                    pool.submit(_copy, root, item, target, f"{folder}/{next(numbers)}", stop): item for item in todo
                }
                for count, future in enumerate(as_completed(pending), 1):
                    future.result()
                    done += pending[future].bytes
                    if time.monotonic() - told_at > 1.0 or count == len(todo):
                        told_at = time.monotonic()
                        rate = done / max(0.001, told_at - begun) / 1e6
                        report(
                            f"{count} of {len(todo)} files, {done / 1e6:.1f} of {total / 1e6:.1f} MB, {rate:.0f} MB/s"
                        )
            finally:
                stop.set()
                pool.shutdown(cancel_futures=True)
    except OSError as problem:
        raise _told(problem) from problem


@contextmanager
def _drafts(target: str) -> Iterator[str]:
    """A folder for files that are not whole yet. Its lock says that somebody copies; without one it is removed."""
    for name in os.listdir(target):
        if name.startswith(_DRAFTS) and (lock := _locked(f"{target}/{name}")) is not None:
            shutil.rmtree(f"{target}/{name}", ignore_errors=True)
            os.close(lock)
    while (lock := _locked(folder := tempfile.mkdtemp(prefix=_DRAFTS, dir=target))) is None:
        pass  # another copy took it for a dead one's, before we had its lock
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _locked(folder: str) -> int | None:
    """The lock of a folder; None if somebody has it, or the folder is gone."""
    with suppress(FileNotFoundError):
        # A file, not the folder itself: on NFS only what can be written is locked.
        lock = os.open(path := f"{folder}/lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with suppress(BlockingIOError, FileNotFoundError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(lock), os.stat(path)):
                return lock
        os.close(lock)
    return None


def _copy(root: str, item: _Item, target: str, draft: str, stop: threading.Event) -> None:
    if stop.is_set():
        return
    source, goal = os.path.join(root, item.path), os.path.join(target, item.path)
    _make_folder(target, os.path.dirname(item.path))
    if item.link:
        os.symlink(os.readlink(source), draft)
    else:
        shutil.copyfile(source, draft)
        shutil.copystat(source, draft)
    os.replace(draft, goal)


def _make_folder(target: str, path: str) -> None:
    """A folder of the volume, with those above it; but not the volume itself, which somebody may just have deleted."""
    if not path:
        return
    try:
        os.mkdir(os.path.join(target, path))
    except FileExistsError:
        pass
    except FileNotFoundError:
        if not os.path.isdir(target):
            raise
        _make_folder(target, os.path.dirname(path))
        with suppress(FileExistsError):
            os.mkdir(os.path.join(target, path))


def _told(problem: OSError) -> OutlastError:
    import errno

    if problem.errno in (errno.ENOSPC, errno.EDQUOT):
        hint = "`outlast volume resize NAME --size SIZE`, then the same command again: it goes on where it ended"
        return VolumeFull(f"the volume is full: {problem.filename or ''}".rstrip(": "), hint=hint)
    return OutlastError(f"could not copy {problem.filename}: {problem.strerror}", hint="it can be repeated")
