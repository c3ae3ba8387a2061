"""What is remembered of a run's code. Apart from the packing, which the many readers of a request never do."""

from __future__ import annotations

from typing import Literal

import msgspec


class CodeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What code a run uses, enough to get it again. Holds no credentials."""

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
