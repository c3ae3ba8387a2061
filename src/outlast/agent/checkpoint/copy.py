"""Copies of a checkpoint folder, for programs that write the next checkpoint before the store has the last one.

A copy needs the room of a checkpoint on the machine's disk, so it is made only where there is plenty of room.
"""

from __future__ import annotations

import fcntl
import os
import shutil

from outlast.agent.checkpoint.snapshot import FolderSnapshot, is_unchanged

# From linux/fs.h: the new file shares the blocks of the old one, where the file system supports that.
_FICLONE = 0x40049409


def copy(folder: str, snapshot: FolderSnapshot, target: str) -> bool:
    """Copy the snapshot's files to the folder `target`. Returns False if they changed meanwhile. Raises OSError."""
    discard(target)
    # The trainer library never writes to a file again: a hard link is as good as a copy.
    copy_one = _link_file if snapshot.from_trainer else _copy_file
    try:
        for path in snapshot.paths:
            new = os.path.join(target, path)
            os.makedirs(os.path.dirname(new), exist_ok=True)
            copy_one(os.path.join(folder, path), new)
    except FileNotFoundError:
        return False
    return is_unchanged(folder, snapshot)


def discard(folder: str) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def _link_file(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:  # another file system, or one without hard links
        _copy_file(source, target)


def _copy_file(source: str, target: str) -> None:
    with open(source, "rb") as old, open(target, "wb") as new:
        try:
            fcntl.ioctl(new.fileno(), _FICLONE, old.fileno())
        except OSError:
            shutil.copyfileobj(old, new, length=1 << 20)
    shutil.copymode(source, target)
