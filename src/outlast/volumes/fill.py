"""`outlast volume populate`: copies files into a folder, many at a time. What is there already is not copied again.

A file is written beside its place and renamed, so that an interrupted copy leaves no half file under a real name, and
the next one goes on where it ended. Size and time tell whether a file is the same.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed

import msgspec

from outlast.errors import OutlastError, UsageError, VolumeFull

_THREADS = 8
_DRAFT = ".outlast-draft"


class Filled(msgspec.Struct, frozen=True, kw_only=True):
    """What was copied, and what was there already."""

    files: int
    bytes: int
    same: int


class _Item(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    bytes: int
    modified_ns: int
    link: bool = False


def fill(source: str, target: str, *, room_bytes: float, say: Callable[[str], None]) -> Filled:
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
    say(f"{len(todo)} of {len(items)} files, {wanted / 1e6:.1f} MB")
    _copy_all(root, todo, target, say)
    return Filled(files=len(todo), bytes=sum(item.bytes for item in todo), same=len(items) - len(todo))


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


def _copy_all(root: str, todo: list[_Item], target: str, say: Callable[[str], None]) -> None:
    total = sum(item.bytes for item in todo)
    done, begun, told_at = 0, time.monotonic(), 0.0
    stop = threading.Event()
    pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="populate")
    try:
        pending = {pool.submit(_copy, root, item, target, stop): item for item in todo}
        for count, future in enumerate(as_completed(pending), 1):
            future.result()
            done += pending[future].bytes
            if time.monotonic() - told_at > 1.0 or count == len(todo):
                told_at = time.monotonic()
                rate = done / max(0.001, told_at - begun) / 1e6
                say(f"{count} of {len(todo)} files, {done / 1e6:.1f} of {total / 1e6:.1f} MB, {rate:.0f} MB/s")
    except OSError as problem:
        raise _told(problem) from problem
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)


def _copy(root: str, item: _Item, target: str, stop: threading.Event) -> None:
    if stop.is_set():
        return
    source, goal = os.path.join(root, item.path), os.path.join(target, item.path)
    os.makedirs(os.path.dirname(goal), exist_ok=True)
    draft = f"{goal}{_DRAFT}"
    try:
        if os.path.lexists(draft):
            os.unlink(draft)  # of a copy that was killed
        if item.link:
            os.symlink(os.readlink(source), draft)
        else:
            shutil.copyfile(source, draft)
            shutil.copystat(source, draft)
        os.replace(draft, goal)
    finally:
        if os.path.lexists(draft):
            os.unlink(draft)


def _told(problem: OSError) -> OutlastError:
    import errno

    if problem.errno in (errno.ENOSPC, errno.EDQUOT):
        hint = "`outlast volume resize NAME --size SIZE`, then the same command again: it goes on where it ended"
        return VolumeFull(f"the volume is full: {problem.filename or ''}".rstrip(": "), hint=hint)
    return OutlastError(f"could not copy {problem.filename}: {problem.strerror}", hint="it can be repeated")
