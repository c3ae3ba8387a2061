"""`outlast machine delete`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from outlast.app.machine_life import delete_machine, forget_machine, status_of
from outlast.app.machines import find_machine
from outlast.cli.machine.find import (
    cloud_option,
    machine_records_in,
    names_argument,
)
from outlast.cli.shared.command import STILL_BILLED, command
from outlast.cli.shared.options import workspace_option
from outlast.cli.shared.progress import confirm
from outlast.cli.shared.terminal import note
from outlast.errors import NotFound, UsageError

if TYPE_CHECKING:
    from outlast.app.types import InteractiveCloud, Machine, MachineRecords


@command(progress="deleting the machine", interrupt=STILL_BILLED)
@names_argument
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
@cloud_option
@workspace_option
def delete(names: tuple[str, ...], workspace_url: str, cloud_name: str, yes: bool) -> int:
    """Delete the machines NAME with their disks. It asks first, for each."""
    machine_records = machine_records_in(workspace_url)
    # A misspelled name is an error before anything is deleted.
    found = [(name, _find(machine_records, name, cloud_name)) for name in dict.fromkeys(names)]
    for name, place in found:
        if place is None:
            forget_machine(machine_records, name)
            click.echo(f"removed the record of {name}; the machine was already deleted")
        elif yes or _agreed(place[0], machine_records, place[1]):
            delete_machine(place[0], machine_records, name)
            click.echo(f"deleted {name}")
        else:
            note("nothing was deleted" if len(found) == 1 else f"{name} was not deleted")
    return 0


def _find(machine_records: MachineRecords, name: str, cloud_name: str) -> tuple[InteractiveCloud, Machine] | None:
    """Return the machine and its cloud; None if only its record is left. Raises NotFound."""
    try:
        return find_machine(machine_records, name, cloud_name=cloud_name)
    except NotFound:
        if name not in machine_records.names():
            raise
        return None


def _agreed(cloud: InteractiveCloud, machine_records: MachineRecords, machine: Machine) -> bool:
    whose = status_of(cloud, machine_records, machine).whose
    question = f"delete {machine.name} ({machine.status}, {whose}) on {cloud.name}, with its disk?"
    try:
        return confirm(question)
    except click.Abort as problem:
        raise UsageError("no answer; nothing was deleted", hint="use --yes to delete without confirmation") from problem
