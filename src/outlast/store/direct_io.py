"""Direct reads and writes of large bodies past the page cache, where the file system supports it.

This saves a copy, makes fsync fast, and does not evict other files from the cache. Standard library only: the trainer
uses it, too.
"""

from __future__ import annotations

import errno
import io
import mmap
import os

# Smaller bodies use the page cache. Direct transfers begin and end at a block.
_DIRECT_BYTES = 1 << 20
_BLOCK = 4096


def room(size: int) -> memoryview:
    """Return page-aligned memory; a forked child gets a copy."""
    return memoryview(mmap.mmap(-1, max(1, size), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))[:size]


def write_large(file: io.FileIO, body: bytes | memoryview) -> None:
    """Write the whole body at the file's position, which must be a multiple of a block."""
    view = memoryview(body)
    blocks = len(view) - len(view) % _BLOCK if len(view) >= _DIRECT_BYTES else 0
    if blocks and _set_direct(file.fileno(), on=True):
        try:
            view = view[file.write(view[:blocks]) :]
        except OSError as problem:
            if problem.errno != errno.EINVAL:
                raise
            # The memory is not aligned, or the file system does not support it.
        _set_direct(file.fileno(), on=False)
    while view:
        view = view[file.write(view) :]


def read_large(file: io.FileIO, into: memoryview) -> int:
    """Fill `into` from the file's position, a multiple of a block; return the number of bytes."""
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
    """Switch direct I/O on or off; return whether the file system supports it."""
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
