"""The resources of the Compute API as JSON, in memory and on disk. For one process at a time."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from urllib.parse import quote

from outlast.clouds.local.files import read_json, write_json
from outlast_gcp_emulator.compute.refs import Doc, Ref


class ResourceStore:
    """Every change is on disk before the call returns, so a server that is killed loses nothing."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._docs: dict[Ref, Doc] = {}
        # Callers hold it, too, to read and write a resource atomically.
        self.lock = threading.RLock()
        self._load()

    def get(self, ref: Ref) -> Doc | None:
        """Return the resource itself, not a copy: change it under the lock, then `put` it."""
        return self._docs.get(ref)

    def put(self, ref: Ref, doc: Doc) -> Doc:
        with self.lock:
            self._docs[ref] = doc
            path = self._path(ref)
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            write_json(path, {"ref": list(ref), "doc": doc})
        return doc

    def drop(self, ref: Ref) -> None:
        with self.lock:
            self._docs.pop(ref, None)
            with suppress(FileNotFoundError):
                os.unlink(self._path(ref))

    def each(self, collection: str, project: str = "", scope: str = "") -> Iterator[tuple[Ref, Doc]]:
        """Yield the resources of a collection by name. An empty project or scope means all."""
        with self.lock:
            found = [
                (ref, doc)
                for ref, doc in self._docs.items()
                if ref.collection == collection and project in ("", ref.project) and scope in ("", ref.scope)
            ]
        yield from sorted(found, key=lambda item: (item[0].name, item[0]))

    def _path(self, ref: Ref) -> str:
        place = quote(f"{ref.project}/{ref.scope}", safe="")
        return f"{self._folder}/{ref.collection}/{place}/{quote(ref.name, safe='')}.json"

    def _load(self) -> None:
        for folder, _, files in os.walk(self._folder):
            for name in files:
                record = read_json(f"{folder}/{name}") if name.endswith(".json") else None
                if record and isinstance(record.get("doc"), dict):
                    self._docs[Ref(*record["ref"])] = record["doc"]
