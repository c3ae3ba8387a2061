"""The lock of a served folder, and the file with the address of its running server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from outlast.clouds.local.files import is_locked, read_json, try_lock, write_json
from outlast.errors import UsageError


@contextmanager
def hold_lock(root: str) -> Iterator[None]:
    """Hold the lock of a folder. Raises UsageError while another server holds it."""
    os.makedirs(root, mode=0o700, exist_ok=True)
    with open(f"{root}/serve.lock", "a"):
        pass
    lock = try_lock(f"{root}/serve.lock")
    if lock is None:
        url = (read_json(f"{root}/serve.json") or {}).get("url", "an unknown address")
        raise UsageError(f"{root} is already served at {url}", hint="use that server, or choose another --root")
    try:
        yield
    finally:
        os.close(lock)


def write_address(root: str, url: str) -> None:
    """Record the address of the running server."""
    write_json(f"{root}/serve.json", {"url": url, "pid": os.getpid()})


def served_at(root: str) -> str | None:
    """Return the address of the running server; None if there is none."""
    if not is_locked(f"{root}/serve.lock"):
        return None
    url = (read_json(f"{root}/serve.json") or {}).get("url")
    return url if isinstance(url, str) else None
