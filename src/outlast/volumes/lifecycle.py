"""Create, resize and delete volumes. The record is written before each effect."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from typing import Protocol

import msgspec

from outlast.clouds.cloud import LABEL_WORKSPACE, Cloud, InteractiveCloud
from outlast.clouds.resources import Volume, Volumes
from outlast.errors import Missing, NoSuchRun, OutlastError, StoreTaken, UsageError
from outlast.records.resources import ResourceRecord, ResourceRecords
from outlast.store.codec import decoded


class HasVolumes(InteractiveCloud, Protocol):
    """A cloud that has volumes."""

    @property
    def volumes(self) -> Volumes: ...


def volumes_of(clouds: Mapping[str, Cloud], name: str) -> HasVolumes:
    found = clouds.get(name)
    if found is None or not hasattr(found, "volumes"):
        raise UsageError(f"cloud `{name}` has no volumes", hint="choose another --cloud")
    return found  # type: ignore[return-value]


def create(
    cloud: HasVolumes,
    records: ResourceRecords,
    name: str,
    *,
    size_gb: float,
    who: str,
    zone: str = "",
    report: Callable[[str], None] = lambda _: None,
) -> tuple[ResourceRecord, Volume]:
    """Create the volume; roll back on failure. Raises StoreTaken."""
    record = records.claim(name, cloud=cloud.name, who=who, zone=zone, size_gb=size_gb)
    with ExitStack() as undo:
        # Roll back on any failure or interrupt: an unreported volume must not be billed.
        undo.callback(_roll_back, cloud, records, record)
        report(f"creating volume {name} on {cloud.name}: {size_gb:g} GB")
        labels = {LABEL_WORKSPACE: records.workspace.id}
        volume = cloud.volumes.create(record.there, size_gb=size_gb, zone=zone, labels=labels)
        record = records.write(_with_volume(record, volume))
        undo.pop_all()
    return record, volume


def _with_volume(record: ResourceRecord, volume: Volume) -> ResourceRecord:
    return msgspec.structs.replace(
        record,
        phase="ready",
        zone=volume.zone,
        zones=volume.zones,
        source=volume.source,
        mount_kind=volume.kind,
        options=volume.options,
        size_gb=volume.size_gb,
        usd_per_month=volume.usd_per_month,
    )


def _roll_back(cloud: HasVolumes, records: ResourceRecords, record: ResourceRecord) -> None:
    try:
        if not records.is_owner(record):
            return
        cloud.volumes.delete(record.there)
    except OutlastError:
        return  # the record stays, so that `list` shows it and `delete` tries again
    records.remove(record)


def resize(cloud: HasVolumes, records: ResourceRecords, record: ResourceRecord, size_gb: float) -> ResourceRecord:
    """Resize the volume; its price changes from now on."""
    now = records.workspace.clock()
    volume = cloud.volumes.resize(record.there, size_gb)
    before = msgspec.structs.replace(record, extra_usd=record.cost_usd(now), priced_at=now)
    return records.write(_with_volume(before, volume))


def delete(cloud: HasVolumes, records: ResourceRecords, record: ResourceRecord) -> None:
    """Delete the volume, then its record; may be repeated. Raises StoreTaken while a run uses it."""
    if runs := users(records, record.name):
        shown = ", ".join(runs[:5])
        raise StoreTaken(
            f"volume `{record.name}` is mounted by {shown}; nothing was deleted",
            hint="wait until it ends, or end it: `outlast cancel RUN`, `outlast cluster down NAME`",
        )
    record = records.write(msgspec.structs.replace(record, phase="deleting"))
    cloud.volumes.delete(record.there)
    records.remove(record)


def users(records: ResourceRecords, name: str) -> list[str]:
    """Return the live runs and clusters that use the volume, waiting runs included."""
    workspace = records.workspace
    found = []
    for run in sorted({*workspace.heartbeats(), *workspace.wakeups()}):
        try:
            spec = workspace.request(run).spec
        except NoSuchRun:
            continue
        wanted = {place.partition("/")[0] for place in spec.volumes.values()}
        if name in wanted and workspace.story(run).refresh().alive:
            found.append(run)
    return found + _clusters(records, name)


class _Spec(msgspec.Struct, frozen=True):
    volumes: dict[str, str] = {}


class _Cluster(msgspec.Struct, frozen=True):
    """The part of a cluster's record (`cluster/record.py`, a higher layer) that concerns volumes."""

    name: str
    spec: _Spec


def _clusters(records: ResourceRecords, name: str) -> list[str]:
    """Return the clusters that use the volume."""
    bucket = records.bucket
    keys = [f"clusters/{child}" for child in bucket.children("clusters/") if child.endswith(".json")]
    found = []
    for key in keys:
        with suppress(Missing):
            cluster = decoded(bucket.get(key), _Cluster, key)
            if name in {place.partition("/")[0] for place in cluster.spec.volumes.values()}:
                found.append(f"the cluster {cluster.name}")
    return found
