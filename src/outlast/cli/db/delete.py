"""`outlast db`: databases that a team shares, made, told of and thrown away. How they are used is in `db_use.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from outlast.cli.db.connect import forget_certificates
from outlast.cli.shared.command import STILL_BILLED, command
from outlast.cli.shared.options import clouds, workspace_option
from outlast.cli.shared.resources import agreed, database_argument, holdings_of
from outlast.cli.shared.terminal import note

if TYPE_CHECKING:
    pass


@command(progress="deleting the database", interrupt=STILL_BILLED)
@database_argument
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@workspace_option
def delete(name: str, yes: bool, workspace_url: str) -> int:
    """Delete the database NAME with all that is in it and all its backups. It asks first."""
    from outlast.app.resource_status import to_be_deleted
    from outlast.databases import lifecycle

    records = holdings_of(workspace_url, "database")
    known = clouds(records.workspace)
    record, told = to_be_deleted(known, records, name)
    if told:
        note(told)
    cloud = lifecycle.databases_of(known, record.cloud)
    if not yes and not agreed(f"delete the database {name} on {record.cloud}, its data and its backups?"):
        note("nothing was deleted")
        return 0
    lifecycle.delete(cloud, records, record)
    forget_certificates(name)
    click.echo(f"deleted {name}")
    return 0
