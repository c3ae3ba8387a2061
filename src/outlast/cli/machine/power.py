"""`outlast machine start`, `stop` and `serial`."""

from __future__ import annotations

import time

import click

from outlast.app.machine_life import start_machine, stop_machine
from outlast.app.machines import find_machine
from outlast.cli.machine.find import cloud_option, machine_records_in, name_argument
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
    wait_for_login = start_machine(machine_records_in(workspace_url), name, cloud_name=cloud_name, report=note)
    click.echo(f"started {name}")
    wait_for_login()
    return 0


@command(progress="stopping the machine", interrupt=f"{UNCERTAIN}; until it is stopped it is billed")
@name_argument
@cloud_option
@workspace_option
def stop(name: str, workspace_url: str, cloud_name: str) -> int:
    """Stop the machine NAME. Its disk is kept, and billed."""
    from outlast.cli.shared.terminal import money

    rest = stop_machine(machine_records_in(workspace_url), name, cloud_name=cloud_name)
    click.echo(f"stopped {name}")
    if rest > 0:
        note(f"its disk costs {money(rest)} an hour until `outlast machine delete {name}`")
    return 0


@command(interrupt=READ_ONLY)
@name_argument
@click.option("--follow", "-f", is_flag=True, help="Follow until the machine is deleted.")
@cloud_option
@workspace_option
def serial(name: str, workspace_url: str, cloud_name: str, follow: bool) -> int:
    """Print the serial console of the machine NAME: boots, startup script, shutdown."""
    cloud, _ = find_machine(machine_records_in(workspace_url), name, cloud_name=cloud_name)
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
