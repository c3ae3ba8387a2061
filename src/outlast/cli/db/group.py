"""`outlast db`: the group."""

from __future__ import annotations

from outlast.cli.db.access import allow, revoke
from outlast.cli.db.backup import backup, restore
from outlast.cli.db.connect import check, shell, url
from outlast.cli.db.lifecycle import create, delete
from outlast.cli.db.show import list_command, show
from outlast.cli.shared.command import command_group

_COMMANDS = (create, list_command, show, delete, allow, revoke, check, url, shell, backup, restore)


@command_group("machines", _COMMANDS)
def db() -> None:
    """Create databases for a team, control access, back up."""
