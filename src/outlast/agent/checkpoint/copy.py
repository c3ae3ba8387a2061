"""A copy of a checkpoint folder that stands still while it is stored, for programs that save faster than stores take.

Costs the room of a checkpoint on the machine's disk, so it is made only where there is plenty of it.
"""

from __future__ import annotations

import fcntl
import os
import shutil

from outlast.agent.checkpoint.ready import FolderSnapshot, is_there

# Of linux/fs.h: the new file shares the blocks of the old one, where the file system can do that.
_FICLONE = 0x40049409
# The program's own next checkpoint must find room beside the copy.
_ROOM = 3


def has_room(snapshot: FolderSnapshot, place: str) -> bool:
    return shutil.disk_usage(os.path.dirname(place)).free > _ROOM * snapshot.bytes


def copy(folder: str, snapshot: FolderSnapshot, place: str) -> bool:
    """The files of the snapshot at another place; False if the folder changed before that was done. Raises OSError."""
    discard(place)
    # What has its name only since it was whole is never written to again: another name for it is as good as a copy.
    take = _link_file if snapshot.named_whole else _copy_file
    try:
        for path in snapshot.paths:
            target = os.path.join(place, path)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            take(os.path.join(folder, path), target)
    except FileNotFoundError:
        return False
    return is_there(folder, snapshot)


def discard(place: str) -> None:
    shutil.rmtree(place, ignore_errors=True)


def _link_file(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:  # another disk, or one that knows no such names
        _copy_file(source, target)


def _copy_file(source: str, target: str) -> None:
    with open(source, "rb") as old, open(target, "wb") as new:
        try:
            fcntl.ioctl(new.fileno(), _FICLONE, old.fileno())
        except OSError:
            shutil.copyfileobj(old, new, length=1 << 20)
    shutil.copymode(source, target)
