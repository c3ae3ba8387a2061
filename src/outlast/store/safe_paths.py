"""Files and folders below a root, opened one component at a time so that no symbolic link is followed.

The root itself may be a link, or be below one: the user chose that path. A link below it may have been placed by
another user, and leads to files that are not part of the workspace. Each component is opened relative to the folder
above it, so that a folder that another process replaces by a link meanwhile is not followed either.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence

from outlast.errors import Missing, WorkspaceError

# On Linux, opening an intermediate folder needs no permission to list it, and network file systems need no request.
PASS = os.O_DIRECTORY | getattr(os, "O_PATH", os.O_RDONLY)
# For a folder that is listed or synced.
LIST = os.O_DIRECTORY | os.O_RDONLY
# Without O_NONBLOCK a pipe would make its reader wait for a writer.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW

_HINT = "replace it by its target; the workspace folder itself may be a link"
# Links that were reported; a folder full of links must not flood a log.
_reported: set[str] = set()
_REPORTS_MAX = 20


def open_folder(root: str, parts: Sequence[str], *, how: int = PASS) -> int:
    """Open the folder at `parts` below the root. Raises Missing for a link, and OSError."""
    handle = os.open(root, PASS if parts else how)
    for number, part in enumerate(parts, 1):
        try:
            below = enter(handle, part, how=how if number == len(parts) else PASS)
        except NotADirectoryError as problem:
            if is_link(handle, part):
                raise Missing(describe("/".join(parts[:number])), hint=_HINT) from problem
            raise
        finally:
            os.close(handle)
        handle = below
    return handle


def open_chain(root: str, parts: Sequence[str]) -> list[int]:
    """Open every folder on the path `parts`, the root first. Raises NotADirectoryError for a link, and OSError."""
    handles = [os.open(root, PASS)]
    try:
        for part in parts:
            handles.append(enter(handles[-1], part))
    except BaseException:
        for handle in handles:
            os.close(handle)
        raise
    return handles


def enter(handle: int, name: str, *, how: int = PASS) -> int:
    """Open a folder directly below an open one. Raises NotADirectoryError for a link, and OSError."""
    try:
        return os.open(name, how | os.O_NOFOLLOW, dir_fd=handle)
    except OSError as problem:
        if problem.errno == errno.ELOOP:  # for a link Linux reports ENOTDIR, other systems this
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), name) from problem
        raise


def make_folder(root: str, parts: Sequence[str], *, durable: bool) -> int:
    """Open the folder at `parts` below an existing root, and create missing folders.

    Raises WorkspaceError if a link or a file is in the way. `durable`: new names survive a power cut, and the folder
    can be synced.
    """
    handle = os.open(root, PASS if parts or not durable else LIST)
    try:
        for number, part in enumerate(parts, 1):
            last = LIST if durable and number == len(parts) else PASS
            try:
                below = enter(handle, part, how=last)
            except FileNotFoundError:
                below = _make(handle, part, how=last, durable=durable)
            except NotADirectoryError as problem:
                raise _in_the_way(handle, part, "/".join(parts[:number])) from problem
            os.close(handle)
            handle = below
    except BaseException:
        os.close(handle)
        raise
    return handle


def _make(handle: int, name: str, *, how: int, durable: bool) -> int:
    try:
        os.mkdir(name, dir_fd=handle)
    except FileExistsError:
        pass  # another writer was first
    if durable:
        sync_folder(handle)
    return enter(handle, name, how=how)


def _in_the_way(handle: int, name: str, key: str) -> Exception:
    try:
        mode = os.stat(name, dir_fd=handle, follow_symlinks=False).st_mode
    except FileNotFoundError as problem:
        return problem  # deleted since: the caller may try again
    if stat.S_ISLNK(mode):
        return WorkspaceError(describe(key), hint=_HINT)
    if stat.S_ISDIR(mode):
        return FileNotFoundError(key)  # replaced since: the caller may try again
    return WorkspaceError(f"workspace: `{key}` is an object and cannot be a folder too")


def open_file(handle: int, name: str, key: str) -> int:
    """Open a plain file of an open folder for reading. Raises Missing for everything else, and OSError."""
    try:
        file = os.open(name, _READ, dir_fd=handle)
    except OSError as problem:
        if problem.errno == errno.ELOOP:
            raise Missing(describe(key), hint=_HINT) from problem
        if problem.errno == errno.ENXIO:  # a socket
            raise Missing(f"`{key}` is not in the workspace") from problem
        raise
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise Missing(f"`{key}` is not in the workspace")
    return file


def create_file(handle: int, name: str) -> int:
    """Create a file in an open folder for writing. Raises FileExistsError, also for a link."""
    return os.open(name, _CREATE, 0o666, dir_fd=handle)


def sync_folder(handle: int) -> None:
    """Write the names in an open folder to the disk."""
    opened = os.open(".", LIST, dir_fd=handle)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def is_link(handle: int, name: str) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=handle, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


def refuse_link(handle: int, name: str, key: str) -> None:
    """Raise WorkspaceError if the name is a link, which no create-only write can replace and no reader follows."""
    if is_link(handle, name):
        raise WorkspaceError(describe(key), hint=_HINT)


def describe(key: str) -> str:
    # Another user may have chosen the name: escape control characters.
    shown = key if key.isprintable() else key.encode("unicode_escape", "backslashreplace").decode()
    return f"`{shown}` is a symbolic link; outlast does not follow links inside a workspace"


def report_link(root: str, key: str) -> None:
    """Warn that a listing omits a link: once per link, and for a limited number of links."""
    path = f"{root}/{key}"
    if path in _reported or len(_reported) >= _REPORTS_MAX:
        return
    _reported.add(path)
    # Imported here because most commands never need it.
    import logging

    logging.getLogger("outlast.store").warning("warning: %s (%s)", describe(key), root)
