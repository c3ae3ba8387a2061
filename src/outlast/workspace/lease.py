"""A lease with numbered epochs: saves supervisors from doing the same work twice, and nothing's safety rests on that.

What is exclusive to a run does rest on one: whoever holds it there proves it in time, or kills its command
(`agent/company.py`).
"""

from __future__ import annotations

import os
import time

import msgspec

from outlast.errors import Damaged, Exists, Missing
from outlast.workspace.bucket import Bucket
from outlast.workspace.codec import decoded

# The kernel's name for the process numbers that a computer begins with.
_PLAIN_NUMBERS = "pid:[4026531836]"
# When a process began, among the fields that the kernel tells of it after its name.
_BEGAN = 19


def computer() -> str:
    """This computer, as far as process numbers go: a container may have its name, and numbers of its own."""
    name = os.uname().nodename
    try:
        numbers = os.readlink("/proc/self/ns/pid")
    except OSError:
        return name  # no Linux
    return name if numbers == _PLAIN_NUMBERS else f"{name}/{numbers[5:-1]}"


def began(pid: int) -> str:
    """When a process began, as its kernel counts; empty if it cannot be told. Numbers of processes are given anew, and
    none is given twice at the same time."""
    fields = _fields(pid)
    return fields[_BEGAN] if fields else ""


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """Who holds an epoch: `host:pid`, or `host:pid.began`."""

    who: str
    epoch: int
    released: bool = False

    def plainly_dead(self) -> bool:
        """Held by a process of this very computer that is no more: no need to wait until it expires. A mistake would do
        no harm, as nothing's safety rests on a lease."""
        host, _, process = self.who.rpartition(":")
        pid, _, begun = process.partition(".")
        if host != computer() or not pid.isdigit():
            return False
        try:
            os.kill(int(pid), 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        # Of one that has ended only its number may be left, for a parent that never asks: most containers have none.
        fields = _fields(int(pid))
        return fields[:1] in (["Z"], ["X"]) or bool(begun and fields and fields[_BEGAN] != begun)


def _fields(pid: int) -> list[str]:
    """What the kernel tells of a process, after its name; nothing if this is no Linux, or if it is gone just now."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(") ")[2].split()
    except OSError:
        return []


# Of those who supervise. Stores that bill for every question are asked less often, and their leases live longer.
_SUPERVISED_S, _FAR_S = 6.0, 20.0


def supervisors(bucket: Bucket, url: str, name: str = "supervisor", *, who: str = "") -> Lease:
    """The lease of whoever supervises a workspace, or stands by."""
    return Lease(bucket, name, who=who, ttl_s=_FAR_S if url.startswith(("gs://", "s3://")) else _SUPERVISED_S)


class Lease:
    """One named lease as one process sees it. Its age is judged by the store's clock.

    That of a folder is this computer's, and may jump. So a beat that was not renewed while we watched for its whole
    time to live is too old whatever the clock says; and with `sure_s` none is before we have watched it for so long.
    """

    def __init__(self, bucket: Bucket, name: str, *, who: str, ttl_s: float, sure_s: float = 0.0) -> None:
        self.bucket = bucket
        self.prefix = f"leases/{name}/"
        self.who = who
        self.ttl_s = ttl_s
        self.sure_s = sure_s
        self.epoch = 0
        # The last beat of another one, and since when we see no newer one.
        self._beheld: tuple[int, float] = (0, 0.0)
        self._since = 0.0

    def hold(self) -> bool:
        """Take or renew the lease; True while it is ours."""
        newest = self._newest()
        if self.epoch and newest == self.epoch:
            self._beat()
            return True
        self.epoch = 0
        if newest and not self._expired(newest):
            return False
        try:
            self.bucket.create(f"{self.prefix}{newest + 1:08d}", self._body(newest + 1), durable=False)
        except Exists:
            return False
        self.epoch = newest + 1
        self._beat()
        self._forget_before(self.epoch)
        return True

    def renew(self) -> bool:
        """Say that it is still ours, if it is. Once lost it is not taken again: who had it meanwhile did its work."""
        if not self.epoch or self._newest() != self.epoch:
            return False
        self._beat()
        return True

    def release(self) -> None:
        """Let the next one take it at once instead of after the time to live."""
        if self.epoch and self._newest() == self.epoch:
            self._beat(released=True)
        self.epoch = 0

    def holder(self) -> Holder | None:
        """Who holds it now; None if it is free."""
        newest = self._newest()
        try:
            if not newest or self._expired(newest):
                return None
            return decoded(self.bucket.get(f"{self.prefix}{newest:08d}"), Holder, self.prefix)
        except (Missing, Damaged):
            return None  # replaced while we looked, or damaged

    def _body(self, epoch: int, *, released: bool = False) -> bytes:
        return msgspec.json.encode(Holder(who=self.who, epoch=epoch, released=released))

    def _beat(self, *, released: bool = False) -> None:
        self.bucket.put(f"{self.prefix}beat-{self.epoch:08d}", self._body(self.epoch, released=released))

    def _newest(self) -> int:
        numbers = [e.key.rsplit("/", 1)[-1] for e in self.bucket.list(self.prefix)]
        return max((int(n) for n in numbers if n.isdigit()), default=0)

    def _expired(self, epoch: int) -> bool:
        beat = f"{self.prefix}beat-{epoch:08d}"
        try:
            holder = decoded(self.bucket.get(beat), Holder, beat)
            if holder.released or holder.plainly_dead():
                return True
            seen_at = self.bucket.head(beat).modified_at
        except Missing:
            seen_at = self.bucket.head(f"{self.prefix}{epoch:08d}").modified_at
        except Damaged:
            return True
        # The store's own now: the time it gives to a write of ours.
        now = self.bucket.put(f"{self.prefix}clock", b"").modified_at
        watched_s = self._watched_s(epoch, seen_at)
        return watched_s > self.ttl_s or (now - seen_at > self.ttl_s and watched_s >= self.sure_s)

    def _watched_s(self, epoch: int, beat_at: float) -> float:
        """For how long we have seen no newer beat, by a clock that does not jump."""
        if self._beheld != (epoch, beat_at):
            self._beheld, self._since = (epoch, beat_at), time.monotonic()
        return time.monotonic() - self._since

    def _forget_before(self, epoch: int) -> None:
        for entry in list(self.bucket.list(self.prefix)):
            number = entry.key.rsplit("/", 1)[-1].removeprefix("beat-")
            if number.isdigit() and int(number) < epoch:
                self.bucket.delete(entry.key)
