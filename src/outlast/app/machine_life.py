"""What users do with machines that exist: list, start, stop, resize, copy and delete them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from outlast.app.machines import find_machine, interactive_cloud, interactive_clouds
from outlast.errors import BadRequest
from outlast.workspace import Workspace

if TYPE_CHECKING:
    from outlast.clouds.cloud import Image, InteractiveCloud, Machine
    from outlast.machines.status import MachineStatus
    from outlast.records.machines import MachineRecords

Report = Callable[[str], None]


def list_machines(records: MachineRecords, *, cloud_name: str = "") -> tuple[list[MachineStatus], dict[str, str]]:
    """Return all machines in every status, and why clouds could not be reached.

    Removes the ssh settings of machines that a cloud that answered no longer has.
    """
    from outlast.machines.status import collect_status

    queried = {cloud_name: interactive_cloud(cloud_name)} if cloud_name else interactive_clouds(records.workspace)
    entries, unreachable = collect_status(queried, records)
    _forget_deleted(queried, unreachable, entries)
    return entries, dict(unreachable)


def _forget_deleted(
    queried: Mapping[str, InteractiveCloud], unreachable: Mapping[str, str], entries: list[MachineStatus]
) -> None:
    from outlast.machines import sshfiles

    there = {entry.name for entry in entries if entry.machine is not None}
    for cloud in queried:
        if cloud not in unreachable:
            for name in sshfiles.machines_written(cloud):
                if name not in there:
                    sshfiles.forget_machine(name)


def status_of(cloud: InteractiveCloud, records: MachineRecords, machine: Machine) -> MachineStatus:
    """Return a machine with its owner, its cost and its drift."""
    from outlast.machines.status import machine_status

    return machine_status(cloud, records, machine)


def packages_changed(cloud: InteractiveCloud, records: MachineRecords, name: str) -> list[str]:
    """Log in, and return the packages that changed since the creation. Raises BadRequest if those are unknown."""
    from outlast.machines import packages
    from outlast.machines.ssh import Link

    before = packages.stored(records, name)
    if before is None:
        raise BadRequest(f"the packages of {name} at its creation were not recorded")
    return list(packages.changes(before, packages.installed(Link(cloud, name))))


def start_machine(records: MachineRecords, name: str, *, cloud_name: str = "", report: Report) -> Callable[[], object]:
    """Start a stopped machine; return the function that waits until it accepts a login."""
    from outlast.machines import lifecycle
    from outlast.machines.ssh import Link

    cloud, machine = find_machine(records, name, cloud_name=cloud_name)
    if machine.status == "broken":
        # For example after this computer was switched off: the disk still exists.
        report(f"{name} is broken: {machine.why}; stopping it first")
        lifecycle.stop(cloud, records, name)
    lifecycle.start(cloud, records, name)
    return Link(cloud, name).refresh


def stop_machine(records: MachineRecords, name: str, *, cloud_name: str = "") -> float:
    """Stop a machine; return what its disk costs per hour."""
    from outlast.machines import lifecycle

    cloud, _ = find_machine(records, name, cloud_name=cloud_name)
    lifecycle.stop(cloud, records, name)
    return cloud.machine(name).disk_usd_per_hour


def resize_machine(
    records: MachineRecords, name: str, *, cloud_name: str = "", type: str = "", disk_gb: float = 0.0, restart: bool
) -> Machine:
    """Change the type of a machine, or grow its disk; return it as it is now."""
    from outlast.machines import lifecycle

    cloud, _ = find_machine(records, name, cloud_name=cloud_name)
    lifecycle.resize(cloud, records, name, type=type, disk_gb=disk_gb, restart=restart)
    return cloud.machine(name)


def snapshot_machine(
    workspace: Workspace,
    records: MachineRecords,
    name: str,
    *,
    family: str,
    image: str = "",
    keep: tuple[str, ...] = (),
    may_stop: bool = False,
    cloud_name: str = "",
    report: Report,
) -> Image:
    """Create an image from the disk of a machine, as the newest of a family."""
    from outlast.images.snapshot import SnapshotOptions
    from outlast.images.snapshot import snapshot_machine as snapshot
    from outlast.machines.create import check_name
    from outlast.user import current_user

    image = image or f"{family}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}"
    for text in (family, image):
        check_name(text)
    cloud, _ = find_machine(records, name, cloud_name=cloud_name)
    options = SnapshotOptions(image=image, family=family, keep=keep, may_stop=may_stop)
    return snapshot(workspace, cloud, name, options=options, who=current_user(), report=report)


def delete_machine(cloud: InteractiveCloud, records: MachineRecords, name: str) -> None:
    """Delete a machine with its disk, and its record."""
    from outlast.machines import lifecycle

    lifecycle.delete(cloud, records, name)


def forget_machine(records: MachineRecords, name: str) -> None:
    """Remove the record of a machine that no longer exists. Raises BadRequest while it is being created."""
    from outlast.machines import lifecycle

    record = records.find_readable(name)
    view = records.view(name) if record is not None else None
    if record is not None and record.phase == "creating" and view is not None and not view.abandoned:
        raise BadRequest(f"{record.by} is creating {name}", hint="wait, or stop that process")
    lifecycle.forget(records, name)
