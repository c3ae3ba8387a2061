"""The user's folder `~/.outlast`, for logs, keys, caches and local machines. Only its owner may read it.

All code that creates files below it goes through this module, which also corrects wrong permissions.
"""

from __future__ import annotations

import os
import stat
from typing import IO

HOME = "~/.outlast"
_OWNER = 0o700
_GROUP = 0o070


def folder(*parts: str) -> str:
    """Return a folder below `~/.outlast`, created or made private. Raises OSError."""
    path = _home()
    make(path)
    for part in parts:
        path = os.path.join(path, part)
        make(path)
    return path


def prepare(path: str) -> str:
    """Make `~/.outlast` private if the path is below it; return the path. Raises OSError."""
    if os.path.abspath(os.path.expanduser(path)).startswith(_home() + os.sep):
        folder()
    return path


def close_home() -> None:
    """Make `~/.outlast` private if it exists."""
    try:
        _close(_home())
    except OSError:
        pass  # it does not exist, or belongs to another user


def make(path: str) -> None:
    """Create a private folder, or make an existing one private. Raises OSError."""
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.mkdir(path, _OWNER)
    except FileExistsError:
        _close(path)


def open_log(path: str) -> IO[bytes]:
    """Open a private file for appending; correct its permissions if needed. Raises OSError.

    In append mode several processes may write to it while another one truncates it.
    """
    return open(path, "ab", opener=_open_private)


def _open_private(path: str, _: int) -> int:
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    if stat.S_IMODE(os.fstat(handle).st_mode) & 0o077:
        os.fchmod(handle, 0o600)
    return handle


def _home() -> str:
    return os.path.abspath(os.path.expanduser(HOME))


def _close(path: str) -> None:
    found = os.stat(path)
    mode = stat.S_IMODE(found.st_mode)
    if not mode & 0o077 or found.st_uid != os.geteuid() or not stat.S_ISDIR(found.st_mode):
        return
    keep = _kept_for_a_group(path) if path == _home() else 0
    if mode & 0o077 & ~keep:
        os.chmod(path, mode & (~0o077 | keep))


def _kept_for_a_group(home: str) -> int:
    """Return the group's permissions if the owner shares the default workspace with a group (set-gid); else 0."""
    try:
        return _GROUP if os.stat(os.path.join(home, "workspace")).st_mode & stat.S_ISGID else 0
    except OSError:
        return 0
