"""File primitives: atomic JSON, locks that are released with their process, robust removal of folders.

The shim imports this before anything else, so it imports only the cheapest modules.
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
        # The draft occupies space that the write in place may need.
        with suppress(FileNotFoundError):
            os.unlink(draft)
        _write_in_place(path, text, problem)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(draft)


def _write_in_place(path: str, text: str, problem: OSError) -> None:
    """Overwrite the old value on a full disk, so that a machine that filled it can still record its state.

    The new value is padded with blanks, which JSON allows, to the size of the old one.
    """
    try:
        with open(path, "r+b") as file:
            room = os.fstat(file.fileno()).st_size
            file.write(text.encode().ljust(room))
            file.flush()
    except OSError:
        raise problem from None


def read_json(path: str) -> dict[str, Any] | None:
    """Return the value; None if the file does not exist, empty if it is damaged."""
    try:
        with open(path, encoding="utf-8") as file:
            value = json.load(file)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError:
        # A power failure of the computer can cause that. One damaged machine must not hide the others.
        return {}
    return value if isinstance(value, dict) else {}


def try_lock(path: str, *, shared: bool = False) -> int | None:
    """Return a descriptor that holds the lock; None if another process holds it or the file is gone."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        # Between opening and locking, the folder may have been deleted and created again: that lock guards nothing.
        if os.path.samestat(os.fstat(descriptor), os.stat(path)):
            return descriptor
    except OSError:
        pass
    os.close(descriptor)
    return None


def is_locked(path: str) -> bool:
    """Return whether a living process holds the lock. Takes a shared lock for a moment."""
    if (descriptor := try_lock(path, shared=True)) is not None:
        os.close(descriptor)
        return False
    return os.path.exists(path)


def wait_lock(path: str) -> int:
    """Create the lock file if necessary and wait for the lock."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        try:
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                return descriptor
        except FileNotFoundError:
            pass
        # The last holder has deleted the file. The next iteration locks the new one.
        os.close(descriptor)


def remove_tree(path: str, *, timeout_s: float = 10.0) -> None:
    """Remove a folder with read-only folders in it and files that appear meanwhile. It may be absent."""
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
    # Even the owner cannot delete entries of a read-only folder.
    os.chmod(path, 0o700)
    with os.scandir(path) as entries:
        inside = [(entry.path, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for entry_path, is_folder in inside:
        if is_folder:
            _remove_once(entry_path)
        else:
            os.unlink(entry_path)
    os.rmdir(path)
