"""`outlast machine delete`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from outlast.cli.machine.find import (
    cloud_option,
    find,
    machine_records_in,
    name_argument,
)
from outlast.cli.shared.command import STILL_BILLED, command
from outlast.cli.shared.options import workspace_option
from outlast.cli.shared.progress import confirm
from outlast.cli.shared.terminal import note
from outlast.errors import BadRequest, NotFound, UsageError

if TYPE_CHECKING:
    from outlast.app.types import InteractiveCloud, Machine, MachineRecords


@command(progress="deleting the machine", interrupt=STILL_BILLED)
@name_argument
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
@cloud_option
@workspace_option
def delete(name: str, workspace_url: str, cloud_name: str, yes: bool) -> int:
    """Delete the machine NAME with its disk. It asks first."""
    from outlast.machines import lifecycle

    machine_records = machine_records_in(workspace_url)
    try:
        cloud, machine = find(machine_records, name, cloud_name=cloud_name)
    except NotFound:
        if name not in machine_records.names():
            raise
        _remove_record(machine_records, name)
        return 0
    if not yes and not _agreed(cloud, machine_records, machine):
        note("nothing was deleted")
        return 0
    lifecycle.delete(cloud, machine_records, name)
    click.echo(f"deleted {name}")
    return 0


def _remove_record(machine_records: MachineRecords, name: str) -> None:
    from outlast.machines import lifecycle

    record = machine_records.find_readable(name)
    view = machine_records.view(name) if record is not None else None
    if record is not None and record.phase == "creating" and view is not None and not view.abandoned:
        raise BadRequest(f"{record.by} is creating {name}", hint="wait, or stop that process")
    lifecycle.forget(machine_records, name)
    click.echo(f"removed the record of {name}; the machine was already deleted")


def _agreed(cloud: InteractiveCloud, machine_records: MachineRecords, machine: Machine) -> bool:
    from outlast.machines.status import machine_status

    whose = machine_status(cloud, machine_records, machine).whose
    question = f"delete {machine.name} ({machine.status}, {whose}) on {cloud.name}, with its disk?"
    try:
        return confirm(question)
    except click.Abort as problem:
        raise UsageError("no answer; nothing was deleted", hint="use --yes to delete without confirmation") from problem
