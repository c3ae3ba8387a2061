"""`outlast image`: the group."""

from __future__ import annotations

from outlast.cli.image.build import build
from outlast.cli.image.delete import delete, prune
from outlast.cli.image.family import promote, rollback, share
from outlast.cli.image.list import list_command, show
from outlast.cli.shared.command import command_group

_COMMANDS = (list_command, show, share, promote, rollback, delete, prune, build)


@command_group("machines", _COMMANDS)
def image() -> None:
    """Build the images that machines boot from."""
