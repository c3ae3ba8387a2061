"""The user's own folder, `~/.outlast`: logs, keys, caches, local machines. Only its owner may read it.

Whatever creates something below it asks here first, so that the folder is private from its first moment, and one that
an older version made with other permissions is closed at its next use.
"""

from __future__ import annotations

import os
import stat
from typing import IO

HOME = "~/.outlast"
_OWNER = 0o700
_GROUP = 0o070


def folder(*parts: str) -> str:
    """The path of a folder below `~/.outlast`, created or closed to others. Raises OSError."""
    path = _home()
    make(path)
    for part in parts:
        path = os.path.join(path, part)
        make(path)
    return path


def prepare(path: str) -> str:
    """Close `~/.outlast` if the path is below it, before anything is created there. Raises OSError. The path."""
    if os.path.abspath(os.path.expanduser(path)).startswith(_home() + os.sep):
        folder()
    return path


def close_home() -> None:
    """Close `~/.outlast` if it is there and open to others."""
    try:
        _close(_home())
    except OSError:
        pass  # not there, or not ours to change: nothing is lost by going on


def make(path: str) -> None:
    """Create a folder for its owner alone, or take what others may do from one that is there. Raises OSError."""
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.mkdir(path, _OWNER)
    except FileExistsError:
        _close(path)


def open_log(path: str) -> IO[bytes]:
    """A file to append to, which its owner alone may read; also if it was made with other permissions. Raises OSError.

    Appending is what lets several processes write to it, and another one shorten it meanwhile.
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
    """The group's permissions, if the default workspace is in there and its owner shares it with a group: by set-gid,
    which no default of any system sets."""
    try:
        return _GROUP if os.stat(os.path.join(home, "workspace")).st_mode & stat.S_ISGID else 0
    except OSError:
        return 0
