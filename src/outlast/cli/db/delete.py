"""`outlast db delete`."""

from __future__ import annotations

import click

from outlast.cli.db.connect import forget_certificates
from outlast.cli.shared.command import STILL_BILLED, command
from outlast.cli.shared.options import clouds, workspace_option
from outlast.cli.shared.resources import agreed, database_argument, resource_records
from outlast.cli.shared.terminal import note


@command(progress="deleting the database", interrupt=STILL_BILLED)
@database_argument
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
@workspace_option
def delete(name: str, yes: bool, workspace_url: str) -> int:
    """Delete the database NAME with its data and all its backups. It asks first."""
    from outlast.app.resource_status import record_to_delete
    from outlast.databases import lifecycle

    records = resource_records(workspace_url, "database")
    known = clouds(records.workspace)
    record, warning = record_to_delete(known, records, name)
    if warning:
        note(warning)
    cloud = lifecycle.databases_of(known, record.cloud)
    if not yes and not agreed(f"delete the database {name} on {record.cloud}, its data and its backups?"):
        note("nothing was deleted")
        return 0
    lifecycle.delete(cloud, records, record)
    forget_certificates(name)
    click.echo(f"deleted {name}")
    return 0
