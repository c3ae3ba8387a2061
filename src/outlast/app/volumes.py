"""Volumes: creating, changing, filling and mounting them, by their names."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from outlast.app.clouds import clouds
from outlast.app.project import find_workspace
from outlast.app.resource_status import ready_record, resource_records, volume_status
from outlast.clouds.traits import DEFAULT_CLOUD
from outlast.errors import Damaged, NoSuchStore, StoreTaken, UsageError
from outlast.workspace import Workspace

if TYPE_CHECKING:
    from outlast.clouds.resources import Volume
    from outlast.records.resources import ResourceRecord, ResourceRecords
    from outlast.volumes.lifecycle import HasVolumes
    from outlast.volumes.local_mount import Mounted

Report = Callable[[str], None]


class CopiedFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The files of a copy; `same`: those that existed already, or None if that is unknown."""

    files: int
    bytes: int
    same: int | None = None


def volume_price(workspace: Workspace, size_gb: float, cloud: str) -> float:
    """Return the price of a new volume in USD per month. Raises UsageError for a cloud without volumes."""
    from outlast.volumes import lifecycle

    return lifecycle.volumes_of(clouds(workspace), cloud or DEFAULT_CLOUD).volumes.usd_per_month(size_gb)


def create_volume(
    workspace: Workspace, name: str, *, size_gb: float, cloud: str = "", zone: str = "", report: Report
) -> ResourceRecord:
    """Create a volume. Raises StoreTaken for a name that exists, before anything is billed."""
    from outlast.user import current_user
    from outlast.volumes import lifecycle

    there = lifecycle.volumes_of(clouds(workspace), cloud or DEFAULT_CLOUD)
    record, _ = lifecycle.create(
        there,
        resource_records(workspace, "volume"),
        name,
        size_gb=size_gb,
        who=current_user(),
        zone=zone,
        report=report,
    )
    return record


def resize_volume(workspace: Workspace, name: str, size_gb: float) -> ResourceRecord:
    from outlast.volumes import lifecycle

    records = resource_records(workspace, "volume")
    record = records.get(name)
    return lifecycle.resize(lifecycle.volumes_of(clouds(workspace), record.cloud), records, record, size_gb)


def require_unmounted(workspace: Workspace, name: str) -> None:
    """Raise StoreTaken if the volume is mounted on this computer."""
    from outlast.volumes import local_mount

    if here := local_mount.mounts_of(workspace, name):
        why = f"volume `{name}` is mounted at {here[0].path}; nothing was deleted"
        raise StoreTaken(why, hint=f"outlast volume unmount {here[0].path}")


def delete_volume(records: ResourceRecords, record: ResourceRecord) -> None:
    """Delete a volume with its files. Raises StoreTaken while runs use it."""
    from outlast.volumes import lifecycle

    lifecycle.delete(lifecycle.volumes_of(clouds(records.workspace), record.cloud), records, record)


class VolumeDetails(msgspec.Struct, frozen=True, kw_only=True):
    """A volume: its record, what its cloud reports, the runs that use it, its mounts on this computer."""

    record: ResourceRecord
    found: Volume | None
    state: str
    why: str
    runs: list[str]
    mounts: list[Mounted]


def volume_details(workspace: Workspace, name: str) -> VolumeDetails:
    from outlast.volumes import lifecycle, local_mount

    records = resource_records(workspace, "volume")
    record = records.get(name)
    found, state, why = volume_status(clouds(workspace), records, record)
    try:
        runs = lifecycle.users(records, name)
    except Damaged as problem:
        runs = [f"unknown: {problem.message}"]
    mounts = [one for one in local_mount.all_mounts() if one.volume == name and one.workspace == workspace.url]
    return VolumeDetails(record=record, found=found, state=state, why=why, runs=list(runs), mounts=mounts)


def _ready(workspace: Workspace, name: str) -> tuple[HasVolumes, ResourceRecord]:
    from outlast.volumes.lifecycle import volumes_of

    record = ready_record(resource_records(workspace, "volume"), name)
    return volumes_of(clouds(workspace), record.cloud), record


def _inside(record: ResourceRecord, folder: str) -> str:
    """Return a normal path in the volume. Raises UsageError for a path that leaves it."""
    plain = os.path.normpath(f"/{folder}").lstrip("/")
    if ".." in folder.split("/"):
        raise UsageError(f"`{folder}` leaves the volume `{record.name}`", hint="write it without `..`")
    return plain


def populate_volume(workspace: Workspace, name: str, source: str, *, folder: str = "", report: Report) -> CopiedFiles:
    """Copy a file or the files of a folder into a volume. Repeating it resumes the copy."""
    from outlast.volumes import gateway, populate, upload

    cloud, record = _ready(workspace, name)
    path = os.path.expanduser(source)
    if record.mount_kind == "folder":
        volume = cloud.volumes.find(record.there)
        free = float(shutil.disk_usage(record.source).free)
        room = min(volume.size_gb * 1e9 - (volume.used_gb or 0.0) * 1e9, free)
        target = os.path.join(record.source, _inside(record, folder))
        done = populate.populate(path, target, room_bytes=room, report=report)
        return CopiedFiles(files=done.files, bytes=done.bytes, same=done.same)
    if not os.path.exists(path):
        raise UsageError(f"SRC: no such file or folder: `{source}`", hint="name a file or a folder of this computer")
    with gateway.gateway(cloud, workspace, record, report=report) as (opened, link):
        target = os.path.join(opened.path, _inside(record, folder))
        link.run(["mkdir", "-p", target])
        files, size = upload.upload(link, path, target, report=report)
    return CopiedFiles(files=files, bytes=size)


def list_files(workspace: Workspace, name: str, folder: str = "", *, report: Report) -> list[tuple[str, int, bool]]:
    """Return the entries of a folder of a volume: name, bytes, and whether it is a folder."""
    from outlast.volumes import gateway

    cloud, record = _ready(workspace, name)
    inner = _inside(record, folder)
    if record.mount_kind != "folder":
        with gateway.gateway(cloud, workspace, record, report=report) as (opened, link):
            return list(gateway.listing(link, os.path.join(opened.path, inner)))
    path = os.path.join(record.source, inner)
    if not os.path.isdir(path):
        raise NoSuchStore(f"volume `{name}` has no folder `{inner}`", hint=f"outlast volume ls {name}")
    with os.scandir(path) as found:
        rows = [(e.name, e.stat(follow_symlinks=False).st_size, e.is_dir(follow_symlinks=False)) for e in found]
    return sorted(rows)


def mount_volume(workspace: Workspace, name: str, path: str, *, by_machine: bool = False, report: Report) -> Mounted:
    """Mount a volume at a folder of this computer; without a name the only volume of the workspace."""
    from outlast.volumes import local_mount

    cloud, record = _ready(workspace, name or _only_volume(workspace))
    return local_mount.mount(cloud, workspace, record, path, by_machine=by_machine, report=report)


def _only_volume(workspace: Workspace) -> str:
    names = [one.name for one in resource_records(workspace, "volume").all()]
    if len(names) != 1:
        known = ", ".join(names) or "none; `outlast volume create`"
        raise UsageError(f"NAME is required: this workspace has {len(names)} volumes", hint=f"volumes: {known}")
    return names[0]


def unmount_volume(path: str) -> Mounted:
    """Unmount the volume at a folder, and delete the machine that was created for it."""
    from outlast.volumes import local_mount
    from outlast.volumes.lifecycle import volumes_of

    return local_mount.unmount(lambda name: volumes_of(clouds(), name), find_workspace, path)
