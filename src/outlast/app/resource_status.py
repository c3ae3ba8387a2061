"""The status of volumes and databases: their record compared with their cloud."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

from outlast.clouds.traits import DEFAULT_CLOUD
from outlast.errors import BadRequest, Damaged, NotFound, OutlastError

if TYPE_CHECKING:
    from outlast.clouds.cloud import Cloud
    from outlast.clouds.resources import Database, Volume
    from outlast.records.resources import Kind, ResourceRecord, ResourceRecords
    from outlast.workspace import Workspace

T = TypeVar("T")


def resource_records(workspace: Workspace, kind: Kind) -> ResourceRecords:
    from outlast.records.resources import ResourceRecords

    return ResourceRecords(workspace, kind)


def ready_record(records: ResourceRecords, name: str) -> ResourceRecord:
    """Return the record of a resource that is ready. Raises BadRequest while it is created or deleted."""
    from outlast.records.record import PHASE_TEXT

    record = records.get(name)
    if record.phase != "ready":
        hint = f"`outlast {records.command} show {name}`"
        raise BadRequest(f"{records.kind} `{name}` {PHASE_TEXT[record.phase]}", hint=hint)
    return record


def volume_status(
    clouds: Mapping[str, Cloud], records: ResourceRecords, record: ResourceRecord
) -> tuple[Volume | None, str, str]:
    """Return the volume on its cloud, its state and a remark."""
    from outlast.volumes import lifecycle

    def state_of(found: Volume) -> tuple[str, str]:
        full = found.used_gb is not None and found.used_gb >= found.size_gb
        return "full" if full else found.state, found.why

    def find() -> Volume:
        return lifecycle.volumes_of(clouds, record.cloud).volumes.find(record.there)

    return resource_status(records, record, find, state_of)


def database_status(
    clouds: Mapping[str, Cloud], records: ResourceRecords, record: ResourceRecord
) -> tuple[Database | None, str, str]:
    """Return the database on its cloud, its state and a remark."""
    from outlast.databases import lifecycle

    def state_of(found: Database) -> tuple[str, str]:
        return found.state, found.why or ("starts on demand" if found.state == "stopped" else "")

    def find() -> Database:
        return lifecycle.databases_of(clouds, record.cloud).databases.find(record.there)

    return resource_status(records, record, find, state_of)


def resource_status(
    records: ResourceRecords,
    record: ResourceRecord,
    find: Callable[[], T],
    state_of: Callable[[T], tuple[str, str]],
) -> tuple[T | None, str, str]:
    delete = f"`outlast {records.command} delete {record.name}`"
    remark = f"the process that worked on it has died; {delete}" if records.abandoned(record) else f"by {record.by}"
    try:
        found = find()
    except NotFound:
        if record.phase == "ready":
            return None, "gone", f"deleted outside outlast; {delete} removes its record"
        return None, record.phase, remark
    except OutlastError as problem:
        return None, "unknown", problem.message
    return (found, *state_of(found)) if record.phase == "ready" else (found, record.phase, remark)


def record_to_delete(clouds: Mapping[str, Cloud], records: ResourceRecords, name: str) -> tuple[ResourceRecord, str]:
    """Return the record and a warning. A damaged record is rebuilt from the resource on its cloud.

    Raises NoSuchStore, and Damaged if several resources match.
    """
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
        warning = f"{damaged.message}; no cloud of this workspace has such a {records.kind}"
        return ResourceRecord(
            kind=records.kind, name=name, id="", cloud=DEFAULT_CLOUD, there=f"{beginning}lost"
        ), warning
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
