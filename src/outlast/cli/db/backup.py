"""`outlast db backup` and `restore`."""

from __future__ import annotations

import click

from outlast.app.databases import back_up, backup_to_restore, restore_backup
from outlast.cli.shared.command import command
from outlast.cli.shared.options import workspace_option
from outlast.cli.shared.resources import agreed, database_argument
from outlast.cli.shared.terminal import find_workspace, note


@command(progress="backing up", interrupt="the backup may still be created: `outlast db show NAME` lists all backups")
@database_argument
@workspace_option
def backup(name: str, workspace_url: str) -> int:
    """Back up the database NAME, and print the id of the backup."""
    made = back_up(find_workspace(workspace_url), name)
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
    workspace = find_workspace(workspace_url)
    chosen = backup_to_restore(workspace, name, backup_id)
    if not yes and not agreed(f"restore {name} from {chosen}? Later changes are lost"):
        note("nothing was changed")
        return 0
    restore_backup(workspace, name, chosen)
    click.echo(f"restored {name} from {chosen}")
    return 0
