"""The life cycle that all records share: phase, owner process, and take-over of a record whose owner has died.

A record is written before its resource is created and removed after the resource is deleted. A process that is killed
in between therefore leaves nothing that is unknown and billed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, Literal, TypeVar

import msgspec

from outlast.errors import Damaged, Missing
from outlast.store.codec import read_all, read_object
from outlast.store.lease import Holder, process_identity
from outlast.workspace import Workspace

# In `creating` and `deleting` a process works on the resource and rewrites the record as a sign of life.
Phase = Literal["creating", "ready", "deleting"]
PHASE_TEXT: dict[Phase, str] = {
    "creating": "is still being created",
    "ready": "is ready",
    "deleting": "is being deleted",
}
# An owner that has not rewritten its record for this long counts as dead.
OWNER_TIMEOUT_S = 900.0


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of every record."""

    name: str
    # Distinguishes this resource from an earlier or later one of the same name.
    id: str
    cloud: str
    phase: Phase = "creating"
    # `host:pid.start` of the process that creates or deletes the resource.
    by: str = ""
    # The user who requested it.
    who: str = ""
    asked_at: float = 0.0


R = TypeVar("R", bound=Record)


class Records(Generic[R]):
    """The records of one kind in one workspace, at `PREFIX/NAME.json`."""

    def __init__(self, workspace: Workspace, prefix: str, kind: type[R]) -> None:
        self.workspace = workspace
        self.bucket = workspace.bucket
        self.prefix = prefix
        self._type = kind
        # Name → why the record could not be read. Its resource may exist and may be billed.
        self.damaged: dict[str, str] = {}

    def create(self, record: R) -> R:
        """Write the intent, with this process as the owner. Raises Exists."""
        fresh = _owned(record)
        self.bucket.create(self.key(record.name), msgspec.json.encode(fresh))
        return fresh

    def write(self, record: R) -> R:
        """Replace a record, with this process as the owner; also the owner's sign of life."""
        fresh = _owned(record)
        self.bucket.put(self.key(record.name), msgspec.json.encode(fresh), durable=True)
        return fresh

    def find(self, name: str) -> R | None:
        """Return the record of that name. Raises Damaged."""
        return read_object(self.bucket, self.key(name), self._type)

    def find_readable(self, name: str) -> R | None:
        """Return the record, or None if it is damaged: a resource can be deleted without its record."""
        try:
            return self.find(name)
        except Damaged:
            return None

    def names(self) -> list[str]:
        """Return the names of all records, damaged ones included."""
        return [c.removesuffix(".json") for c in self.bucket.children(f"{self.prefix}/") if c.endswith(".json")]

    def all(self) -> Sequence[R]:
        """Return every record that can be read; the others are in `damaged`."""
        return read_all(self.names(), self.find, self.damaged)

    def is_owner(self, record: R) -> bool:
        """Return whether the stored record is this one, and no other process has taken it over."""
        found = self.find(record.name)
        return found is not None and (found.id, found.by) == (record.id, record.by)

    def abandoned(self, record: R) -> bool:
        """Return whether the process that creates or deletes the resource has died."""
        return record.phase != "ready" and self.owner_silent_s(record) > OWNER_TIMEOUT_S

    def owner_silent_s(self, record: Record) -> float:
        """Return the seconds since the owner last wrote the record; infinite if it has died or the record is gone."""
        if Holder(who=record.by, epoch=0).plainly_dead():
            return float("inf")
        try:
            written_at = self.bucket.head(self.key(record.name)).modified_at
        except Missing:
            return float("inf")
        return max(0.0, self.now() - written_at)

    def now(self) -> float:
        """Return the time by the store's clock: the one that it gives to a write of ours."""
        return self.bucket.now("clock")

    def key(self, name: str) -> str:
        return f"{self.prefix}/{name}.json"


def _owned(record: R) -> R:
    return msgspec.structs.replace(record, by=process_identity())
