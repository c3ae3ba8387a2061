"""What the programs of a machine write for those outside: GCE's guest attributes. A file beside the machine's disk.

Its shim alone writes, and it outlives a boot, so that whoever asks reads it without the machine.
"""

from __future__ import annotations

import re

from outlast.clouds.local.files import read_json, write_json
from outlast.clouds.local.folder import Folder

Pages = dict[str, dict[str, str]]

_WORD = r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,127}"
_PLACE = re.compile(f"{_WORD}/{_WORD}")
_BYTES_MAX = 256 * 1024


class CannotWrite(ValueError):
    """No place for it: `status` says which of HTTP's reasons, the words say why."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


def pages(folder: Folder) -> Pages:
    """What was written, by namespace and key."""
    return read_json(_path(folder)) or {}


def write(folder: Folder, place: str, value: str | None) -> None:
    """Put a value at `namespace/key`, or take it away. Raises CannotWrite."""
    if not _PLACE.fullmatch(place):
        raise CannotWrite(400, f"`{place}` is not a namespace and a key, each of at most 128 letters, digits, `_.-`")
    namespace, _, key = place.partition("/")
    written = pages(folder)
    page = {name: old for name, old in written.get(namespace, {}).items() if name != key}
    if value is not None:
        page[key] = value
    written = {**written, namespace: page}
    changed = {name: one for name, one in written.items() if one}
    if _size(changed) > _BYTES_MAX:
        raise CannotWrite(413, f"all guest attributes together take more than {_BYTES_MAX} bytes")
    try:
        write_json(_path(folder), changed)
    except OSError as problem:
        raise CannotWrite(503, f"{problem.strerror}") from problem


def _path(folder: Folder) -> str:
    return f"{folder.path}/guest.json"


def _size(written: Pages) -> int:
    return sum(len(f"{name}{key}{value}".encode()) for name, page in written.items() for key, value in page.items())
