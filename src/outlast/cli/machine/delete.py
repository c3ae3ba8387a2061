"""`outlast machine create`, `list`, `show`, `snapshot`, `delete`: how machines come, what they are, how they go."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from outlast.cli.machine.find import (
    cloud_option,
    find,
    hands_of,
    name_argument,
)
from outlast.cli.shared.command import STILL_BILLED, command
from outlast.cli.shared.options import workspace_option
from outlast.cli.shared.progress import confirm
from outlast.cli.shared.terminal import note
from outlast.errors import BadRequest, NotFound, UsageError

if TYPE_CHECKING:
    from outlast.clouds.cloud import InteractiveCloud, Machine
    from outlast.records.machines import MachineRecords


@command(progress="deleting the machine", interrupt=STILL_BILLED)
@name_argument
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@cloud_option
@workspace_option
def delete(name: str, workspace_url: str, cloud_name: str, yes: bool) -> int:
    """Delete the machine NAME with its disk. It asks first."""
    from outlast.machines import lifecycle

    machine_records = hands_of(workspace_url)
    try:
        cloud, machine = find(machine_records, name, cloud_name=cloud_name)
    except NotFound:
        if name not in machine_records.names():
            raise
        _forget(machine_records, name)
        return 0
    if not yes and not _agreed(cloud, machine_records, machine):
        note("nothing was deleted")
        return 0
    lifecycle.delete(cloud, machine_records, name)
    click.echo(f"deleted {name}")
    return 0


def _forget(machine_records: MachineRecords, name: str) -> None:
    from outlast.machines import lifecycle

    record = machine_records.find_readable(name)
    view = machine_records.view(name) if record is not None else None
    if record is not None and record.phase == "creating" and view is not None and not view.abandoned:
        raise BadRequest(f"{record.by} is making {name} just now", hint="wait, or stop it there")
    lifecycle.forget(machine_records, name)
    click.echo(f"forgot {name}, which was gone already")


def _agreed(cloud: InteractiveCloud, machine_records: MachineRecords, machine: Machine) -> bool:
    from outlast.machines.status import machine_status

    whose = machine_status(cloud, machine_records, machine).whose
    question = f"delete {machine.name} ({machine.status}, {whose}) on {cloud.name}, and its disk with it?"
    try:
        return confirm(question)
    except click.Abort as problem:
        raise UsageError("nobody answered; nothing was deleted", hint="say --yes to delete without asking") from problem
