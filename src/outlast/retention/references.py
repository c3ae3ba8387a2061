"""Which shared objects are referred to: read from every record that may name one.

A name is the hash of its object, so any hash in a record counts, whatever its field is called. A new kind of record
needs no change here as long as it lies below one of these prefixes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from outlast.errors import Missing
from outlast.workspace import Workspace

# Records that change: they are read again each time.
_CHANGING = ("clusters/", "packages/", "images/", "machines/")
# A hash, and the number of a copy (`store/shared.py`).
_NAME = re.compile(rb"[0-9a-f]{64}(?:\.\d+)?")


def names_in(body: bytes) -> frozenset[str]:
    """Return all names of shared objects in a record."""
    return frozenset(name.decode() for name in _NAME.findall(body))


class References:
    """The names of all shared objects in use. Requests of runs and sweeps never change, so each is read once."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.bucket = workspace.bucket
        self._read: dict[str, frozenset[str]] = {}

    def names(self) -> set[str]:
        """Return all names. A record that exists when this begins is included. Raises StoreUnreachable."""
        requests = [f"runs/{run}/spec.json" for run in self.bucket.children("runs/")]
        requests += [f"sweeps/{sweep}/sweep.json" for sweep in self.bucket.children("sweeps/")]
        # A folder without a request may get one later, so its absence is not remembered.
        new = [key for key in requests if key not in self._read]
        self._read |= {key: names for key, names in self._names_in(new).items() if names is not None}
        changing = [entry.key for prefix in _CHANGING for entry in self.bucket.list(prefix)]
        found = [names for names in self._names_in(changing).values() if names is not None]
        return {
            name for names in (*(self._read[key] for key in requests if key in self._read), *found) for name in names
        }

    def _names_in(self, keys: Sequence[str]) -> dict[str, frozenset[str] | None]:
        def read(key: str) -> frozenset[str] | None:
            try:
                return names_in(self.bucket.get(key))
            except Missing:
                return None

        return dict(zip(keys, self.workspace.each(read, keys), strict=True))
