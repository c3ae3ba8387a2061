"""Logs of background processes: private, appended to by several processes at once, and bounded.

The log is the standard output and error of a background process and of the programs that it starts. They cannot be
made to open another file, so a full log is copied and then truncated in place. Lines that are written between the two
steps, microseconds apart, may be lost.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from contextlib import suppress

from outlast import private

LOG_MAX_BYTES = 5_000_000
# Older logs: `NAME.1` is the newest of them.
OLD_LOGS = 2
_CHECK_S = 15.0


def rotate(path: str, *, max_bytes: int = LOG_MAX_BYTES) -> bool:
    """Rotate a full log; return whether it was full. Several processes may call it at once. Raises OSError."""
    if not _is_full(path, max_bytes):
        return False
    with private.open_log(f"{path}.lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _is_full(path, max_bytes):
            return False  # another process was first
        for number in range(OLD_LOGS, 1, -1):
            with suppress(FileNotFoundError):
                os.replace(f"{path}.{number - 1}", f"{path}.{number}")
        _copy_end(path, f"{path}.1", max_bytes)
        os.truncate(path, 0)
    return True


def bound_own_log(path: str) -> None:
    """Bound the log in a thread, if it is the stderr of this process."""
    with suppress(OSError):
        if os.path.samestat(os.fstat(2), os.stat(path)):
            threading.Thread(target=_rotate_forever, args=(path,), name="log", daemon=True).start()


def _rotate_forever(path: str) -> None:
    while True:
        with suppress(OSError):  # a full disk or a deleted log: retry at the next check
            rotate(path)
        time.sleep(_CHECK_S)


def _is_full(path: str, max_bytes: int) -> bool:
    try:
        return os.stat(path).st_size > max_bytes
    except FileNotFoundError:
        return False


def _copy_end(path: str, target: str, max_bytes: int) -> None:
    """Copy the last complete lines: a log of an older version may have any size."""
    with suppress(FileNotFoundError):
        os.unlink(f"{target}.new")
    with open(path, "rb") as source, private.open_log(f"{target}.new") as copy:
        size = os.fstat(source.fileno()).st_size
        if size > 2 * max_bytes:
            source.seek(size - max_bytes)
            source.readline()
        while piece := source.read(1 << 20):
            copy.write(piece)
    os.replace(f"{target}.new", target)
