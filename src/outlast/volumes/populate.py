"""`outlast volume populate`: copies files into a folder in parallel, and skips files that are there.

Each file is written to a draft folder and renamed, so that an interrupted copy leaves no partial file under a real
name, and the next one resumes. Each copy has its own draft folder; the next copy removes those of killed ones. Files
are equal if size and time are.
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
    """The number of copied and of identical files."""

    files: int
    bytes: int
    same: int


class _Item(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    bytes: int
    modified_ns: int
    link: bool = False


def populate(source: str, target: str, *, room_bytes: float, report: Callable[[str], None]) -> PopulateResult:
    """Copy a file, or the content of a folder. Raises VolumeFull before the first byte if it cannot fit."""
    if not os.path.exists(source):
        raise UsageError(f"SRC: `{source}` does not exist", hint="pass a file or folder of this computer")
    root, items = _listed(source)
    todo = [item for item in items if not _is_there(item, target)]
    wanted = sum(item.bytes - _replaced(item, target) for item in todo)
    if wanted > room_bytes:
        raise VolumeFull(
            f"cannot copy {wanted / 1e9:.3f} GB: the volume has {max(0.0, room_bytes) / 1e9:.3f} GB free",
            hint="`outlast volume resize NAME --size SIZE`, or delete files; nothing was copied",
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
        return False  # always create links again, which is cheap
    # Compare whole seconds: some file systems store no finer times.
    return (status.st_size, status.st_mtime_ns // 10**9) == (item.bytes, item.modified_ns // 10**9)


def _replaced(item: _Item, target: str) -> int:
    try:
        return os.lstat(os.path.join(target, item.path)).st_size
    except OSError:
        return 0


def _copy_all(root: str, todo: list[_Item], target: str, report: Callable[[str], None]) -> None:
    total = sum(item.bytes for item in todo)
    done, begun, reported_at = 0, time.monotonic(), 0.0
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
                    if time.monotonic() - reported_at > 1.0 or count == len(todo):
                        reported_at = time.monotonic()
                        rate = done / max(0.001, reported_at - begun) / 1e6
                        report(
                            f"{count} of {len(todo)} files, {done / 1e6:.1f} of {total / 1e6:.1f} MB, {rate:.0f} MB/s"
                        )
            finally:
                stop.set()
                pool.shutdown(cancel_futures=True)
    except OSError as problem:
        raise _copy_error(problem) from problem


@contextmanager
def _drafts(target: str) -> Iterator[str]:
    """Create a draft folder and lock it for the duration of the copy. Remove draft folders without a lock."""
    for name in os.listdir(target):
        if name.startswith(_DRAFTS) and (lock := _locked(f"{target}/{name}")) is not None:
            shutil.rmtree(f"{target}/{name}", ignore_errors=True)
            os.close(lock)
    while (lock := _locked(folder := tempfile.mkdtemp(prefix=_DRAFTS, dir=target))) is None:
        pass  # another copy removed the folder before we locked it
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _locked(folder: str) -> int | None:
    """Lock a folder; return None if another process has the lock, or the folder is gone."""
    with suppress(FileNotFoundError):
        # Lock a file in it: NFS locks only writable files.
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
    """Create a folder and its parents, but not the volume itself, which another user may have deleted."""
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


def _copy_error(problem: OSError) -> OutlastError:
    import errno

    if problem.errno in (errno.ENOSPC, errno.EDQUOT):
        hint = "`outlast volume resize NAME --size SIZE`, then repeat the command: it resumes"
        return VolumeFull(f"the volume is full: {problem.filename or ''}".rstrip(": "), hint=hint)
    return OutlastError(f"could not copy {problem.filename}: {problem.strerror}", hint="repeat the command: it resumes")
