"""Spending limits of users and of the whole workspace, as they were set."""

from __future__ import annotations

import calendar
import re
import time
from typing import Literal

import msgspec

from outlast.errors import UsageError
from outlast.store.bucket import Bucket
from outlast.store.codec import decoded

Period = Literal["day", "month", "total"]
_ALL, _USERS = "limits/workspace.json", "limits/users/"
_USER = re.compile(r"[A-Za-z0-9._@+-]{1,128}")


class Limits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The limits of one user, or of the whole workspace. 0: unlimited."""

    # Empty: the whole workspace.
    who: str = ""
    cost_usd: float = 0.0
    max_hours: float = 0.0
    # The period of the two limits above: a day or a month in UTC, or all time.
    per: Period = "month"
    max_machines: int = 0
    by: str = ""
    at: float = 0.0

    @property
    def whose(self) -> str:
        return f"user `{self.who}`" if self.who else "the workspace"

    @property
    def scope(self) -> str:
        return "user" if self.who else "workspace"

    @property
    def text(self) -> str:
        """For display: `$50 a month, 4 machines at a time`."""
        span = "" if self.per == "total" else f" a {self.per}"
        items = [f"${self.cost_usd:g}{span}"] if self.cost_usd else []
        items += [f"{self.max_hours:g} machine hours{span}"] if self.max_hours else []
        items += [f"{self.max_machines} machines at a time"] if self.max_machines else []
        return ", ".join(items)

    @property
    def empty(self) -> bool:
        return not (self.cost_usd or self.max_hours or self.max_machines)


def begin_of(per: Period, now: float) -> float:
    """Return the begin of the period that contains `now`."""
    if per == "total":
        return 0.0
    day = time.gmtime(now)
    return float(calendar.timegm((day.tm_year, day.tm_mon, day.tm_mday if per == "day" else 1, 0, 0, 0)))


def read_limits(bucket: Bucket) -> list[Limits]:
    """Return all limits, the workspace's own first. Raises Damaged: an unreadable limit must not count as none."""
    entries = sorted(bucket.list("limits/"), key=lambda entry: (entry.key != _ALL, entry.key))
    found = [decoded(bucket.get(entry.key), Limits, entry.key) for entry in entries]
    return [limits for limits in found if not limits.empty]


def write_limits(bucket: Bucket, limits: Limits) -> None:
    """Set the limits, or remove them if they are empty."""
    key = key_of(limits.who)
    if limits.empty:
        bucket.delete(key)
    else:
        bucket.put(key, msgspec.json.encode(limits), durable=True)


def key_of(who: str) -> str:
    if not who:
        return _ALL
    if not _USER.fullmatch(who):
        raise UsageError(f"invalid user name `{who}`", hint="use letters, digits and . _ @ + -")
    return f"{_USERS}{who}.json"
