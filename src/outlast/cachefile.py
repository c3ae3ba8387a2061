"""Cache files: values that change slowly, kept from one command to the next."""

from __future__ import annotations

import os
from typing import TypeVar

import msgspec

from outlast import private

T = TypeVar("T")


def read_cache(path: str, type: type[T]) -> T | None:
    """Return the value in a cache file; None if it is missing or unreadable."""
    try:
        with open(path, "rb") as file:
            return msgspec.json.decode(file.read(), type=type)
    except (OSError, msgspec.MsgspecError):
        return None


def write_cache(path: str, value: object) -> None:
    """Replace a cache file. A failure is ignored: the next process fetches the value again."""
    try:
        os.makedirs(os.path.dirname(private.prepare(path)), mode=0o700, exist_ok=True)
        draft = f"{path}.{os.getpid()}"
        with open(draft, "wb") as file:
            file.write(msgspec.json.encode(value))
        os.replace(draft, path)
    except OSError:
        pass
