"""A bucket that counts the bytes that go through it: traffic between regions and clouds is billed."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence

from outlast.store.bucket import Bucket, Entry


class Traffic:
    """Bytes that this process has sent and received. May be used by many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.sent = 0
        self.received = 0

    def add(self, *, sent: int = 0, received: int = 0) -> None:
        with self._lock:
            self.sent += sent
            self.received += received


class CountedBucket:
    """A bucket with the traffic that it counts; several may count together."""

    def __init__(self, bucket: Bucket, traffic: Traffic | None = None) -> None:
        self.bucket = bucket
        self.url = bucket.url
        self.traffic = traffic or Traffic()

    def get(self, key: str) -> bytes:
        body = self.bucket.get(key)
        self.traffic.add(received=len(body))
        return body

    def get_range(self, key: str, start: int, length: int) -> bytes:
        body = self.bucket.get_range(key, start, length)
        self.traffic.add(received=len(body))
        return body

    def read_into(self, key: str, room: memoryview) -> int:
        count = self.bucket.read_into(key, room)
        self.traffic.add(received=count)
        return count

    def put(self, key: str, body: bytes, *, durable: bool = False) -> None:
        self.traffic.add(sent=len(body))
        self.bucket.put(key, body, durable=durable)

    def now(self, key: str) -> float:
        return self.bucket.now(key)

    def create(self, key: str, body: bytes, *, durable: bool = True) -> None:
        self.traffic.add(sent=len(body))
        self.bucket.create(key, body, durable=durable)

    def write(self, key: str, body: bytes | memoryview) -> None:
        self.traffic.add(sent=len(body))
        self.bucket.write(key, body)

    def make_durable(self, keys: Sequence[str]) -> None:
        self.bucket.make_durable(keys)

    def remove_stale_writes(self, *, older_s: float) -> int:
        return self.bucket.remove_stale_writes(older_s=older_s)

    def upload(self, key: str, path: str) -> None:
        self.traffic.add(sent=os.path.getsize(path))
        self.bucket.upload(key, path)

    def download(self, key: str, path: str) -> None:
        self.bucket.download(key, path)
        self.traffic.add(received=os.path.getsize(path))

    def head(self, key: str) -> Entry:
        return self.bucket.head(key)

    def list(self, prefix: str, *, after: str = "", limit: int = 0) -> Iterator[Entry]:
        return self.bucket.list(prefix, after=after, limit=limit)

    def children(self, prefix: str) -> Sequence[str]:
        return self.bucket.children(prefix)

    def delete(self, key: str) -> None:
        self.bucket.delete(key)

    def delete_many(self, keys: Sequence[str]) -> None:
        self.bucket.delete_many(keys)


def traffic_of(bucket: Bucket) -> Traffic:
    """Return what a bucket has counted; nothing if it does not count."""
    return bucket.traffic if isinstance(bucket, CountedBucket) else Traffic()
