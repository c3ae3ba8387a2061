"""JSON records in files, for the small APIs: Secret Manager, Cloud SQL, Filestore, service accounts and projects."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from outlast.clouds.local.files import read_json, write_json

Doc = dict[str, Any]


class JsonRecords:
    """Records by name below a folder. A name is a relative path without `.json`; callers check its parts."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        # Held by callers, too, for changes that consist of several steps.
        self.lock = threading.RLock()

    def get(self, name: str) -> Doc | None:
        return read_json(self._path(name))

    def names(self, below: str = "") -> list[str]:
        """Return the names of the records in a subfolder, with the subfolder, in order."""
        files = [file for file in self.listdir(below) if file.endswith(".json")]
        return [os.path.join(below, file.removesuffix(".json")) for file in files]

    def all(self, below: str = "") -> list[Doc]:
        """Return the records in a subfolder, without damaged ones."""
        return [record for name in self.names(below) if (record := self.get(name))]

    def listdir(self, below: str) -> list[str]:
        folder = os.path.join(self.folder, below)
        return sorted(os.listdir(folder)) if os.path.isdir(folder) else []

    def put(self, name: str, record: Doc) -> None:
        path = self._path(name)
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        write_json(path, record, permissions=0o600)

    def delete(self, name: str) -> None:
        os.unlink(self._path(name))

    @contextmanager
    def changing(self, name: str, find: Callable[[], Doc]) -> Iterator[Doc]:
        """Yield the record that `find` returns for changes, and store it unless an error occurs."""
        with self.lock:
            record = find()
            yield record
            self.put(name, record)

    def _path(self, name: str) -> str:
        return f"{self.folder}/{name}.json"
