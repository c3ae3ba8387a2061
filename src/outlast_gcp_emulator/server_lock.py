"""Which server serves a folder: one that runs holds a lock there, and says where it listens."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from outlast.clouds.local.files import is_locked, read_json, try_lock, write_json
from outlast.errors import UsageError


@contextmanager
def held(root: str) -> Iterator[None]:
    """The right to serve this folder. Raises UsageError while somebody else does."""
    os.makedirs(root, mode=0o700, exist_ok=True)
    with open(f"{root}/serve.lock", "a"):
        pass
    lock = try_lock(f"{root}/serve.lock")
    if lock is None:
        url = (read_json(f"{root}/serve.json") or {}).get("url", "an address of its own")
        raise UsageError(f"{root} is served already, at {url}", hint="use that one, or choose another --root")
    try:
        yield
    finally:
        os.close(lock)


def tell(root: str, url: str) -> None:
    """Let others know where this folder is served."""
    write_json(f"{root}/serve.json", {"url": url, "pid": os.getpid()})


def served_at(root: str) -> str | None:
    """The address of the server of this folder; None if none runs."""
    if not is_locked(f"{root}/serve.lock"):
        return None
    url = (read_json(f"{root}/serve.json") or {}).get("url")
    return url if isinstance(url, str) else None
