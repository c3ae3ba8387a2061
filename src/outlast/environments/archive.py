"""Packed environments in the workspace: stored by one builder, unpacked while parallel reads bring them, pruned later.

environments/DIGEST/lock                     the requirements; never deleted: old runs can be repeated
environments/DIGEST/PLATFORM.json            names the archive of a platform; create-only, so that one builder wins
environments/DIGEST/PLATFORM-NONCE.tar.zst   the archive
environments/DIGEST/PLATFORM.used            renewed by machines that unpack it
environments/python-3.13/…                   the same for a Python that images lack (`pythons.py`)
"""

from __future__ import annotations

import io
import os
import secrets
import tarfile
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import msgspec

from outlast.code.bundle import zstd_module
from outlast.code.environment import EnvironmentRecord
from outlast.errors import Exists, Missing
from outlast.store.bucket import Bucket, Entry

# Eight reads of 8 MiB saturate a fast network, and take 64 MiB of a small machine's memory.
_PIECE, _READS = 8 << 20, 8
UNUSED_S = 30 * 86400.0
# A body without a pointer may belong to a builder that is still uploading.
_UPLOAD_S = 86400.0


class Archive(msgspec.Struct, frozen=True):
    """The packed environment of one platform."""

    key: str
    bytes: int
    unpacked_bytes: int = 0
    # The folder that was packed, if its name matters.
    name: str = ""


class DamagedArchive(Exception):
    """The archive cannot be unpacked."""


def find_archive(bucket: Bucket, record: EnvironmentRecord, platform: str) -> Archive | None:
    """Return the packed environment for a platform; None if the workspace has none."""
    try:
        return msgspec.json.decode(bucket.get(record.pointer_key(platform)), type=Archive)
    except Missing:
        return None


def store(bucket: Bucket, record: EnvironmentRecord, platform: str, folder: str, *, name: str = "") -> bool:
    """Pack a folder and store it, unless another builder was first. Return whether it was stored."""
    if find_archive(bucket, record, platform) is not None:
        return False
    draft = folder + ".tar.zst"
    key = f"environments/{record.digest}/{platform}-{secrets.token_hex(4)}.tar.zst"
    try:
        size = pack(folder, draft)
        bucket.upload(key, draft)
        found = Archive(key=key, bytes=os.stat(draft).st_size, unpacked_bytes=size, name=name)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(draft)
    try:
        bucket.create(record.pointer_key(platform), msgspec.json.encode(found))
    except Exists:
        bucket.delete(key)
        return False
    return True


def pack(folder: str, path: str) -> int:
    """Pack a folder into a file; return the size of its content. The copy of uv is left out: machines have it."""
    zstd = zstd_module()
    size = 0

    def without_uv(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        nonlocal size
        size += entry.size
        return None if entry.name in ("./bin/uv", "./bin/uvx") else entry

    # The checksum finds an archive that was damaged on its way.
    options = {zstd.CompressionParameter.checksum_flag: 1}
    with zstd.open(path, "wb", options=options) as packed, tarfile.open(fileobj=packed, mode="w|") as archive:
        archive.add(folder, arcname=".", filter=without_uv)
    return size


def unpack(bucket: Bucket, found: Archive, folder: str, *, progress: Callable[[int], None] = lambda _: None) -> None:
    """Unpack an archive while it arrives. `progress` receives the number of bytes so far.

    Raises Missing if it was pruned meanwhile, DamagedArchive.
    """
    zstd = zstd_module()
    try:
        with (
            _Arriving(bucket, found, progress) as body,
            zstd.open(body, "rb") as packed,
            tarfile.open(fileobj=packed, mode="r|", bufsize=1 << 20) as members,
        ):
            # Environments link to the machine's Python, outside of their folder.
            extract_trusted(members, folder)
            # Read to the end: the checksum is there.
            while packed.read(1 << 20):
                pass
    except (tarfile.TarError, EOFError, zstd.ZstdError) as problem:
        raise DamagedArchive(str(problem)) from problem


class _Arriving(io.RawIOBase):
    """An object of the workspace as a file: several ranges are read ahead at a time, and none is kept."""

    def __init__(self, bucket: Bucket, found: Archive, progress: Callable[[int], None]) -> None:
        self._bucket, self._found, self._progress = bucket, found, progress
        self._threads = ThreadPoolExecutor(_READS, thread_name_prefix="environment")
        self._waiting: deque[Future[bytes]] = deque()
        self._next, self._arrived = 0, 0
        self._piece = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, room: Any) -> int:
        if not self._piece:
            self._read_ahead()
            if not self._waiting:
                return 0
            self._piece = memoryview(self._waiting.popleft().result())
            self._arrived += len(self._piece)
            self._progress(self._arrived)
        count = min(len(room), len(self._piece))
        room[:count], self._piece = self._piece[:count], self._piece[count:]
        return count

    def _read_ahead(self) -> None:
        while len(self._waiting) < _READS and self._next < self._found.bytes:
            start, length = self._next, min(_PIECE, self._found.bytes - self._next)
            self._waiting.append(self._threads.submit(self._bucket.get_range, self._found.key, start, length))
            self._next += length

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)
        super().close()


def extract_trusted(archive: tarfile.TarFile, folder: str) -> None:
    """Extract an archive that outlast itself wrote."""
    # Debian 12 has Python 3.11.2, whose `extractall` knows no filters; newer ones forbid links without one.
    options: dict[str, Any] = {"filter": "fully_trusted"} if hasattr(tarfile, "fully_trusted_filter") else {}
    archive.extractall(folder, **options)


def mark_used(bucket: Bucket, record: EnvironmentRecord, platform: str) -> None:
    """Record that a machine uses the packed environment: it stays for another `UNUSED_S`."""
    bucket.put(record.pointer_key(platform).removesuffix(".json") + ".used", b"")


def prune(bucket: Bucket, *, unused_s: float = UNUSED_S) -> list[str]:
    """Delete packed environments that no machine has used for a while; return the deleted archives.

    A submit at the same time is safe: locks stay, and a machine that finds no archive builds the environment.
    """
    entries = list(bucket.list("environments/"))
    deleted = unused(entries, now=max((entry.modified_at for entry in entries), default=0.0), unused_s=unused_s)
    # Pointers first: a machine must not find one whose archive is gone.
    for key in sorted(deleted, key=lambda key: (not key.endswith(".json"), key)):
        bucket.delete(key)
    return [key for key in deleted if key.endswith(".tar.zst")]


def unused(entries: list[Entry], *, now: float, unused_s: float) -> list[str]:
    """Return the keys of archives, pointers and marks that no machine has used since `now - unused_s`."""
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        if entry.key.endswith((".json", ".used", ".tar.zst")):
            groups.setdefault(_platform_of(entry.key), []).append(entry)
    found: list[str] = []
    for group in groups.values():
        limit_s = unused_s if any(entry.key.endswith(".json") for entry in group) else _UPLOAD_S
        if max(entry.modified_at for entry in group) < now - limit_s:
            found += [entry.key for entry in group]
    return found


def _platform_of(key: str) -> str:
    if key.endswith(".tar.zst"):
        return key.removesuffix(".tar.zst").rpartition("-")[0]
    return key.rpartition(".")[0]


class Throttle:
    """Passes a message on at most every `every_s` seconds."""

    def __init__(self, report: Callable[[str], None], *, every_s: float) -> None:
        self._report, self._every_s = report, every_s
        self._next_at = time.monotonic() + every_s

    def __call__(self, text: str) -> None:
        if time.monotonic() >= self._next_at:
            self._next_at = time.monotonic() + self._every_s
            self._report(text)
