"""GCE's guest attributes: values that a machine's programs publish to clients outside of it.

They are a file beside the machine's disk. Only the shim writes it; it survives a boot and is readable while the machine
is off.
"""

from __future__ import annotations

import re

from outlast.clouds.local.files import read_json, write_json
from outlast.clouds.local.folder import Folder

GuestAttributes = dict[str, dict[str, str]]

_NAME = r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,127}"
_KEY_PATH = re.compile(f"{_NAME}/{_NAME}")
_BYTES_MAX = 256 * 1024


class WriteRefused(ValueError):
    """A write that is refused, with the HTTP status of the answer."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


def read(folder: Folder) -> GuestAttributes:
    """Return namespace → key → value."""
    return read_json(_path(folder)) or {}


def write(folder: Folder, path: str, value: str | None) -> None:
    """Set the value at `namespace/key`; None removes it. Raises WriteRefused."""
    if not _KEY_PATH.fullmatch(path):
        raise WriteRefused(
            400, f"invalid path `{path}`: expected NAMESPACE/KEY, each at most 128 letters, digits, `_.-`"
        )
    namespace, _, key = path.partition("/")
    written = read(folder)
    values = {name: old for name, old in written.get(namespace, {}).items() if name != key}
    if value is not None:
        values[key] = value
    written = {**written, namespace: values}
    changed = {name: one for name, one in written.items() if one}
    if _size(changed) > _BYTES_MAX:
        raise WriteRefused(413, f"the guest attributes would exceed {_BYTES_MAX} bytes in total")
    try:
        write_json(_path(folder), changed)
    except OSError as problem:
        raise WriteRefused(503, f"{problem.strerror}") from problem


def _path(folder: Folder) -> str:
    return f"{folder.path}/guest.json"


def _size(written: GuestAttributes) -> int:
    return sum(len(f"{name}{key}{value}".encode()) for name, values in written.items() for key, value in values.items())
