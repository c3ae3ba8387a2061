"""The record of an environment: its lock, its Python and the digest that names it in every workspace."""

from __future__ import annotations

import hashlib
from typing import Literal

import msgspec

from outlast.errors import Exists
from outlast.store.bucket import Bucket

Kind = Literal["uv", "requirements", "pyproject", "conda", "empty"]
# A change of how environments are built changes their digests.
_RECIPE = "1"


class EnvironmentRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The environment of a run, recorded at submit: every attempt gets the same packages."""

    kind: Kind
    digest: str
    # The file from which it was read; empty for an empty environment.
    file: str = ""
    # Preferred Python, such as `3.12`, and the oldest that the lock allows.
    python: str = ""
    python_min: str = ""
    packages: int = 0

    @property
    def short(self) -> str:
        return self.digest[:12]

    @property
    def lock_key(self) -> str:
        return f"environments/{self.digest}/lock"

    def archive_key(self, platform: str) -> str:
        """Return the key of the packed environment for one platform, such as `linux-x86_64-python3.12.3`."""
        return f"environments/{self.digest}/{platform}.tar.zst"

    def describe(self) -> str:
        """Describe it for logs: `uv.lock (a1b2c3d4e5f6), 31 packages, Python 3.12`."""
        if self.kind == "empty":
            return f"no packages, Python {self.python}"
        packages = "1 package" if self.packages == 1 else f"{self.packages} packages"
        return f"{self.file} ({self.short}), {packages}, Python {self.python}"


def record_of(kind: Kind, *, lock: str, file: str, python: str, python_min: str) -> EnvironmentRecord:
    """Return the record of a lock. Two locks with the same content and Python have the same digest."""
    parts = msgspec.json.encode([_RECIPE, kind == "conda", python, python_min, lock])
    return EnvironmentRecord(
        kind=kind,
        digest=hashlib.sha256(parts).hexdigest(),
        file=file,
        python=python,
        python_min=python_min,
        packages=sum(1 for line in lock.splitlines() if line[:1].isalnum()),
    )


def store_lock(bucket: Bucket, record: EnvironmentRecord, lock: str) -> None:
    """Store the lock under its digest. May be repeated."""
    try:
        bucket.create(record.lock_key, lock.encode())
    except Exists:
        pass  # the same content, by its name
