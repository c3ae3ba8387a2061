"""The bucket protocol: objects by key. All correctness rests on one primitive, the create-only write.

Replace-if-match is omitted on purpose: folders cannot implement it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from outlast.errors import UsageError, WorkspaceError

if TYPE_CHECKING:
    from outlast.store.access import StoreAccess


class Entry(msgspec.Struct, frozen=True):
    """One object of a listing. `modified_at` is by the store's clock, the only one used to compute ages."""

    key: str
    bytes: int
    modified_at: float


class Bucket(Protocol):
    """Objects by key. Every call may be made from many threads, and may raise StoreUnreachable.

    Keys are `/`-separated, relative, without `.` or `..`; no key may be a folder of another. A reader never sees
    a partial body. An acknowledged `create` or `put(durable=True)` survives a power cut; a `write` does after
    `make_durable`.
    """

    url: str

    def get(self, key: str) -> bytes:
        """Return the body. Raises Missing."""

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Return `length` bytes of the body from `start` on, all of which it has. Raises Missing."""

    def read_into(self, key: str, room: memoryview) -> int:
        """Read as much of the body as fits into `room`; return the number of bytes. Raises Missing."""

    def put(self, key: str, body: bytes, *, durable: bool = False) -> None:
        """Create or replace an object."""

    def now(self, key: str) -> float:
        """Return the time by the store's clock, from the write of an empty object at `key`."""

    def create(self, key: str, body: bytes, *, durable: bool = True) -> None:
        """Create an object, or raise Exists and change nothing. It may succeed and still raise StoreUnreachable."""

    def write(self, key: str, body: bytes | memoryview) -> None:
        """Create or replace one of many large objects. The caller may reuse the memory on return."""

    def make_durable(self, keys: Sequence[str]) -> None:
        """Make objects that `write` stored survive a power cut. Raises Missing if one is gone."""

    def remove_stale_writes(self, *, older_s: float) -> int:
        """Remove unfinished writes older than this (store's clock) of processes that died; return their number."""

    def upload(self, key: str, path: str) -> None:
        """Create or replace an object from a file of any size."""

    def download(self, key: str, path: str) -> None:
        """Download an object to a file, atomically. Raises Missing."""

    def head(self, key: str) -> Entry:
        """Return the entry of an object. Raises Missing."""

    def list(self, prefix: str, *, after: str = "", limit: int = 0) -> Iterator[Entry]:
        """Yield objects by prefix (empty, or ending in `/`), sorted by key, after `after`, at most `limit` (0: all)."""

    def children(self, prefix: str) -> Sequence[str]:
        """Return the names directly below the prefix, sorted, with one request."""

    def delete(self, key: str) -> None:
        """Delete an object; may be repeated."""

    def delete_many(self, keys: Sequence[str]) -> None:
        """Delete objects with as few requests as the store allows; may be repeated. After an error some may be left."""


def check_key(key: str) -> str:
    """Return the key if every store supports it. Raises WorkspaceError."""
    parts = key.split("/")
    # File names may be invalid UTF-8; then the two sizes differ.
    size = len(key.encode(errors="surrogatepass"))
    text = size == len(key.encode(errors="ignore"))
    if not text or size > 1000 or "\0" in key or any(part in ("", ".", "..") or len(part) > 255 for part in parts):
        raise WorkspaceError(f"invalid object key `{key}`")
    return key


def open_bucket(url: str, access: StoreAccess | None = None) -> Bucket:
    """Open the bucket at a folder, `gs://…`, `s3://…` or `memory://` URL.

    `access` adds to the environment variables.
    """
    if url.startswith(("gs://", "s3://", "memory://")):
        from outlast.store.object_store import ObjectBucket

        return ObjectBucket(url, access)
    if "://" in url:
        raise UsageError(
            f"workspace `{url}`: unknown URL scheme `{url.split('://')[0]}://`",
            hint="use a folder, gs://BUCKET/PATH or s3://BUCKET/PATH",
        )
    from outlast.store.folder import FolderBucket

    return FolderBucket(url)
