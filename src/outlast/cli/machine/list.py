"""`outlast machine create`, `list`, `show`, `snapshot`, `delete`: how machines come, what they are, how they go."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from outlast.cli.machine.find import (
    cloud_option,
    hands_of,
    interactive_clouds,
    workshop,
)
from outlast.cli.shared.command import READ_ONLY, command
from outlast.cli.shared.options import json_option, workspace_option
from outlast.cli.shared.terminal import money, note, table, tell_damaged
from outlast.errors import CloudError
from outlast.spec.quantity import describe_s

if TYPE_CHECKING:
    from outlast.machines.status import MachineStatus


# What there is


@command("list", progress="querying the clouds", interrupt=READ_ONLY, json="list[MachineRow]")
@click.option("--all", "-a", "everything", is_flag=True, help="Also machines of other workspaces and of nobody.")
@cloud_option
@json_option
@workspace_option
def list_command(workspace_url: str, cloud_name: str, everything: bool, as_json: bool) -> int:
    """List machines of all clouds in every status, with what they cost; those that bill for nothing are marked."""
    from outlast.machines.status import collect_status

    machine_records = hands_of(workspace_url)
    asked = {cloud_name: workshop(cloud_name)} if cloud_name else interactive_clouds(machine_records.workspace)
    sights, unreachable = collect_status(asked, machine_records)
    shown = [sight for sight in sights if everything or sight.ours]
    for cloud, why in unreachable.items():
        note(f"{cloud} cannot be seen: {why}")
    _forget_deleted(asked, unreachable, sights)
    if as_json:
        import json

        click.echo(json.dumps([_as_data(sight) for sight in shown], indent=2))
    elif not shown:
        click.echo("no machines")
    else:
        header = ["NAME", "STATUS", "CLOUD", "ZONE", "TYPE", "KIND", "AGE", "$/H", "COST", "WHOSE", "REMARKS"]
        click.echo(table([_row(sight) for sight in shown], header=header))
    return tell_damaged(machine_records.damaged) or (CloudError.exit_code if unreachable else 0)


def _forget_deleted(asked: Any, unreachable: Any, sights: list[MachineStatus]) -> None:
    """Take the ssh blocks of machines out that are no more, where the cloud has told."""
    from outlast.machines import sshfiles

    there = {sight.name for sight in sights if sight.machine is not None}
    for cloud in asked:
        if cloud not in unreachable:
            for name in sshfiles.machines_written(cloud):
                if name not in there:
                    sshfiles.forget_machine(name)


def remarks(sight: MachineStatus) -> list[str]:
    said = []
    if sight.bills_for_nothing:
        said.append("stopped, and its disk bills")
    if sight.abandoned:
        said.append(f"the process that was {sight.status} it has died; `outlast reap` deletes it")
    elif sight.machine is None:
        said.append(f"`outlast machine delete {sight.name}` forgets it")
    elif sight.machine.why not in ("", sight.status):
        said.append(sight.machine.why)
    if sight.drift:
        said.append(f"drifted: {'; '.join(sight.drift)}")
    return said


def _row(sight: MachineStatus) -> list[str]:
    machine = sight.machine
    age = describe_s(max(0.0, (machine.seen_at or time.time()) - machine.created_at)) if machine else "-"
    return [
        sight.name,
        sight.status,
        sight.cloud,
        machine.zone if machine else "-",
        machine.type if machine else "-",
        ("spot" if machine.spot else "on demand") if machine else "-",
        age,
        money(sight.usd_per_hour),
        money(sight.cost_usd),
        sight.whose,
        "; ".join(remarks(sight)),
    ]


def _as_data(sight: MachineStatus) -> dict[str, Any]:
    import msgspec

    machine = msgspec.to_builtins(sight.machine) if sight.machine else {}
    assert isinstance(machine, dict)
    return {
        **machine,
        "name": sight.name,
        "cloud": sight.cloud,
        "status": sight.status,
        "whose": sight.whose,
        "by_hand": sight.machine_record is not None,
        "usd_per_hour": sight.usd_per_hour,
        "cost_usd": sight.cost_usd,
        "bills_for_nothing": sight.bills_for_nothing,
        "drift": list(sight.drift),
    }
