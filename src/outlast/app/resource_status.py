"""Volumes and databases as they stand: as their clouds describe them, and what is to be said of that."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

from outlast.clouds.traits import DEFAULT_CLOUD
from outlast.errors import Damaged, NotFound, OutlastError

if TYPE_CHECKING:
    from outlast.clouds.cloud import Cloud
    from outlast.clouds.resources import Database, Volume
    from outlast.records.resources import ResourceRecord, ResourceRecords

T = TypeVar("T")


def volume_standing(
    clouds: Mapping[str, Cloud], records: ResourceRecords, record: ResourceRecord
) -> tuple[Volume | None, str, str]:
    """The volume as its cloud describes it, its state, and what is to be said of that."""
    from outlast.volumes import lifecycle

    def told(found: Volume) -> tuple[str, str]:
        full = found.used_gb is not None and found.used_gb >= found.size_gb
        return "full" if full else found.state, found.why

    def find() -> Volume:
        return lifecycle.volumes_of(clouds, record.cloud).volumes.find(record.there)

    return standing(records, record, find, told)


def database_standing(
    clouds: Mapping[str, Cloud], records: ResourceRecords, record: ResourceRecord
) -> tuple[Database | None, str, str]:
    """The database as its cloud describes it, its state, and what is to be said of that."""
    from outlast.databases import lifecycle

    def told(found: Database) -> tuple[str, str]:
        return found.state, found.why or ("it is started when it is needed" if found.state == "stopped" else "")

    def find() -> Database:
        return lifecycle.databases_of(clouds, record.cloud).databases.find(record.there)

    return standing(records, record, find, told)


def standing(
    records: ResourceRecords,
    record: ResourceRecord,
    find: Callable[[], T],
    told: Callable[[T], tuple[str, str]],
) -> tuple[T | None, str, str]:
    delete = f"`outlast {records.command} delete {record.name}`"
    half = f"whoever was at it is gone; {delete}" if records.abandoned(record) else f"by {record.by}"
    try:
        found = find()
    except NotFound:
        if record.phase == "ready":
            return None, "gone", f"somebody deleted it elsewhere; {delete} forgets it"
        return None, record.phase, half
    except OutlastError as problem:
        return None, "unknown", problem.message
    return (found, *told(found)) if record.phase == "ready" else (found, record.phase, half)


def to_be_deleted(clouds: Mapping[str, Cloud], records: ResourceRecords, name: str) -> tuple[ResourceRecord, str]:
    """The record of that name; where it cannot be read, one that is made from what the clouds have, and what is to be
    said of that. Raises NoSuchStore, and Damaged when the clouds do not tell which one is meant."""
    from outlast.clouds.cloud import LABEL_WORKSPACE
    from outlast.records.resources import HOURS_PER_MONTH, ResourceRecord

    try:
        return records.get(name), ""
    except Damaged as problem:
        damaged = problem
    beginning, labels = records.name_there(name, ""), {LABEL_WORKSPACE: records.workspace.id}
    stores = [getattr(cloud, f"{records.kind}s", None) for cloud in clouds.values()]
    every: list[Volume | Database] = [one for store in stores if store is not None for one in store.list_all(labels)]
    there = [one for one in every if one.name.startswith(beginning)]
    if len(there) > 1:
        raise damaged
    if not there:
        told = f"{damaged.message}; no cloud of this workspace has such a {records.kind}"
        return ResourceRecord(kind=records.kind, name=name, id="", cloud=DEFAULT_CLOUD, there=f"{beginning}lost"), told
    [one] = there
    hourly = getattr(one, "usd_per_hour", 0.0) * HOURS_PER_MONTH
    record = ResourceRecord(
        kind=records.kind,
        name=name,
        id=one.name.removeprefix(beginning),
        cloud=one.cloud,
        there=one.name,
        phase="ready",
        asked_at=one.created_at,
        size_gb=one.size_gb,
        usd_per_month=getattr(one, "usd_per_month", 0.0) or hourly,
    )
    return record, f"{damaged.message}; on {one.cloud} it is `{one.name}`"
