"""A lease with numbered epochs: saves supervisors from doing the same work twice, and nothing's safety rests on that.

What is exclusive to a run does rest on one: whoever holds it there proves it in time, or kills its command
(`agent/company.py`).
"""

from __future__ import annotations

import os

import msgspec

from outlast.errors import Damaged, Exists, Missing
from outlast.workspace.bucket import Bucket
from outlast.workspace.codec import decoded


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """Who holds an epoch: `host:pid`."""

    who: str
    epoch: int
    released: bool = False

    def plainly_dead(self) -> bool:
        """Held by a process of this very computer that is no more: no need to wait until it expires. A mistake would do
        no harm, as nothing's safety rests on a lease."""
        host, _, pid = self.who.rpartition(":")
        if host != os.uname().nodename or not pid.isdigit():
            return False
        try:
            os.kill(int(pid), 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        return False


# Of those who supervise. Stores that bill for every question are asked less often, and their leases live longer.
_SUPERVISED_S, _FAR_S = 6.0, 20.0


def supervisors(bucket: Bucket, url: str, name: str = "supervisor", *, who: str = "") -> Lease:
    """The lease of whoever supervises a workspace, or stands by."""
    return Lease(bucket, name, who=who, ttl_s=_FAR_S if url.startswith(("gs://", "s3://")) else _SUPERVISED_S)


class Lease:
    """One named lease as one process sees it. Its age is judged by the store's clock alone."""

    def __init__(self, bucket: Bucket, name: str, *, who: str, ttl_s: float) -> None:
        self.bucket = bucket
        self.prefix = f"leases/{name}/"
        self.who = who
        self.ttl_s = ttl_s
        self.epoch = 0

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
        return now - seen_at > self.ttl_s

    def _forget_before(self, epoch: int) -> None:
        for entry in list(self.bucket.list(self.prefix)):
            number = entry.key.rsplit("/", 1)[-1].removeprefix("beat-")
            if number.isdigit() and int(number) < epoch:
                self.bucket.delete(entry.key)
