"""What the endpoint remembers: resources as JSON, in memory and on disk. One process at a time; knows no meaning."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from urllib.parse import quote

from outlast.clouds.local.files import read_json, write_json
from outlast_gcp_emulator.compute.refs import Doc, Ref


class ResourceStore:
    """Every change is on disk before the call returns, so that a server that ends loses nothing."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._docs: dict[Ref, Doc] = {}
        # Also for whoever must read and write without somebody between.
        self.lock = threading.RLock()
        self._load()

    def get(self, ref: Ref) -> Doc | None:
        """The resource itself, not a copy: change it under the lock, and `put` it."""
        return self._docs.get(ref)

    def put(self, ref: Ref, doc: Doc, *, keep: bool = True) -> Doc:
        with self.lock:
            self._docs[ref] = doc
            if keep:
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
        """The resources of a kind, by name; of a project and a scope, or of all."""
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
                kept = read_json(f"{folder}/{name}") if name.endswith(".json") else None
                if kept and isinstance(kept.get("doc"), dict):
                    self._docs[Ref(*kept["ref"])] = kept["doc"]
