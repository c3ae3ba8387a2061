"""What the programs of a machine write for those outside: GCE's guest attributes. A file beside the machine's disk.

Its shim alone writes, and it outlives a boot, so that whoever asks reads it without the machine.
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
    """No path for it: `status` says which of HTTP's reasons, the words say why."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


def read(folder: Folder) -> GuestAttributes:
    """What was written, by namespace and key."""
    return read_json(_path(folder)) or {}


def write(folder: Folder, path: str, value: str | None) -> None:
    """Put a value at `namespace/key`, or take it away. Raises WriteRefused."""
    if not _KEY_PATH.fullmatch(path):
        raise WriteRefused(400, f"`{path}` is not a namespace and a key, each of at most 128 letters, digits, `_.-`")
    namespace, _, key = path.partition("/")
    written = read(folder)
    values = {name: old for name, old in written.get(namespace, {}).items() if name != key}
    if value is not None:
        values[key] = value
    written = {**written, namespace: values}
    changed = {name: one for name, one in written.items() if one}
    if _size(changed) > _BYTES_MAX:
        raise WriteRefused(413, f"all guest attributes together take more than {_BYTES_MAX} bytes")
    try:
        write_json(_path(folder), changed)
    except OSError as problem:
        raise WriteRefused(503, f"{problem.strerror}") from problem


def _path(folder: Folder) -> str:
    return f"{folder.path}/guest.json"


def _size(written: GuestAttributes) -> int:
    return sum(len(f"{name}{key}{value}".encode()) for name, values in written.items() for key, value in values.items())
