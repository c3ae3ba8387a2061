"""Start, stop, resize, snapshot and delete a machine, and update its record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from outlast.clouds.cloud import LABEL_MACHINE, Image, InteractiveCloud, Machine
from outlast.errors import BadRequest, CloudError, Damaged, NotFound, UsageError
from outlast.machines import sshfiles
from outlast.machines.billing import close
from outlast.records.machines import MachineRecord, MachineRecords, cluster_of


def start(cloud: InteractiveCloud, machine_records: MachineRecords, name: str) -> None:
    """Boot a stopped machine. Raises NotFound, NoCapacity."""
    _want(cloud, machine_records, name, "running")
    cloud.start(name)


def stop(cloud: InteractiveCloud, machine_records: MachineRecords, name: str) -> None:
    """Stop the machine, keep its disk. The record first: `outlast machine keep` must not start it again."""
    _want(cloud, machine_records, name, "stopped")
    cloud.stop(name)


def delete(cloud: InteractiveCloud, machine_records: MachineRecords, name: str) -> None:
    """Delete machine, disk, record and ssh block, in this order, so that the reaper finds an interrupted deletion."""
    machine_record = machine_records.find_readable(name)
    if machine_record is not None and machine_record.cloud == cloud.name:
        machine_records.write(msgspec.structs.replace(machine_record, phase="deleting"))
        close(cloud, machine_records, machine_record)
    cloud.delete(name)
    forget(machine_records, name)


def forget(machine_records: MachineRecords, name: str) -> None:
    """Remove all that is stored about a deleted machine."""
    machine_records.bucket.delete(packages_key(name))
    machine_records.bucket.delete(f"keep/{name}.json")
    machine_records.remove(name)
    sshfiles.forget_machine(name)


def drop(machine_records: MachineRecords, machine_record: MachineRecord) -> None:
    """Do the same unless the name now belongs to another machine."""
    found = machine_records.find_readable(machine_record.name)
    if found is not None and found.id == machine_record.id:
        forget(machine_records, machine_record.name)


def left_over(machine_records: MachineRecords, clouds: Mapping[str, InteractiveCloud]) -> list[MachineRecord]:
    """Return records without a machine whose owner has died. Skips unreachable clouds and machines of clusters."""
    found = []
    for machine_record in machine_records.all():
        try:
            view = machine_records.view(machine_record.name)
            clustered = (
                cluster_of(machine_record.purpose)
                and machine_records.clusters.find(cluster_of(machine_record.purpose)) is not None
            )
            if view is None or not view.abandoned or clustered or machine_record.cloud not in clouds:
                continue
            if clouds[machine_record.cloud].machine(machine_record.name).labels.get(LABEL_MACHINE) != machine_record.id:
                found.append(machine_record)  # another machine has the name now
        except NotFound:
            found.append(machine_record)
        except (CloudError, Damaged):
            continue
    return found


def packages_key(name: str) -> str:
    return f"packages/{name}.json"


def resize(
    cloud: InteractiveCloud,
    machine_records: MachineRecords,
    name: str,
    *,
    type: str = "",
    disk_gb: float = 0.0,
    restart: bool = False,
) -> None:
    """Change the type, enlarge the disk. Stops a running machine for a new type only with `restart`."""
    if not type and not disk_gb:
        raise UsageError("nothing to change", hint="use --type, --disk, or both")
    machine = cloud.machine(name)
    running = machine.status not in ("stopped", "broken")
    if type and type != machine.type and running and not restart:
        raise BadRequest(
            f"{name} is {machine.status}; the type can be changed only while it is stopped",
            hint="use --restart to stop it, change it and start it again",
        )
    if disk_gb and disk_gb < machine.disk_gb:
        raise BadRequest(f"the disk of {name} has {machine.disk_gb:g} GB, and disks cannot shrink")
    before = cloud.machine(name)
    if type and type != machine.type:
        _change_type(cloud, name, type, running=running)
    if disk_gb and disk_gb != machine.disk_gb:
        cloud.resize(name, disk_gb=disk_gb)
    machine_record = record_of(machine_records, cloud, machine)
    if machine_record is not None:
        # The cloud computes the cost of all past time at the new price.
        extra_usd = machine_record.extra_usd + before.cost_usd - cloud.machine(name).cost_usd
        machine_records.write(msgspec.structs.replace(machine_record, extra_usd=extra_usd))


def _change_type(cloud: InteractiveCloud, name: str, type: str, *, running: bool) -> None:
    if running:
        cloud.stop(name)
    try:
        cloud.resize(name, type=type)
    finally:
        # Start it again even if the cloud refused the type.
        if running:
            cloud.start(name)


class ImageDraft(msgspec.Struct, frozen=True, kw_only=True):
    """Name and description of an image to create."""

    name: str
    family: str = ""
    labels: dict[str, str] = {}
    note: str = ""


def snapshot(cloud: InteractiveCloud, name: str, *, draft: ImageDraft, may_stop: bool = False) -> Image:
    """Make an image of the disk. Stops and restarts a running machine only with `may_stop`."""
    machine = cloud.machine(name)
    running = machine.status in ("pending", "running", "stopping")
    if running and not may_stop:
        raise BadRequest(
            f"{name} is {machine.status}; a snapshot of a disk in use may be inconsistent",
            hint="use --stop to stop it, take the snapshot and start it again",
        )
    if running:
        cloud.stop(name)
    try:
        return cloud.snapshot(name, draft.name, family=draft.family, labels=draft.labels, note=draft.note)
    finally:
        if running:
            cloud.start(name)


def _want(
    cloud: InteractiveCloud, machine_records: MachineRecords, name: str, wanted: Literal["running", "stopped"]
) -> None:
    """Store the wanted state in the record. Raises NotFound."""
    machine_record = record_of(machine_records, cloud, must_have(cloud, name))
    if machine_record is not None and machine_record.wanted != wanted:
        machine_records.write(msgspec.structs.replace(machine_record, wanted=wanted))


def record_of(machine_records: MachineRecords, cloud: InteractiveCloud, machine: Machine) -> MachineRecord | None:
    """Return the record of exactly this machine, not of another one with its name."""
    machine_record = machine_records.find(machine.name)
    if (
        machine_record is None
        or machine_record.cloud != cloud.name
        or machine.labels.get(LABEL_MACHINE, machine_record.id) != machine_record.id
    ):
        return None
    return machine_record


def must_have(cloud: InteractiveCloud, name: str) -> Machine:
    try:
        return cloud.machine(name)
    except NotFound as problem:
        raise NotFound(f"{cloud.name} has no machine `{name}`", hint="see `outlast machine list`") from problem
