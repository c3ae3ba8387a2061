"""`outlast machine list`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from outlast.app.machine_life import list_machines
from outlast.cli.machine.find import cloud_option, machine_records_in
from outlast.cli.shared.command import READ_ONLY, command
from outlast.cli.shared.options import json_option, workspace_option
from outlast.cli.shared.terminal import money, note, report_damaged, table
from outlast.errors import CloudError
from outlast.spec.quantity import describe_s

if TYPE_CHECKING:
    from outlast.app.types import MachineStatus


@command("list", progress="querying the clouds", interrupt=READ_ONLY, json="list[MachineRow]")
@click.option(
    "--all",
    "-a",
    "everything",
    is_flag=True,
    help="Include machines of other workspaces and machines without an owner.",
)
@cloud_option
@json_option
@workspace_option
def list_command(workspace_url: str, cloud_name: str, everything: bool, as_json: bool) -> int:
    """List machines of all clouds in every status, with their cost. Idle costs are marked."""
    machine_records = machine_records_in(workspace_url)
    entries, unreachable = list_machines(machine_records, cloud_name=cloud_name)
    shown = [entry for entry in entries if everything or entry.ours]
    for cloud, why in unreachable.items():
        note(f"{cloud} cannot be reached: {why}")
    if as_json:
        import json

        click.echo(json.dumps([_as_data(entry) for entry in shown], indent=2))
    elif not shown:
        click.echo("no machines")
    else:
        header = ["NAME", "STATUS", "CLOUD", "ZONE", "TYPE", "KIND", "AGE", "$/H", "COST", "WHOSE", "REMARKS"]
        click.echo(table([_row(entry) for entry in shown], header=header))
    return report_damaged(machine_records.damaged) or (CloudError.exit_code if unreachable else 0)


def remarks(entry: MachineStatus) -> list[str]:
    texts = []
    if entry.billed_while_stopped:
        texts.append("stopped; its disk is billed")
    if entry.abandoned:
        texts.append(f"the process that was {entry.status} it has died; `outlast reap` deletes it")
    elif entry.machine is None:
        texts.append(f"`outlast machine delete {entry.name}` removes its record")
    elif entry.machine.why not in ("", entry.status):
        texts.append(entry.machine.why)
    if entry.drift:
        texts.append(f"drifted: {'; '.join(entry.drift)}")
    return texts


def _row(entry: MachineStatus) -> list[str]:
    machine = entry.machine
    age = describe_s(max(0.0, (machine.seen_at or time.time()) - machine.created_at)) if machine else "-"
    return [
        entry.name,
        entry.status,
        entry.cloud,
        machine.zone if machine else "-",
        machine.type if machine else "-",
        ("spot" if machine.spot else "on demand") if machine else "-",
        age,
        money(entry.usd_per_hour),
        money(entry.cost_usd),
        entry.whose,
        "; ".join(remarks(entry)),
    ]


def _as_data(entry: MachineStatus) -> dict[str, Any]:
    import msgspec

    machine = msgspec.to_builtins(entry.machine) if entry.machine else {}
    assert isinstance(machine, dict)
    return {
        **machine,
        "name": entry.name,
        "cloud": entry.cloud,
        "status": entry.status,
        "whose": entry.whose,
        "by_hand": entry.machine_record is not None,
        "usd_per_hour": entry.usd_per_hour,
        "cost_usd": entry.cost_usd,
        "billed_while_stopped": entry.billed_while_stopped,
        "drift": list(entry.drift),
    }
