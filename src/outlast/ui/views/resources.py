"""Volumes and databases as table rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from outlast.app.resource_status import database_status, volume_status
from outlast.clouds.cloud import Cloud
from outlast.clouds.registry import clouds
from outlast.errors import Damaged
from outlast.records.resources import ResourceRecord, ResourceRecords
from outlast.volumes import lifecycle
from outlast.workspace import Workspace

_TONES = {"ready": "good", "full": "warn", "creating": "busy", "deleting": "busy", "stopped": "off", "unknown": "warn"}


class ResourceTableRow(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    kind: str
    cloud: str
    zone: str
    state: str
    tone: str
    why: str
    who: str
    made_at: float
    size_gb: float
    # None if only a machine that mounts the volume knows it.
    used_gb: float | None = None
    usd_per_month: float = 0.0
    # The mount source of a volume, or the address of a database. Never a password.
    where: str = ""
    engine: str = ""
    version: str = ""
    users: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()

    @property
    def filled(self) -> float | None:
        """The used fraction, from 0 to 1."""
        return None if self.used_gb is None or not self.size_gb else min(1.0, self.used_gb / self.size_gb)


class ResourceTables(msgspec.Struct, frozen=True, kw_only=True):
    volumes: tuple[ResourceTableRow, ...]
    databases: tuple[ResourceTableRow, ...]

    @property
    def usd_per_month(self) -> float:
        return sum(one.usd_per_month for one in (*self.volumes, *self.databases))


class ResourceReader:
    """The reader of the records and their clouds. A cloud that does not answer is reported in its rows."""

    def __init__(self, workspace: Workspace, known: Callable[[Workspace], Mapping[str, Cloud]] = clouds) -> None:
        self.workspace = workspace
        self.known = known

    def __call__(self) -> ResourceTables:
        there = self.known(self.workspace)
        volumes, databases = ResourceRecords(self.workspace, "volume"), ResourceRecords(self.workspace, "database")
        return ResourceTables(
            volumes=(*(_volume(there, volumes, one) for one in volumes.all()), *_damaged(volumes)),
            databases=(*(_database(there, databases, one) for one in databases.all()), *_damaged(databases)),
        )


def _damaged(records: ResourceRecords) -> list[ResourceTableRow]:
    """Return rows of unreadable records; their resources may be billed."""
    return [
        _row(ResourceRecord(kind=records.kind, name=name, id="", cloud="", there=""), "damaged", why)
        for name, why in records.damaged.items()
    ]


def _users(records: ResourceRecords, name: str) -> tuple[str, ...]:
    try:
        return tuple(lifecycle.users(records, name))
    except Damaged as problem:
        return (f"unknown: {problem.message}",)


def _volume(there: Mapping[str, Cloud], records: ResourceRecords, record: ResourceRecord) -> ResourceTableRow:
    found, state, why = volume_status(there, records, record)
    return _row(
        record,
        state,
        why,
        zone=", ".join(record.zones) or "every zone",
        used_gb=found.used_gb if found else None,
        where=record.source,
        users=_users(records, record.name),
    )


def _database(there: Mapping[str, Cloud], records: ResourceRecords, record: ResourceRecord) -> ResourceTableRow:
    found, state, why = database_status(there, records, record)
    return _row(
        record,
        state,
        why,
        zone=record.zone,
        where=f"{found.host}:{found.port}" if found else "",
        engine=record.engine,
        version=found.version if found else "",
        allowed=tuple(f"{a} ({who})" if who and who != a else a for a, who in record.allowed.items()),
    )


def _row(record: ResourceRecord, state: str, why: str, **more: object) -> ResourceTableRow:
    row = ResourceTableRow(
        name=record.name,
        kind=record.kind,
        cloud=record.cloud,
        zone=record.zone,
        state=state,
        tone=_TONES.get(state, "bad"),
        why=why,
        who=record.who,
        made_at=record.asked_at,
        size_gb=record.size_gb,
        usd_per_month=record.usd_per_month,
    )
    return msgspec.structs.replace(row, **more)
