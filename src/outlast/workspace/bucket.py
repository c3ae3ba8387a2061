"""A bucket: named bodies of bytes, and one primitive that carries all correctness, create-only.

Refuses to know what the bodies mean. Replace-if-match is left out on purpose: folders cannot do it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from outlast.errors import UsageError, WorkspaceError

if TYPE_CHECKING:
    from outlast.workspace.reach import Reach


class Entry(msgspec.Struct, frozen=True):
    """One object of a listing. `modified_at` is the store's own clock, the only one that ages are judged by."""

    key: str
    bytes: int
    modified_at: float


class Bucket(Protocol):
    """Objects by key. Every call may be made from many threads, and may raise StoreUnreachable.

    Keys are `/`-separated, relative, without `.` or `..`; no key may be a folder of another. A reader never sees
    half a body. What `create` or `put(durable=True)` acknowledged survives a power cut; what `write` did, once settled.
    """

    url: str

    def get(self, key: str) -> bytes:
        """The body. Raises Missing."""

    def fill(self, key: str, room: memoryview) -> int:
        """The body into this memory, as much as there is room for; how much that was. Raises Missing."""

    def put(self, key: str, body: bytes, *, durable: bool = False) -> Entry:
        """Create or replace; the answer carries the store's time of the write."""

    def create(self, key: str, body: bytes, *, durable: bool = True) -> None:
        """Create, or raise Exists and change nothing. The answer may be lost after the work was done."""

    def write(self, key: str, body: bytes | memoryview) -> None:
        """Create or replace a body of megabytes, one of many. The memory is the caller's again on return."""

    def settle(self, keys: Sequence[str]) -> None:
        """What `write` put under these keys survives a power cut from now on. Raises Missing if one is gone."""

    def sweep(self, *, older_s: float) -> int:
        """Remove what writers that died left half done so long ago, by the store's clock; how much there was."""

    def upload(self, key: str, path: str) -> None:
        """Create or replace from a file of any size."""

    def download(self, key: str, path: str) -> None:
        """Into a file; whole or not at all. Raises Missing."""

    def head(self, key: str) -> Entry:
        """Size and time. Raises Missing."""

    def list(self, prefix: str, *, after: str = "") -> Iterator[Entry]:
        """Every object whose key starts with the prefix (empty, or ending in `/`), sorted by key, after `after`."""

    def children(self, prefix: str) -> Sequence[str]:
        """The names directly below the prefix, sorted; one listing, however deep the tree is."""

    def delete(self, key: str) -> None:
        """Deleting what is not there is fine."""


def check_key(key: str) -> str:
    """The key, if every store can hold it."""
    parts = key.split("/")
    # Names in a folder may be no text at all; the two sizes are alike for what is.
    size = len(key.encode(errors="surrogatepass"))
    text = size == len(key.encode(errors="ignore"))
    if not text or size > 1000 or "\0" in key or any(part in ("", ".", "..") or len(part) > 255 for part in parts):
        raise WorkspaceError(f"`{key}` cannot be the name of an object")
    return key


def open_bucket(url: str, reach: Reach | None = None) -> Bucket:
    """The bucket behind a folder, `gs://…`, `s3://…` or `memory://` address; `reach` says what the variables do not."""
    if url.startswith(("gs://", "s3://", "memory://")):
        from outlast.workspace.objects import ObjectBucket

        return ObjectBucket(url, reach)
    if "://" in url:
        raise UsageError(
            f"workspace `{url}`: no store is known by `{url.split('://')[0]}://`",
            hint="use a folder, gs://BUCKET/PATH or s3://BUCKET/PATH",
        )
    from outlast.workspace.folder import FolderBucket

    return FolderBucket(url)
