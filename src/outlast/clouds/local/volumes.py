"""Volumes of the local cloud: folders that every machine of it sees. Their size is a promise, kept by who fills them.

    volumes/<name>/volume.json   what was asked        volumes/<name>/files/   what is in it

The kernel need not know NFS for that, and many do not. What is lost by it: a folder is not full before the disk is.
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
from outlast.clouds.resources import Volume
from outlast.errors import BadRequest, CloudUnreachable, Denied, NotFound

_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
# No volume can be called like this.
_GONE = ".deleted"


class LocalVolumes:
    """All below one folder. Any number of processes may use it at once."""

    def __init__(self, root: str) -> None:
        self.root = root

    def create(self, name: str, *, size_gb: float, zone: str = "", labels: Mapping[str, str] | None = None) -> Volume:
        folder = self._folder(name)
        if zone:
            catalog.check_zone(zone)
        with _as_cloud_errors(), self._locked():
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

    def resize(self, name: str, size_gb: float) -> Volume:
        volume = self.find(name)
        if size_gb < (volume.used_gb or 0.0):
            why = f"the volume `{name}` holds {volume.used_gb:.3f} GB, and cannot have {size_gb:g}"
            raise BadRequest(why, hint="delete what is not needed first")
        with _as_cloud_errors(), self._locked():
            path = f"{self._folder(name)}/volume.json"
            write_json(path, {**(read_json(path) or {}), "size_gb": size_gb})
        return self.find(name)

    def delete(self, name: str) -> None:
        folder = self._folder(name)
        with _as_cloud_errors():
            # In one step it is nobody's any more: who copies into it meanwhile is told, and makes no half of it anew.
            with suppress(FileNotFoundError):
                os.rename(folder, f"{folder}{_GONE}")
            remove_tree(f"{folder}{_GONE}")

    def _folder(self, name: str) -> str:
        if not _NAME.fullmatch(name):
            raise BadRequest(f"`{name}` cannot name a volume", hint="lower-case letters, digits and `-`, at most 63")
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
    """What is in a folder, each file once."""
    seen: set[tuple[int, int]] = set()
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # it went meanwhile
                status = os.lstat(os.path.join(place, name))
                if (status.st_dev, status.st_ino) not in seen:
                    seen.add((status.st_dev, status.st_ino))
                    total += status.st_size
    return total


@contextmanager
def _as_cloud_errors() -> Iterator[None]:
    """What the operating system refuses is a cloud's refusal."""
    try:
        yield
    except PermissionError as problem:
        why = f"the local cloud cannot use {problem.filename}: {problem.strerror}"
        raise Denied(why, hint="check who owns it, or set OUTLAST_LOCAL_CLOUD to another folder") from problem
    except OSError as problem:
        why = f"the local cloud: {problem.strerror or problem}: {problem.filename or ''}".rstrip(": ")
        raise CloudUnreachable(why, hint="is there room on the disk?") from problem
