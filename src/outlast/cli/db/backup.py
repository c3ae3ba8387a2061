"""`outlast db backup` and `restore`."""

from __future__ import annotations

import click

from outlast.cli.db.connect import _find
from outlast.cli.shared.command import command
from outlast.cli.shared.options import workspace_option
from outlast.cli.shared.resources import agreed, database_argument
from outlast.cli.shared.terminal import note
from outlast.errors import NotFound


@command(progress="backing up", interrupt="the backup may still be created: `outlast db show NAME` lists all backups")
@database_argument
@workspace_option
def backup(name: str, workspace_url: str) -> int:
    """Back up the database NAME, and print the id of the backup."""
    cloud, _, record = _find(name, workspace_url)
    made = cloud.databases.back_up(record.there)
    note(f"{made.bytes / 1e6:.2f} MB; restore it with `outlast db restore {name} {made.id}`")
    click.echo(made.id)
    return 0


@command(
    progress="restoring", interrupt="the database may be restored only in part: repeat the command before you use it"
)
@database_argument
@click.argument("backup_id", metavar="BACKUP", required=False, default="")
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
@workspace_option
def restore(name: str, backup_id: str, yes: bool, workspace_url: str) -> int:
    """Restore the database NAME from BACKUP, or from the newest one. It asks first."""
    cloud, _, record = _find(name, workspace_url)
    known = cloud.databases.backups(record.there)
    # After an interrupted restore the newest backup is the state before it: a repetition means the same backup again.
    chosen = backup_id or cloud.databases.find(record.there).restoring or (known[-1].id if known else "")
    if not chosen or chosen not in {one.id for one in known}:
        ids = ", ".join(one.id for one in known) or "none"
        raise NotFound(
            f"`{name}` has no backup `{chosen}`" if chosen else f"`{name}` has no backup", hint=f"backups: {ids}"
        )
    if not yes and not agreed(f"restore {name} from {chosen}? Later changes are lost"):
        note("nothing was changed")
        return 0
    cloud.databases.restore(record.there, chosen)
    click.echo(f"restored {name} from {chosen}")
    return 0
