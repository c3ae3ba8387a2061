"""`outlast machine ssh`, `cp`, `start`, `stop`, `resize`, `serial`, `set`, `ssh-config`: work with a machine."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from outlast.cli.machine.find import cloud_option, find, hands_of, name_argument
from outlast.cli.shared.command import READ_ONLY, UNCERTAIN, command
from outlast.cli.shared.options import workspace_option
from outlast.cli.shared.terminal import note
from outlast.errors import NotFound

if TYPE_CHECKING:
    pass


@command(
    progress="waiting for the machine",
    interrupt="stopped waiting; the machine may still start, and cost: `outlast machine list`",
)
@name_argument
@cloud_option
@workspace_option
def start(name: str, workspace_url: str, cloud_name: str) -> int:
    """Boot the stopped machine NAME from its disk, and wait until one can log in."""
    from outlast.machines import lifecycle
    from outlast.machines.ssh import Link

    machine_records = hands_of(workspace_url)
    cloud, machine = find(machine_records, name, cloud_name=cloud_name)
    if machine.status == "broken":
        # As after this computer was switched off: the machine is dead, its disk is not.
        note(f"{name} is broken: {machine.why}; switching it off first")
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
    """Power the machine NAME off. Its disk is kept, and billed."""
    from outlast.cli.shared.terminal import money
    from outlast.machines import lifecycle

    machine_records = hands_of(workspace_url)
    cloud, _ = find(machine_records, name, cloud_name=cloud_name)
    lifecycle.stop(cloud, machine_records, name)
    click.echo(f"stopped {name}")
    if (rest := cloud.machine(name).disk_usd_per_hour) > 0:
        note(f"its disk goes on billing {money(rest)} an hour until `outlast machine delete {name}`")
    return 0


@command(interrupt=READ_ONLY)
@name_argument
@click.option("--follow", "-f", is_flag=True, help="Go on printing until the machine is gone or you leave.")
@cloud_option
@workspace_option
def serial(name: str, workspace_url: str, cloud_name: str, follow: bool) -> int:
    """Print what the machine NAME has printed since it was made: its boots, its startup script, its end."""
    cloud, _ = find(hands_of(workspace_url), name, cloud_name=cloud_name)
    seen = cloud.serial(name)
    click.echo(seen, nl=False)
    while follow:
        time.sleep(0.5)
        try:
            now = cloud.serial(name)
        except NotFound:
            note(f"{name} was deleted")
            return 0
        # Clouds keep the last part of it only: print what follows the end that was printed.
        click.echo(_news(seen, now), nl=False)
        seen = now
    return 0


def _news(before: str, now: str) -> str:
    if now.startswith(before):
        return now[len(before) :]
    tail = before[-1000:]
    place = now.rfind(tail)
    return now[place + len(tail) :] if place >= 0 else now
