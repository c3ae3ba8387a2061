"""Volumes of the local cloud: folders that all its machines share.

    volumes/<name>/volume.json   the request        volumes/<name>/files/   the content

Folders need no NFS in the kernel. The kernel does not enforce their size: the commands that fill a volume check it.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from outlast import private
from outlast.clouds.local import catalog
from outlast.clouds.local.files import read_json, remove_tree, wait_lock, write_json
from outlast.clouds.local.os_errors import with_os_errors
from outlast.clouds.resources import Volume
from outlast.errors import BadRequest, NotFound

_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
# Not a valid end of a volume's name.
_GONE = ".deleted"


class LocalVolumes:
    """The volumes below one folder. Any number of processes may use it at once."""

    def __init__(self, root: str) -> None:
        self.root = root

    @with_os_errors
    def usd_per_month(self, size_gb: float) -> float:
        return 0.0

    def create(self, name: str, *, size_gb: float, zone: str = "", labels: Mapping[str, str] | None = None) -> Volume:
        folder = self._folder(name)
        if zone:
            catalog.check_zone(zone)
        with self._locked():
            os.makedirs(f"{folder}/files", mode=0o700, exist_ok=True)
            if read_json(f"{folder}/volume.json") is None:
                facts = {"size_gb": size_gb, "zone": zone, "labels": dict(labels or {}), "created_at": time.time()}
                write_json(f"{folder}/volume.json", facts)
        return self.find(name)

    def list_all(self, labels: Mapping[str, str] | None = None) -> Sequence[Volume]:
        names = sorted(os.listdir(f"{self.root}/volumes")) if os.path.isdir(f"{self.root}/volumes") else []
        found = [self._describe(name, measured=False) for name in names if _NAME.fullmatch(name)]
        wanted = set((labels or {}).items())
        return [one for one in found if one is not None and wanted <= set(one.labels.items())]

    def find(self, name: str) -> Volume:
        if (found := self._describe(name, measured=True)) is None:
            raise NotFound(f"the local cloud has no volume `{name}`")
        return found

    @with_os_errors
    def resize(self, name: str, size_gb: float) -> Volume:
        volume = self.find(name)
        if size_gb < (volume.used_gb or 0.0):
            why = f"cannot shrink volume `{name}` to {size_gb:g} GB: it holds {volume.used_gb:.3f} GB"
            raise BadRequest(why, hint="delete files from it first")
        with self._locked():
            path = f"{self._folder(name)}/volume.json"
            write_json(path, {**(read_json(path) or {}), "size_gb": size_gb})
        return self.find(name)

    @with_os_errors
    def delete(self, name: str) -> None:
        folder = self._folder(name)
        # Rename first: a concurrent copy into the volume then fails, and does not recreate half of it.
        with suppress(FileNotFoundError):
            os.rename(folder, f"{folder}{_GONE}")
        remove_tree(f"{folder}{_GONE}")

    def _folder(self, name: str) -> str:
        if not _NAME.fullmatch(name):
            raise BadRequest(f"invalid volume name `{name}`", hint="use lower-case letters, digits and `-`, at most 63")
        return f"{self.root}/volumes/{name}"

    def _describe(self, name: str, *, measured: bool) -> Volume | None:
        folder = self._folder(name)
        facts: dict[str, Any] | None = read_json(f"{folder}/volume.json")
        if facts is None:
            return None
        zone = str(facts.get("zone", ""))
        return Volume(
            name=name,
            cloud=catalog.CLOUD,
            zone=zone,
            zones=(zone,) if zone else (),
            source=f"{folder}/files",
            kind="folder",
            size_gb=float(facts.get("size_gb", 0.0)),
            used_gb=used_bytes(f"{folder}/files") / 1e9 if measured else None,
            created_at=float(facts.get("created_at", 0.0)),
            labels=facts.get("labels", {}),
        )

    @contextmanager
    def _locked(self) -> Iterator[None]:
        os.makedirs(private.prepare(f"{self.root}/volumes"), mode=0o700, exist_ok=True)
        descriptor = wait_lock(f"{self.root}/volumes/.lock")
        try:
            yield
        finally:
            os.close(descriptor)


def used_bytes(folder: str) -> int:
    """Return the size of the files in a folder, hard links counted once."""
    seen: set[tuple[int, int]] = set()
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # deleted meanwhile
                status = os.lstat(os.path.join(path, name))
                if (status.st_dev, status.st_ino) not in seen:
                    seen.add((status.st_dev, status.st_ino))
                    total += status.st_size
    return total
