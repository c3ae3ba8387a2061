"""`outlast machine show`."""

from __future__ import annotations

import click

from outlast.app.machine_life import packages_changed, status_of
from outlast.app.machines import find_machine
from outlast.cli.machine.find import (
    cloud_option,
    machine_records_in,
    name_argument,
)
from outlast.cli.machine.list import _as_data
from outlast.cli.shared.command import READ_ONLY, command
from outlast.cli.shared.options import json_option, workspace_option
from outlast.cli.shared.terminal import money


@command(progress="querying the cloud", interrupt=READ_ONLY, json="MachineShown")
@name_argument
@click.option("--packages", "with_packages", is_flag=True, help="Log in, and list packages that changed since.")
@cloud_option
@json_option
@workspace_option
def show(name: str, workspace_url: str, cloud_name: str, with_packages: bool, as_json: bool) -> int:
    """Show the machine NAME: type, cost, address, metadata, and changes since its creation."""
    machine_records = machine_records_in(workspace_url)
    cloud, machine = find_machine(machine_records, name, cloud_name=cloud_name)
    entry = status_of(cloud, machine_records, machine)
    installed = packages_changed(cloud, machine_records, name) if with_packages else None
    data = {**_as_data(entry), "metadata": dict(cloud.metadata(name))}
    if installed is not None:
        data["packages_changed"] = installed
    if as_json:
        import json

        click.echo(json.dumps(data, indent=2))
        return 0
    kind = "spot" if machine.spot else "on demand"
    click.echo(f"{name}: {entry.status}{f' ({machine.why})' if machine.why else ''}")
    click.echo(f"  where     {cloud.name} {machine.zone}, {machine.type}, {kind}, {machine.disk_gb:g} GB disk")
    click.echo(f"  image     {machine.image or '-'}")
    click.echo(f"  costs     {money(entry.usd_per_hour)} an hour now, {money(entry.cost_usd)} so far")
    click.echo(f"  whose     {entry.whose}")
    click.echo(f"  address   {machine.address or '-'}")
    for key, value in sorted(cloud.metadata(name).items()):
        click.echo(f"  metadata  {key}={' '.join(value.split())[:80]}")
    _print_drift([*entry.drift, *(installed or [])], known=entry.machine_record is not None)
    return 0


def _print_drift(drifted: list[str], *, known: bool) -> None:
    if not known:
        return
    click.echo("  drift     " + ("none" if not drifted else f"{len(drifted)} changes since creation"))
    for line in drifted:
        click.echo(f"            {line}")
