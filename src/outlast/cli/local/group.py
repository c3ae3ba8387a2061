"""`outlast local`: the group."""

from __future__ import annotations

from outlast.cli.local.machines import delete, machines, serial
from outlast.cli.local.serve import env, serve
from outlast.cli.local.zones import set_command, zones
from outlast.cli.shared.command import command_group

_COMMANDS = (serve, env, zones, set_command, machines, serial, delete)


@command_group("admin", _COMMANDS)
def local() -> None:
    """Inspect and control the local cloud: zones, capacity, machines."""
