"""The events of a sync, which `outlast sync --json` prints one per line."""

from collections.abc import Callable

import msgspec


class _SyncEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="event"):
    pass


class WaitingForMachine(_SyncEvent, frozen=True, kw_only=True, tag="waiting"):
    """No machine is reachable now."""

    why: str


class Connected(_SyncEvent, frozen=True, kw_only=True, tag="connected"):
    machine: str
    folder: str


class Watching(_SyncEvent, frozen=True, kw_only=True, tag="watching"):
    """How changes are detected: `events` of the file system, or `polling` and the reason for it."""

    how: str
    why: str = ""


class Copied(_SyncEvent, frozen=True, kw_only=True, tag="copied"):
    """A copy by rsync: the number of compared files, and how many of them were sent."""

    files: int
    sent: int
    bytes: int
    seconds: float


class Arrived(_SyncEvent, frozen=True, kw_only=True, tag="arrived"):
    """A file has arrived. `ms` is the time since its last change, or 0 if that is unknown."""

    path: str
    bytes: int
    ms: float


class Deleted(_SyncEvent, frozen=True, kw_only=True, tag="deleted"):
    path: str


class FileSkipped(_SyncEvent, frozen=True, kw_only=True, tag="skipped"):
    path: str
    why: str


class Problem(_SyncEvent, frozen=True, kw_only=True, tag="problem"):
    """A file that could not be synced."""

    path: str
    why: str


class ConnectionLost(_SyncEvent, frozen=True, kw_only=True, tag="lost"):
    why: str


SyncEvent = (
    WaitingForMachine | Connected | Watching | Copied | Arrived | Deleted | FileSkipped | Problem | ConnectionLost
)
Emit = Callable[[SyncEvent], None]
