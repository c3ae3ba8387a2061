"""`outlast db create` and `delete`."""

from __future__ import annotations

import time

import click

from outlast.app.databases import create_database, delete_database
from outlast.cli.shared.command import STILL_BILLED, command
from outlast.cli.shared.options import workspace_option
from outlast.cli.shared.resources import cloud_option, confirmed_record, database_argument, resource_records, size
from outlast.cli.shared.terminal import find_workspace, money, note
from outlast.spec.quantity import describe_s


@command(
    progress="waiting for the database", interrupt="the database may still be created and billed: `outlast db list`"
)
@click.argument("name")
@click.option(
    "--engine", type=click.Choice(["mysql", "postgres"]), default="postgres", help="Database engine (postgres)."
)
@click.option("--zone", default="", metavar="ZONE", help="Zone or region, if the cloud has them.")
@click.option("--type", "type_name", default="", metavar="NAME", help="Machine type of the server.")
@click.option("--size", "size_text", default="", metavar="SIZE", help="Disk size, if the cloud sells disks (10GB).")
@cloud_option
@workspace_option
def create(
    name: str, engine: str, zone: str, type_name: str, size_text: str, cloud_name: str, workspace_url: str
) -> int:
    """Create the database NAME and wait until it accepts connections."""
    begun = time.monotonic()
    record, made = create_database(
        find_workspace(workspace_url),
        name,
        engine="mysql" if engine == "mysql" else "postgres",
        cloud=cloud_name,
        zone=zone,
        type=type_name,
        size_gb=size("--size", size_text) if size_text else 10.0,
        report=note,
    )
    price = f"{money(record.usd_per_month)} a month"
    click.echo(f"{name} answers at {made.host}:{made.port}: {made.engine} {made.version}, {price}")
    note(f'created in {describe_s(time.monotonic() - begun)}; a run with `databases = "{name}"` gets DATABASE_URL')
    return 0


@command(progress="deleting the database", interrupt=STILL_BILLED)
@database_argument
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
@workspace_option
def delete(name: str, yes: bool, workspace_url: str) -> int:
    """Delete the database NAME with its data and all its backups. It asks first."""
    records = resource_records(workspace_url, "database")
    record = confirmed_record(records, name, loses="its data and its backups", yes=yes)
    if record is not None:
        delete_database(records, record)
        click.echo(f"deleted {name}")
    return 0
