"""Large bodies between memory and disk past the page cache, where the file system has it. Refuses to depend on it.

It saves one copy of two, leaves a sync nothing to wait for, and pushes nobody else's files out of memory. Standard
library only: the trainer's process uses it, too.
"""

from __future__ import annotations

import errno
import io
import mmap
import os

# Smaller ones are not worth it. What is written and read begins and ends at a block.
_DIRECT_BYTES = 1 << 20
_BLOCK = 4096


def room(size: int) -> memoryview:
    """Memory that begins at a page, as disks want it. Private: a child of this process gets a copy, as of all else."""
    return memoryview(mmap.mmap(-1, max(1, size), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))[:size]


def write_large(file: io.FileIO, body: bytes | memoryview) -> None:
    """All of it, from where the file stands, which is a multiple of a block."""
    view = memoryview(body)
    blocks = len(view) - len(view) % _BLOCK if len(view) >= _DIRECT_BYTES else 0
    if blocks and _set_direct(file.fileno(), on=True):
        try:
            view = view[file.write(view[:blocks]) :]
        except OSError as problem:
            if problem.errno != errno.EINVAL:
                raise
            # Not from this memory, or not on this file system.
        _set_direct(file.fileno(), on=False)
    while view:
        view = view[file.write(view) :]


def read_large(file: io.FileIO, into: memoryview) -> int:
    """As much as there is or has room, from where the file stands, which is a multiple of a block; how much it was."""
    size = 0
    if len(into) >= _DIRECT_BYTES and _set_direct(file.fileno(), on=True):
        try:
            size = file.readinto(into[: len(into) - len(into) % _BLOCK]) or 0
        except OSError as problem:
            if problem.errno != errno.EINVAL:
                raise
        _set_direct(file.fileno(), on=False)
    while size < len(into) and (count := file.readinto(into[size:])):
        size += count
    return size


def _set_direct(handle: int, *, on: bool) -> bool:
    """Whether the file system has such a thing."""
    flag = getattr(os, "O_DIRECT", 0)
    if not flag:
        return False
    import fcntl

    flags = fcntl.fcntl(handle, fcntl.F_GETFL)
    try:
        fcntl.fcntl(handle, fcntl.F_SETFL, flags | flag if on else flags & ~flag)
    except OSError as problem:
        if problem.errno != errno.EINVAL:
            raise
        return False
    return True
