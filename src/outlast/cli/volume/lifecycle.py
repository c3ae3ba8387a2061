"""`outlast volume create`, `resize` and `delete`."""

from __future__ import annotations

import sys

import click

from outlast.app.volumes import create_volume, delete_volume, require_unmounted, resize_volume, volume_price
from outlast.cli.shared.command import STILL_BILLED, UNCERTAIN, command
from outlast.cli.shared.options import workspace_option
from outlast.cli.shared.resources import cloud_option, confirmed_record, resource_records, size, volume_argument
from outlast.cli.shared.terminal import find_workspace, money, note
from outlast.errors import UsageError


@command(
    progress="waiting for the volume", interrupt="the volume may still be created and billed: `outlast volume list`"
)
@click.argument("name")
@click.option("--size", "size_text", required=True, metavar="SIZE", help="Size: 1TB, 500GB.")
@click.option("--zone", default="", metavar="ZONE", help="Zone; only machines that reach it can mount the volume.")
@cloud_option
@click.option("--yes", "-y", is_flag=True, help="Do not ask, whatever the volume costs.")
@workspace_option
def create(name: str, size_text: str, zone: str, cloud_name: str, yes: bool, workspace_url: str) -> int:
    """Create the volume NAME. A second one of the same name is refused before it costs anything."""
    size_gb = size("--size", size_text)
    workspace = find_workspace(workspace_url)
    _confirm_price(volume_price(workspace, size_gb, cloud_name), yes=yes)
    record = create_volume(workspace, name, size_gb=size_gb, cloud=cloud_name, zone=zone, report=note)
    where = record.zone or record.cloud
    click.echo(f"{name}: {record.size_gb:g} GB in {where}, {money(record.usd_per_month)} a month")
    note(f'in outlast.toml: [volumes] "/data" = "{name}"; fill it with `outlast volume populate {name} FOLDER`')
    return 0


def _confirm_price(usd_per_month: float, *, yes: bool) -> None:
    """Print the price of a volume, and ask on a terminal. Raises UsageError if the user declines."""
    if not usd_per_month:
        return
    note(f"the volume will cost {money(usd_per_month)} a month, from now until you delete it")
    if yes or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return
    from outlast.cli.shared.progress import confirm

    if not confirm("Create it?"):
        raise UsageError("declined; nothing was created", hint="--yes creates it without a question")


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
