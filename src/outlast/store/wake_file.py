"""A file on this computer for each workspace in a bucket, which changes with every wakeup that is sent from here.

A listing of a bucket is billed, so supervisors list wakeups only every few seconds. A supervisor on the computer on
which a command submits or cancels a run notices that at once by this file. Only a hint: the wakeup is in the bucket.
"""

from __future__ import annotations

import hashlib
import os

from outlast import private


def _path(url: str) -> str:
    return os.path.join(os.path.expanduser(private.HOME), "wakeups", hashlib.sha256(url.encode()).hexdigest()[:24])


def touch(url: str) -> None:
    """Record a wakeup. A failure is ignored: supervisors find the wakeup in the bucket."""
    try:
        private.folder("wakeups")
        with open(_path(url), "wb"):
            os.utime(_path(url))
    except OSError:
        pass


def touched_at(url: str) -> int:
    """Return when the last wakeup was recorded, in nanoseconds; 0 if there was none."""
    try:
        return os.stat(_path(url)).st_mtime_ns
    except OSError:
        return 0
