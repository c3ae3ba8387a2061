"""Leases with numbered epochs, and the identity of processes.

A supervisor's lease only avoids duplicate work; safety does not depend on it. A run's exclusive lock does depend on its
lease: its holder renews it in time or kills its command (`agent/group_member.py`).
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from contextlib import suppress

import msgspec

from outlast.errors import Damaged, Exists, Missing
from outlast.store.bucket import Bucket
from outlast.store.codec import decoded
from outlast.store.traits import traits_of_store

# The kernel's name of the initial pid namespace.
_PLAIN_NUMBERS = "pid:[4026531836]"
# Index of the start time among the fields of /proc/PID/stat that follow the name.
_START_FIELD = 19


def host_name() -> str:
    """Return the host name, with the pid namespace in a container: it may share the name but not the process ids."""
    name = os.uname().nodename
    try:
        numbers = os.readlink("/proc/self/ns/pid")
    except OSError:
        return name  # not Linux
    return name if numbers == _PLAIN_NUMBERS else f"{name}/{numbers[5:-1]}"


def process_start(pid: int) -> str:
    """Return the start time of a process in kernel ticks; empty if unknown. It distinguishes reused process ids."""
    fields = _fields(pid)
    return fields[_START_FIELD] if fields else ""


def process_name() -> str:
    """Return `host:pid` of this process: for people, and for leases, which expire by themselves."""
    return f"{host_name()}:{os.getpid()}"


def process_identity() -> str:
    """Return `host:pid.start` of this process: for records, which may outlive the reuse of a process id."""
    start = process_start(os.getpid())
    return f"{process_name()}.{start}" if start else process_name()


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """The holder of an epoch: `host:pid`, or `host:pid.start`."""

    who: str
    epoch: int
    released: bool = False

    def plainly_dead(self) -> bool:
        """Return whether the holder is a process of this host that has ended, so that its lease need not expire first.

        A wrong answer is harmless, as safety does not depend on a lease.
        """
        host, _, process = self.who.rpartition(":")
        pid, _, start = process.partition(".")
        if host != host_name() or not pid.isdigit():
            return False
        try:
            os.kill(int(pid), 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        # It may be a zombie whose parent never waits for it, as in most containers.
        fields = _fields(int(pid))
        return fields[:1] in (["Z"], ["X"]) or bool(start and fields and fields[_START_FIELD] != start)


def _fields(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the name; empty without Linux or if the process is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(") ")[2].split()
    except OSError:
        return []


def supervisors(
    bucket: Bucket,
    url: str,
    name: str = "supervisor",
    *,
    who: str = "",
    monotonic: Callable[[], float] = time.monotonic,
) -> Lease:
    """Return the lease of the workspace's supervisor, or of its standby."""
    return Lease(bucket, name, who=who, ttl_s=traits_of_store(url).lease_s, monotonic=monotonic)


# How often to read again when a holder is replaced meanwhile.
_TRIES = 5


class Lease:
    """One named lease, seen by one process. Its age is measured by the store's clock.

    A folder's clock is this computer's and may jump. So a heartbeat also expires if it is not renewed while this
    process watches for a whole time to live. With `sure_s`, none expires before it was watched for that long.
    """

    def __init__(
        self,
        bucket: Bucket,
        name: str,
        *,
        who: str,
        ttl_s: float,
        sure_s: float = 0.0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.bucket = bucket
        self.monotonic = monotonic
        self.prefix = f"leases/{name}/"
        self.who = who
        self.ttl_s = ttl_s
        self.sure_s = sure_s
        self.epoch = 0
        # The last heartbeat of another holder, when it was first seen, and how old it was then.
        self._last_seen: tuple[int, float] = (0, 0.0)
        self._since = 0.0
        self._first_age_s = 0.0
        self._looked_at = -math.inf
        # The holder that the last failed `hold` found.
        self.other: Holder | None = None
        # When this process last wrote a heartbeat.
        self._renewed_at = 0.0
        # The names in the last listing; those of earlier epochs, which are deleted with the next heartbeat.
        self._listed: list[str] = []
        self._stale: list[str] = []

    def hold(self, *, fresh_s: float = 0.0) -> bool:
        """Take or renew the lease; return whether this process holds it.

        A renewal within `fresh_s` counts, for callers whose safety does not depend on it.
        """
        if self.epoch and self.monotonic() - self._renewed_at < fresh_s:
            return True
        newest = self._newest()
        if self.epoch and newest == self.epoch:
            self._beat()
            self._forget_stale()
            return True
        self.epoch, self.other = 0, None
        try:
            self.other = self._read(newest) if newest else None
            if self.other is not None:
                return False
        except Missing:
            return False  # a newer epoch has just replaced it
        try:
            self.bucket.create(f"{self.prefix}{newest + 1:08d}", self._body(newest + 1), durable=False)
        except Exists:
            return False
        self.epoch = newest + 1
        self._beat()
        self._stale = [name for name in self._listed if name.removeprefix("beat-").isdigit()]
        return True

    def renew(self) -> bool:
        """Renew the lease if this process holds it. A lost lease is not taken again: another process did its work."""
        if not self.epoch or self._newest() != self.epoch:
            return False
        self._beat()
        return True

    def release(self) -> None:
        """Release the lease, so that another process can take it before it expires."""
        if self.epoch and self._newest() == self.epoch:
            self._beat(released=True)
            self._forget_stale()
        self.epoch = 0

    def holder(self) -> Holder | None:
        """Return the current holder; None if the lease is free."""
        for _ in range(_TRIES):
            if not (newest := self._newest()):
                return None
            with suppress(Missing):  # a newer epoch has just replaced it
                return self._read(newest)
        return None

    def _body(self, epoch: int, *, released: bool = False) -> bytes:
        return msgspec.json.encode(Holder(who=self.who, epoch=epoch, released=released))

    def _beat(self, *, released: bool = False) -> None:
        began = self.monotonic()
        self.bucket.put(f"{self.prefix}beat-{self.epoch:08d}", self._body(self.epoch, released=released))
        self._renewed_at = began

    def _newest(self) -> int:
        self._listed = [e.key.rsplit("/", 1)[-1] for e in self.bucket.list(self.prefix)]
        return max((int(n) for n in self._listed if n.isdigit()), default=0)

    def _read(self, epoch: int) -> Holder | None:
        """Return the holder of an epoch; None if it released the lease, has died, or let it expire.

        Reads the last heartbeat, or the epoch's object before the first one. Raises Missing if both are gone: then a
        newer epoch has replaced this one.
        """
        try:
            holder, seen_at = self._seen(f"{self.prefix}beat-{epoch:08d}")
        except Missing:
            holder, seen_at = self._seen(f"{self.prefix}{epoch:08d}")
        if holder is None or holder.released or holder.plainly_dead():
            return None
        watched_s = self._watched_s(epoch, seen_at)
        age_s = self._first_age_s + watched_s
        expired = watched_s > self.ttl_s or (age_s > self.ttl_s and watched_s >= self.sure_s)
        return None if expired else holder

    def _seen(self, key: str) -> tuple[Holder | None, float]:
        """Return the holder in an object (None if damaged) and the time of the write. Raises Missing."""
        try:
            holder = decoded(self.bucket.get(key), Holder, key)
        except Damaged:
            return None, 0.0
        return holder, self.bucket.head(key).modified_at

    def _watched_s(self, epoch: int, beat_at: float) -> float:
        """Return for how long this heartbeat has been the newest, by the monotonic clock."""
        now = self.monotonic()
        if self._last_seen != (epoch, beat_at):
            # A renewal since the last look is recent. Only else ask the store for the time, which writes an object:
            # stores allow about one write per second of an object, and several processes may stand by.
            renewed = self._last_seen[0] == epoch and now - self._looked_at < self.ttl_s
            self._first_age_s = 0.0 if renewed else self.bucket.now(f"{self.prefix}clock") - beat_at
            self._last_seen, self._since = (epoch, beat_at), now
        self._looked_at = now
        return now - self._since

    def _forget_stale(self) -> None:
        """Delete the objects of earlier epochs. Not when the lease is taken: the work of its holder should begin."""
        while self._stale:
            self.bucket.delete(self.prefix + self._stale[-1])
            self._stale.pop()
