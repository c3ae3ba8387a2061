"""Files as memory: atomic JSON, locks that die with their holder, removal of stubborn folders. Knows no machine.

The shim imports this before anything else, so it stays with the cheapest modules there are.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
import time
from contextlib import suppress
from typing import Any


def write_json(path: str, value: dict[str, Any], *, permissions: int = 0o644) -> None:
    """Replace the file in one step: a reader sees the old value or the new one, never half of one."""
    draft = f"{path}.{os.getpid()}.{time.monotonic_ns()}.draft"
    text = json.dumps(value, indent=1, sort_keys=True)
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, permissions)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(draft, path)
    except OSError as problem:
        if problem.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        # Its room may be what the old value needs.
        with suppress(FileNotFoundError):
            os.unlink(draft)
        _write_in_place(path, text, problem)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(draft)


def _write_in_place(path: str, text: str, problem: OSError) -> None:
    """The disk is full, of what the machine itself wrote maybe; its state must be told all the same. The room that the
    old value has is still ours; what the new one does not need of it is filled with blanks, which JSON allows."""
    try:
        with open(path, "r+b") as file:
            room = os.fstat(file.fileno()).st_size
            file.write(text.encode().ljust(room))
            file.flush()
    except OSError:
        raise problem from None


def read_json(path: str) -> dict[str, Any] | None:
    """The value; None when there is no such file (any more), empty when the file is damaged."""
    try:
        with open(path, encoding="utf-8") as file:
            value = json.load(file)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError:
        # A power cut of the computer can do that. One damaged machine must not hide the others.
        return {}
    return value if isinstance(value, dict) else {}


def try_lock(path: str, *, shared: bool = False) -> int | None:
    """A descriptor that holds the lock, or None when another holds it or the file is gone."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        # Between opening and locking the folder may have been deleted and made anew: that lock guards nothing.
        if os.path.samestat(os.fstat(descriptor), os.stat(path)):
            return descriptor
    except OSError:
        pass
    os.close(descriptor)
    return None


def is_locked(path: str) -> bool:
    """Whether some living process holds the lock. The question takes a shared lock for an instant."""
    if (descriptor := try_lock(path, shared=True)) is not None:
        os.close(descriptor)
        return False
    return os.path.exists(path)


def wait_lock(path: str) -> int:
    """Make the lock file if need be and wait until the lock is ours."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        try:
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                return descriptor
        except FileNotFoundError:
            pass
        # Whoever had it has removed it with what it guards; the next one locks another file of that name.
        os.close(descriptor)


def remove_tree(path: str, *, timeout_s: float = 10.0) -> None:
    """Remove a folder whatever is in it: read-only folders, and files that appear meanwhile. Absent is fine."""
    give_up_at = time.monotonic() + timeout_s
    while True:
        try:
            _remove_once(path)
            return
        except FileNotFoundError:
            if not os.path.lexists(path):
                return
        except OSError:
            if time.monotonic() > give_up_at:
                raise
            time.sleep(0.01)


def _remove_once(path: str) -> None:
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        os.unlink(path)
        return
    # A read-only folder refuses to lose its entries even to its owner.
    os.chmod(path, 0o700)
    with os.scandir(path) as entries:
        inside = [(entry.path, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for entry_path, is_folder in inside:
        if is_folder:
            _remove_once(entry_path)
        else:
            os.unlink(entry_path)
    os.rmdir(path)
