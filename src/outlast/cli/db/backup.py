"""`outlast db allow`, `revoke`, `check`, `url`, `shell`, `backup`, `restore`: how a database is used."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from outlast.cli.db.connect import _find
from outlast.cli.shared.command import command
from outlast.cli.shared.options import workspace_option
from outlast.cli.shared.resources import agreed, database_argument
from outlast.cli.shared.terminal import note
from outlast.errors import NotFound

if TYPE_CHECKING:
    pass


@command(progress="backing up", interrupt="the backup may still be created: `outlast db show NAME` lists all backups")
@database_argument
@workspace_option
def backup(name: str, workspace_url: str) -> int:
    """Keep a copy of the database NAME as it is now; prints its id."""
    cloud, _, record = _find(name, workspace_url)
    made = cloud.databases.back_up(record.there)
    note(f"{made.bytes / 1e6:.2f} MB; `outlast db restore {name} {made.id}` puts it back")
    click.echo(made.id)
    return 0


@command(
    progress="restoring", interrupt="the database may be restored only in part: repeat the command before you use it"
)
@database_argument
@click.argument("backup_id", metavar="BACKUP", required=False, default="")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@workspace_option
def restore(name: str, backup_id: str, yes: bool, workspace_url: str) -> int:
    """Put the database NAME back to how it was at BACKUP, or at the newest one. It asks first."""
    cloud, _, record = _find(name, workspace_url)
    known = cloud.databases.backups(record.there)
    # The newest is how it was before a restore that was cut short: who repeats that one means what it was to become.
    chosen = backup_id or cloud.databases.find(record.there).restoring or (known[-1].id if known else "")
    if not chosen or chosen not in {one.id for one in known}:
        ids = ", ".join(one.id for one in known) or "none"
        raise NotFound(
            f"`{name}` has no backup `{chosen}`" if chosen else f"`{name}` has no backup", hint=f"there are: {ids}"
        )
    if not yes and not agreed(f"put {name} back to {chosen}? What was written since is replaced"):
        note("nothing was changed")
        return 0
    cloud.databases.restore(record.there, chosen)
    click.echo(f"{name} is as it was at {chosen}")
    return 0
