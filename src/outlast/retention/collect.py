"""Collection of shared objects that nothing refers to: bundles of code, diffs, and the locks and archives of packages.

`store/shared.py` explains why a concurrent submission loses nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from outlast.retention.references import References
from outlast.store.bucket import Entry
from outlast.store.parallel import gathered
from outlast.store.shared import MARKS, marks_of
from outlast.workspace import Workspace

# Younger objects stay: a submission that is about to refer to one would have to be repeated.
MIN_AGE_S = 3600.0
# The mark of a collector that died. It only makes submissions store another copy.
_STALE_MARK_S = 7 * 86400.0
# The age of calls of an Executor that has closed, and of one whose process is silent: it may be a sleeping laptop.
_CLOSED_S, _SILENT_S = MIN_AGE_S, 7 * 86400.0
# Where shared objects are.
SHARED = ("code/", "blobs/", "environments/")
# Keys in one call.
BATCH = 1000
CLOCK = "retention/clock"


class SharedObject(msgspec.Struct, frozen=True, kw_only=True):
    """A shared object, with the objects that are of no use without it."""

    name: str
    # The object that references name, and which marks announce.
    key: str
    entries: tuple[Entry, ...]

    @property
    def bytes(self) -> int:
        return sum(entry.bytes for entry in self.entries)

    @property
    def modified_at(self) -> float:
        return max(entry.modified_at for entry in self.entries)


class Collector:
    """One collection. Several may run at once."""

    def __init__(self, workspace: Workspace, *, min_age_s: float = MIN_AGE_S) -> None:
        self.workspace = workspace
        self.bucket = workspace.bucket
        self.min_age_s = min_age_s
        self.references = References(workspace)

    def unreferenced(self) -> list[SharedObject]:
        """Return the shared objects that nothing refers to now, except young ones by the store's clock."""
        shared, now = gathered(self.workspace.each, self._shared, lambda: self.bucket.now(CLOCK))
        old = [one for one in shared if now - one.modified_at >= self.min_age_s]
        if not old:
            return []
        names = self.references.names()
        return [one for one in old if one.name not in names]

    def collect(self) -> list[SharedObject]:
        """Delete unreferenced shared objects; return them. May be interrupted at any point, and repeated."""
        pools, _, candidates = gathered(
            self.workspace.each, self._unneeded_pools, self._remove_stale_marks, self.unreferenced
        )
        self._delete([entry.key for one in pools for entry in one.entries])
        return [*pools, *self._collect(candidates)]

    def _collect(self, candidates: Sequence[SharedObject]) -> list[SharedObject]:
        if not candidates:
            return []
        mark = self.workspace.ids()
        marks = [marks_of(one.key) + mark for one in candidates]
        # Announce first, then read the references: a submission that does not see the mark is seen here.
        self.workspace.each(lambda key: self.bucket.create(key, b""), marks)
        names = self.references.names()
        unused = [one for one in candidates if one.name not in names]
        self._delete([entry.key for one in unused for entry in one.entries])
        # Last: as long as a deletion may be under way, its mark must exist.
        self._delete(marks)
        return unused

    def _shared(self) -> list[SharedObject]:
        code, blobs, packages = self.workspace.each(lambda prefix: list(self.bucket.list(prefix)), SHARED)
        found = [SharedObject(name=_name_of(entry.key), key=entry.key, entries=(entry,)) for entry in (*code, *blobs)]
        environments: dict[str, list[Entry]] = {}
        for entry in packages:
            environments.setdefault(entry.key.split("/")[1], []).append(entry)
        return found + [
            SharedObject(name=digest, key=f"environments/{digest}/lock", entries=tuple(entries))
            for digest, entries in environments.items()
        ]

    def _unneeded_pools(self) -> list[SharedObject]:
        """Return the pools of Executors that are over. Their workers end without them."""
        pools: dict[str, dict[str, Entry]] = {}
        for entry in self.bucket.list("pools/"):
            _, pool, name = entry.key.split("/", 2)
            pools.setdefault(pool, {})[name] = entry
        now = self.bucket.now(CLOCK) if pools else 0.0

        def is_over(entries: dict[str, Entry]) -> bool:
            silent_s = now - max(entry.modified_at for entry in entries.values())
            return silent_s >= (_CLOSED_S if "closed" in entries else _SILENT_S)

        return [
            SharedObject(name=pool, key=f"pools/{pool}/pool.json", entries=tuple(entries.values()))
            for pool, entries in pools.items()
            if is_over(entries)
        ]

    def _remove_stale_marks(self) -> None:
        marks = list(self.bucket.list(MARKS))
        if marks:
            now = self.bucket.now(CLOCK)
            self._delete([mark.key for mark in marks if now - mark.modified_at > _STALE_MARK_S])

    def _delete(self, keys: Sequence[str]) -> None:
        batches = [keys[begin : begin + BATCH] for begin in range(0, len(keys), BATCH)]
        self.workspace.each(self.bucket.delete_many, batches)


def _name_of(key: str) -> str:
    return key.rpartition("/")[2].removesuffix(".tar.zst")
