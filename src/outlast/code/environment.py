"""The record of an environment: its lock, its Python and the digest that names it in every workspace."""

from __future__ import annotations

import hashlib
from typing import Literal

import msgspec

from outlast.store.bucket import Bucket
from outlast.store.shared import store_shared

Kind = Literal["uv", "requirements", "pyproject", "conda", "empty"]
# A change of how environments are built changes their digests.
_RECIPE = "2"


def lock_key(digest: str) -> str:
    return f"environments/{digest}/lock"


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
    # The backend of PyTorch, such as `cpu` or `cu128`; empty: the one of the package index.
    torch: str = ""

    @property
    def short(self) -> str:
        return self.digest[:12]

    @property
    def lock_key(self) -> str:
        return lock_key(self.digest)

    def pointer_key(self, platform: str) -> str:
        """Return the key that names the packed environment of a platform, such as `linux-x86_64-python3.12.3`."""
        return f"environments/{self.digest}/{platform}.json"

    def describe(self) -> str:
        """Describe it for logs: `uv.lock (a1b2c3d4e5f6), 31 packages, Python 3.12`."""
        if self.kind == "empty":
            return f"no packages, Python {self.python}"
        packages = "1 package" if self.packages == 1 else f"{self.packages} packages"
        torch = f", PyTorch for {self.torch}" if self.torch else ""
        return f"{self.file} ({self.short}), {packages}, Python {self.python}{torch}"


def record_of(kind: Kind, *, lock: str, file: str, python: str, python_min: str, torch: str = "") -> EnvironmentRecord:
    """Return the record of a lock. Two locks with the same content, Python and PyTorch have the same digest."""
    parts = msgspec.json.encode([_RECIPE, kind == "conda", python, python_min, lock, torch])
    return EnvironmentRecord(
        kind=kind,
        digest=hashlib.sha256(parts).hexdigest(),
        file=file,
        python=python,
        python_min=python_min,
        torch=torch,
        packages=sum(1 for line in lock.splitlines() if line[:1].isalnum()),
    )


def store_lock(bucket: Bucket, record: EnvironmentRecord, lock: str) -> EnvironmentRecord:
    """Store the lock under its digest; return the record, which may name another copy (`store/shared.py`)."""
    digest = store_shared(bucket, lock_key, record.digest, lock.encode())
    return msgspec.structs.replace(record, digest=digest)
