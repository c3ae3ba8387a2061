"""`outlast machine start`, `stop` and `serial`."""

from __future__ import annotations

import time

import click

from outlast.cli.machine.find import cloud_option, find, machine_records_in, name_argument
from outlast.cli.shared.command import READ_ONLY, UNCERTAIN, command
from outlast.cli.shared.options import workspace_option
from outlast.cli.shared.terminal import note
from outlast.errors import NotFound


@command(
    progress="waiting for the machine",
    interrupt="stopped waiting; the machine may still start and be billed: `outlast machine list`",
)
@name_argument
@cloud_option
@workspace_option
def start(name: str, workspace_url: str, cloud_name: str) -> int:
    """Start the stopped machine NAME from its disk, and wait until it accepts a login."""
    from outlast.machines import lifecycle
    from outlast.machines.ssh import Link

    machine_records = machine_records_in(workspace_url)
    cloud, machine = find(machine_records, name, cloud_name=cloud_name)
    if machine.status == "broken":
        # For example after this computer was switched off: the disk still exists.
        note(f"{name} is broken: {machine.why}; stopping it first")
        lifecycle.stop(cloud, machine_records, name)
    lifecycle.start(cloud, machine_records, name)
    click.echo(f"started {name}")
    Link(cloud, name).refresh()
    return 0


@command(progress="stopping the machine", interrupt=f"{UNCERTAIN}; until it is stopped it is billed")
@name_argument
@cloud_option
@workspace_option
def stop(name: str, workspace_url: str, cloud_name: str) -> int:
    """Stop the machine NAME. Its disk is kept, and billed."""
    from outlast.cli.shared.terminal import money
    from outlast.machines import lifecycle

    machine_records = machine_records_in(workspace_url)
    cloud, _ = find(machine_records, name, cloud_name=cloud_name)
    lifecycle.stop(cloud, machine_records, name)
    click.echo(f"stopped {name}")
    if (rest := cloud.machine(name).disk_usd_per_hour) > 0:
        note(f"its disk costs {money(rest)} an hour until `outlast machine delete {name}`")
    return 0


@command(interrupt=READ_ONLY)
@name_argument
@click.option("--follow", "-f", is_flag=True, help="Follow until the machine is deleted.")
@cloud_option
@workspace_option
def serial(name: str, workspace_url: str, cloud_name: str, follow: bool) -> int:
    """Print the serial console of the machine NAME: boots, startup script, shutdown."""
    cloud, _ = find(machine_records_in(workspace_url), name, cloud_name=cloud_name)
    seen = cloud.serial(name)
    click.echo(seen, nl=False)
    while follow:
        time.sleep(0.5)
        try:
            now = cloud.serial(name)
        except NotFound:
            note(f"{name} was deleted")
            return 0
        # Clouds keep only the last part: print the text after the part that was already printed.
        click.echo(_new_text(seen, now), nl=False)
        seen = now
    return 0


def _new_text(before: str, now: str) -> str:
    if now.startswith(before):
        return now[len(before) :]
    tail = before[-1000:]
    place = now.rfind(tail)
    return now[place + len(tail) :] if place >= 0 else now
