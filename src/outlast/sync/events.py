"""What a sync tells of itself: values, one a happening. They are the lines of `--json`; how they look is the CLI's."""

from collections.abc import Callable

import msgspec


class _Told(msgspec.Struct, frozen=True, kw_only=True, tag_field="event"):
    pass


class WaitingForMachine(_Told, frozen=True, kw_only=True, tag="waiting"):
    """There is no machine to talk to now."""

    why: str


class Connected(_Told, frozen=True, kw_only=True, tag="connected"):
    machine: str
    folder: str


class Watching(_Told, frozen=True, kw_only=True, tag="watching"):
    """How changes are noticed from now on: `events` of the system, or `polling`, and then why."""

    how: str
    why: str = ""


class Copied(_Told, frozen=True, kw_only=True, tag="copied"):
    """A whole copy by rsync: of so many files, of which so many were sent."""

    files: int
    sent: int
    bytes: int
    seconds: float


class Arrived(_Told, frozen=True, kw_only=True, tag="arrived"):
    """A file is on the other side. `ms` is the time from its last change here, 0 where that was not seen."""

    path: str
    bytes: int
    ms: float


class Deleted(_Told, frozen=True, kw_only=True, tag="deleted"):
    path: str


class FileSkipped(_Told, frozen=True, kw_only=True, tag="left_out"):
    path: str
    why: str


class Problem(_Told, frozen=True, kw_only=True, tag="problem"):
    """A file that is not on the other side as it is here."""

    path: str
    why: str


class ConnectionLost(_Told, frozen=True, kw_only=True, tag="lost"):
    why: str


SyncEvent = (
    WaitingForMachine | Connected | Watching | Copied | Arrived | Deleted | FileSkipped | Problem | ConnectionLost
)
Tell = Callable[[SyncEvent], None]
