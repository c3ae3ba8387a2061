"""`outlast volume create`, `resize` and `delete`."""

from __future__ import annotations

import click

from outlast.app.volumes import create_volume, delete_volume, require_unmounted, resize_volume
from outlast.cli.shared.command import STILL_BILLED, UNCERTAIN, command
from outlast.cli.shared.options import workspace_option
from outlast.cli.shared.resources import cloud_option, confirmed_record, resource_records, size, volume_argument
from outlast.cli.shared.terminal import find_workspace, money, note


@command(
    progress="waiting for the volume", interrupt="the volume may still be created and billed: `outlast volume list`"
)
@click.argument("name")
@click.option("--size", "size_text", required=True, metavar="SIZE", help="Size: 1TB, 500GB.")
@click.option("--zone", default="", metavar="ZONE", help="Zone; only machines that reach it can mount the volume.")
@cloud_option
@workspace_option
def create(name: str, size_text: str, zone: str, cloud_name: str, workspace_url: str) -> int:
    """Create the volume NAME. A second one of the same name is refused before it costs anything."""
    size_gb = size("--size", size_text)
    record = create_volume(
        find_workspace(workspace_url), name, size_gb=size_gb, cloud=cloud_name, zone=zone, report=note
    )
    where = record.zone or record.cloud
    click.echo(f"{name}: {record.size_gb:g} GB in {where}, {money(record.usd_per_month)} a month")
    note(f'in outlast.toml: [volumes] "/data" = "{name}"; fill it with `outlast volume populate {name} FOLDER`')
    return 0


@command(progress="resizing", interrupt=UNCERTAIN)
@volume_argument
@click.option("--size", "size_text", required=True, metavar="SIZE", help="New size: 2TB.")
@workspace_option
def resize(name: str, size_text: str, workspace_url: str) -> int:
    """Grow the volume NAME, or shrink it if its cloud can."""
    fresh = resize_volume(find_workspace(workspace_url), name, size("--size", size_text))
    click.echo(f"{name}: {fresh.size_gb:g} GB, {money(fresh.usd_per_month)} a month")
    return 0


@command(progress="deleting the volume", interrupt=STILL_BILLED)
@volume_argument
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
@workspace_option
def delete(name: str, yes: bool, workspace_url: str) -> int:
    """Delete the volume NAME and its files. It asks first, and refuses while the volume is in use."""
    records = resource_records(workspace_url, "volume")
    require_unmounted(records.workspace, name)
    record = confirmed_record(records, name, loses="with all its files", yes=yes)
    if record is not None:
        delete_volume(records, record)
        click.echo(f"deleted {name}")
    return 0
