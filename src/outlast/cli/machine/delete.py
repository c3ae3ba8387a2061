"""`outlast machine delete`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from outlast.app.machine_life import delete_machine, forget_machine, status_of
from outlast.app.machines import find_machine
from outlast.cli.machine.find import (
    cloud_option,
    machine_records_in,
    name_argument,
)
from outlast.cli.shared.command import STILL_BILLED, command
from outlast.cli.shared.options import workspace_option
from outlast.cli.shared.progress import confirm
from outlast.cli.shared.terminal import note
from outlast.errors import NotFound, UsageError

if TYPE_CHECKING:
    from outlast.app.types import InteractiveCloud, Machine, MachineRecords


@command(progress="deleting the machine", interrupt=STILL_BILLED)
@name_argument
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
@cloud_option
@workspace_option
def delete(name: str, workspace_url: str, cloud_name: str, yes: bool) -> int:
    """Delete the machine NAME with its disk. It asks first."""
    machine_records = machine_records_in(workspace_url)
    try:
        cloud, machine = find_machine(machine_records, name, cloud_name=cloud_name)
    except NotFound:
        if name not in machine_records.names():
            raise
        forget_machine(machine_records, name)
        click.echo(f"removed the record of {name}; the machine was already deleted")
        return 0
    if not yes and not _agreed(cloud, machine_records, machine):
        note("nothing was deleted")
        return 0
    delete_machine(cloud, machine_records, name)
    click.echo(f"deleted {name}")
    return 0


def _agreed(cloud: InteractiveCloud, machine_records: MachineRecords, machine: Machine) -> bool:
    whose = status_of(cloud, machine_records, machine).whose
    question = f"delete {machine.name} ({machine.status}, {whose}) on {cloud.name}, with its disk?"
    try:
        return confirm(question)
    except click.Abort as problem:
        raise UsageError("no answer; nothing was deleted", hint="use --yes to delete without confirmation") from problem
