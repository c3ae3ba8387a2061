"""The supervisor machine of a workspace: create, find and delete it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack

import msgspec

from outlast.clouds.cloud import LABEL_MACHINE, Boot, InteractiveCloud, Machine, Range, Requirements
from outlast.clouds.traits import known_clouds, traits_of
from outlast.errors import NotFound, UsageError
from outlast.machines import lifecycle
from outlast.machines.create import MachineRequest, Report, create_machine, finish, roll_back
from outlast.records.machines import MachineRecord, MachineRecords, supervisor_name
from outlast.spec.quantity import describe_s
from outlast.store.traits import scheme_of

PURPOSE = "supervisor"
_DISK_GB = 10.0
_PAUSE_S, _PATIENCE_S = 1.0, 600.0


def check(cloud: str, workspace_url: str) -> None:
    """Raise UsageError if machines of that cloud cannot supervise this workspace."""
    traits = traits_of(cloud)
    if not traits.supervisor_type:
        able = sorted(name for name in known_clouds() if traits_of(name).supervisor_type)
        hint = "run `outlast supervise` on this computer, or use one of these clouds: " + ", ".join(able)
        raise UsageError(f"no machine of `{cloud}` can supervise while this computer sleeps", hint=hint)
    if scheme_of(workspace_url) != traits.store_scheme:
        hint = f"use a workspace in {traits.store_scheme}://…: `--workspace`, or OUTLAST_WORKSPACE"
        raise UsageError(f"machines of {cloud} cannot see the workspace {workspace_url}", hint=hint)


def find(machine_records: MachineRecords) -> MachineRecord | None:
    """Return the record of the supervisor machine."""
    return machine_records.find(supervisor_name(machine_records.workspace))


def ensure(
    cloud: InteractiveCloud,
    machine_records: MachineRecords,
    *,
    boot: Callable[[], Boot],
    until_idle: bool,
    type: str = "",
    zones: tuple[str, ...] = (),
    report: Report = lambda _: None,
) -> tuple[Machine, bool]:
    """Return the supervisor machine, and whether it is booting. An error leaves nothing behind."""
    existing = _find_ready(cloud, machine_records, report)
    if existing is not None:
        machine_record, machine = existing
        if machine_record.until_idle != until_idle:
            machine_records.write(msgspec.structs.replace(machine_record, until_idle=until_idle))
        if machine.status in ("stopped", "stopping"):
            report(f"{machine.name} is {machine.status}; starting it")
            cloud.start(machine.name)
        return cloud.machine(machine.name), machine.status in ("stopped", "stopping")
    smallest = cloud.traits.supervisor_type
    needs = Requirements(type=type or smallest, spot=False, disk_gb=_DISK_GB, zones=zones, cpus=Range())
    request = MachineRequest(
        name=supervisor_name(machine_records.workspace),
        needs=needs,
        boot=boot(),
        purpose=PURPOSE,
        until_idle=until_idle,
    )
    report(f"creating {request.name} on {cloud.name}")
    machine, machine_record = create_machine(cloud, machine_records, request, report=report)
    with ExitStack() as undo:
        undo.callback(roll_back, cloud, machine_records, machine_record, report=report)
        finish(machine_records, machine_record)
        undo.pop_all()
    return machine, True


def _find_ready(
    cloud: InteractiveCloud, machine_records: MachineRecords, report: Report
) -> tuple[MachineRecord, Machine] | None:
    """Return a ready supervisor machine, waiting for one that is being created; delete the rest of a broken one."""
    name, reported, give_up_at = supervisor_name(machine_records.workspace), "", time.monotonic() + _PATIENCE_S
    while (machine_record := machine_records.find(name)) is not None:
        if machine_record.cloud != cloud.name:
            maker = machine_record.who or "an unknown user"
            why = f"a machine on {machine_record.cloud} already supervises this workspace: {name}, created by {maker}"
            raise UsageError(why, hint="delete it first: `outlast supervise --off`")
        machine = _machine(cloud, machine_record)
        view = machine_records.view(name)
        if view is not None and view.phase == "ready" and machine is not None and machine.status != "broken":
            return machine_record, machine
        if view is None or view.abandoned or view.phase == "ready":
            report(f"{name} is unusable; creating another one")
            off(cloud, machine_records)
        elif time.monotonic() > give_up_at:
            raise UsageError(
                f"{machine_record.by} has been {machine_record.phase} {name} for {describe_s(_PATIENCE_S)}",
                hint=f"check `outlast machine show {name}`, then try again",
            )
        else:
            if reported != machine_record.phase:
                report(f"{machine_record.who or 'another user'} is {machine_record.phase} {name}; waiting")
            reported = machine_record.phase
            time.sleep(_PAUSE_S)
    return None


def _machine(cloud: InteractiveCloud, machine_record: MachineRecord) -> Machine | None:
    try:
        machine = cloud.machine(machine_record.name)
    except NotFound:
        return None
    return machine if machine.labels.get(LABEL_MACHINE) == machine_record.id else None


def off(cloud: InteractiveCloud, machine_records: MachineRecords) -> None:
    """Delete the machine, its disk and its record. May be repeated."""
    machine_record = find(machine_records)
    if machine_record is None:
        return
    if _machine(cloud, machine_record) is None:
        lifecycle.forget(machine_records, machine_record.name)
    else:
        lifecycle.delete(cloud, machine_records, machine_record.name)
