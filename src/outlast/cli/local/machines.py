"""`outlast local machines`, `serial` and `delete`: machines of the local cloud, in every workspace."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from outlast.app.local_cloud import local_cloud, owner_of
from outlast.cli.shared.command import READ_ONLY, UNCERTAIN, command
from outlast.cli.shared.options import json_option
from outlast.cli.shared.progress import confirm
from outlast.cli.shared.terminal import money, table
from outlast.errors import OutlastError, UsageError
from outlast.spec.quantity import describe_s

if TYPE_CHECKING:
    from outlast.app.types import Machine


def _complete_machine(_ctx: click.Context, _param: click.Parameter, beginning: str) -> list[str]:
    try:
        with local_cloud() as cloud:
            return [machine.name for machine in cloud.machines() if machine.name.startswith(beginning)]
    except OutlastError:
        return []


@command(interrupt=READ_ONLY, json="list[LocalMachine]")
@json_option
def machines(as_json: bool) -> int:
    """List all machines of the local cloud, of every workspace and in every status."""
    with local_cloud() as cloud:
        found = cloud.machines()
    now = time.time()
    if as_json:
        import json

        click.echo(json.dumps([_machine(machine, now) for machine in found], indent=2))
    elif not found:
        click.echo("no machines")
    else:
        header = ["NAME", "STATUS", "ZONE", "TYPE", "KIND", "AGE", "$/H", "COST", "RUN", "ATTEMPT", "WHY"]
        click.echo(table([_machine_row(machine, now) for machine in found], header=header))
    return 0


def _machine(machine: Machine, now: float) -> dict[str, Any]:
    import msgspec

    data = msgspec.to_builtins(machine)
    assert isinstance(data, dict)
    return {
        **data,
        **owner_of(machine),
        "age_s": max(0.0, now - machine.created_at),
        "cost_usd": machine.cost_usd,
    }


def _machine_row(machine: Machine, now: float) -> list[str]:
    return [
        machine.name,
        machine.status,
        machine.zone,
        machine.type,
        "spot" if machine.spot else "on demand",
        describe_s(max(0.0, now - machine.created_at)),
        money(machine.price_usd_per_hour),
        money(machine.cost_usd),
        owner_of(machine)["run"] or "-",
        owner_of(machine)["attempt"] or "-",
        machine.why,
    ]


@command(interrupt=READ_ONLY)
@click.argument("name", shell_complete=_complete_machine)
def serial(name: str) -> int:
    """Print the serial console of the machine NAME."""
    with local_cloud() as cloud:
        click.echo(cloud.serial(name), nl=False)
    return 0


@command(progress="deleting the machine", interrupt=UNCERTAIN)
@click.argument("name", shell_complete=_complete_machine)
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
def delete(name: str, yes: bool) -> int:
    """Delete the machine NAME with its disk. A live run gets another one."""
    with local_cloud() as cloud:
        machine = cloud.machine(name)
        if not yes and not _agreed(machine):
            click.echo("nothing was deleted", err=True)
            return 0
        cloud.delete(name)
    click.echo(f"deleted {name}")
    return 0


def _agreed(machine: Machine) -> bool:
    run = owner_of(machine)["run"]
    whose = f" of {run}" if run else ""
    try:
        return confirm(f"delete {machine.name}, a machine{whose} that is {machine.status}?")
    except click.Abort as problem:
        raise UsageError("no answer; nothing was deleted", hint="use --yes to delete without confirmation") from problem
