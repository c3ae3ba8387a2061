"""The record of a run's code and packages. A separate module: readers of a request need not load the packing."""

from __future__ import annotations

from typing import Literal

import msgspec

from outlast.code.environment import EnvironmentRecord
from outlast.store.blobs import blob_key


class CodeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The code of a run, sufficient to fetch it again, and its environment. Contains no credentials."""

    kind: Literal["none", "bundle", "git"] = "none"
    sha256: str = ""
    bytes: int = 0
    files: int = 0
    url: str = ""
    ref: str = ""
    # The commit of a git URL, or the one that a bundle's folder was at.
    commit: str = ""
    dirty: bool = False
    # The blob of the uncommitted diff.
    diff: str = ""
    # The packages of the command; None: those of the machine.
    environment: EnvironmentRecord | None = None

    @property
    def shared_keys(self) -> tuple[str, ...]:
        """The keys of all shared objects that it refers to."""
        keys = [code_key(self.sha256)] if self.kind == "bundle" else []
        keys += [blob_key(self.diff)] if self.diff else []
        # An environment without packages has none.
        keys += [self.environment.lock_key] if self.environment is not None and self.environment.packages else []
        return tuple(keys)


def code_key(sha256: str) -> str:
    """Return the key of a bundle of code."""
    return f"code/{sha256}.tar.zst"
