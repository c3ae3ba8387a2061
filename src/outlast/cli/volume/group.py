"""`outlast volume`: the group."""

from __future__ import annotations

from outlast.cli.shared.command import command_group
from outlast.cli.volume.contents import ls, populate
from outlast.cli.volume.lifecycle import create, delete, resize
from outlast.cli.volume.mount import mount, unmount
from outlast.cli.volume.show import list_command, show

_COMMANDS = (create, list_command, show, resize, delete, populate, ls, mount, unmount)


@command_group("machines", _COMMANDS)
def volume() -> None:
    """Create file systems that many machines mount at once."""
